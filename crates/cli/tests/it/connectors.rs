//! `connectors`: an operator connects the reference MCP server, reviews its tools and takes it away again.

use serde_json::{Value, json};
use testkit::McpEverything;

use crate::harness::Machine;

#[test]
fn a_connector_is_added_reviewed_disabled_and_removed() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(McpEverything::start(&[])).unwrap();
    let machine = Machine::new();
    let _gateway = machine.serve_with(&[("CONNECTOR_ALLOWED_HOSTS", &server.address())]);
    let org = machine.first_org();
    let add = |name: &str, auth: &str, url: &str| {
        machine.run(&[
            "connectors",
            "add",
            "--org",
            &org,
            "--name",
            name,
            "--url",
            url,
            "--auth",
            auth,
            "--json",
        ])
    };
    let added = add("all", "none", &server.url());
    assert_eq!(added.code, 0, "{}", added.err);
    let added: Value = serde_json::from_str(&added.out).unwrap();
    let id = added["id"].as_str().unwrap();
    for (auth, url) in
        [("none", "https://127.0.0.1/"), ("header:Host:KEY", &server.url()), ("bearer", &server.url())]
    {
        let refused = add("bad", auth, url);
        assert!(refused.code != 0 && refused.out.is_empty(), "{auth} {url}: {}", refused.out);
    }

    let shown = machine.json(&["connectors", "show", "all"]);
    let tools = shown["offer"]["tools"].as_array().unwrap();
    assert!(tools.iter().all(|tool| tool["state"] == "new" && tool["riskLevel"] == "write"), "{shown}");
    let text = machine.run(&["connectors", "review", "all", "--all"]);
    assert!(text.out.contains("get-sum") && text.out.contains("--yes"), "{}", text.out);
    for tool in tools {
        let title = tool["definition"]["title"].as_str().unwrap();
        assert!(
            text.out.contains(&format!("\"title\": \"{title}\"")),
            "the definition of {tool} is not shown"
        );
    }
    let pinned = machine.json(&["connectors", "review", id, "--all", "--yes"]);
    assert_eq!(pinned["pinned"].as_array().unwrap().len(), tools.len());
    let shown = machine.json(&["connectors", "show", &id[..8]]);
    let tools = shown["offer"]["tools"].as_array().unwrap();
    assert!(tools.iter().all(|tool| tool["state"] == "reviewed"), "{shown}");

    assert_eq!(machine.json(&["connectors", "disable", "all"])["enabled"], false);
    assert_eq!(machine.json(&["connectors", "ls"])[0]["enabled"], false);
    assert_eq!(machine.json(&["connectors", "enable", "all"])["enabled"], true);
    assert_eq!(machine.json(&["connectors", "rm", "all"])["removed"], json!(id));
    assert_eq!(machine.json(&["connectors", "ls"]), json!([]));
}
