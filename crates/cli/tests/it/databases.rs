//! `databases`: an operator lets agents query an SQLite file, changes its queries and takes it away again.

use serde_json::json;

use crate::harness::Machine;

const QUERIES: &str = "queries:
  - name: orders
    description: Lists the orders of a customer.
    sql: |
      SELECT ?1 AS customer
    parameters:
      - {name: customer, schema: {type: string}}
";

#[test]
fn a_database_is_added_checked_changed_and_removed() {
    let machine = Machine::new();
    let directory = tempfile::tempdir().unwrap();
    let queries = directory.path().join("queries.yaml");
    std::fs::write(&queries, QUERIES).unwrap();
    let queries = queries.to_str().unwrap();
    let _gateway = machine.serve_with(&[("DATABASE_FILES_DIR", directory.path().to_str().unwrap())]);
    let own = directory.path().join(machine.first_org());
    std::fs::create_dir(&own).unwrap();
    std::fs::write(own.join("shop.db"), []).unwrap();
    let add = ["databases", "add", "--name", "shop", "--sqlite", "shop.db", "--queries", queries];

    let checked = machine.json(&[&add[..], &["--dry-run"]].concat());
    assert_eq!(checked, json!({"ok": true, "error": null}));
    assert_eq!(machine.json(&["databases", "ls"]), json!([]));
    let added = machine.json(&add);
    let id = added["id"].as_str().unwrap();
    assert_eq!(
        (&added["queries"][0]["sql"], &added["freeForm"]),
        (&json!("SELECT ?1 AS customer\n"), &json!("off"))
    );
    for (args, part) in [
        (&["--postgres", "postgres://a:s3cret@127.0.0.1/db"][..], "--secret KEY"),
        (&["--postgres", "postgres://a@127.0.0.1/db"], "private"),
        (&["--sqlite", "missing.db"], "does not exist"),
        (&["--sqlite", "shop.db", "--queries", "missing.yaml"], "cannot read"),
        (&[], "--postgres URL or --sqlite FILE"),
    ] {
        let refused = machine.run(&[&["databases", "add", "--name", "bad"], args].concat());
        assert!(refused.code != 0 && refused.err.contains(part), "{args:?}: {}", refused.err);
        assert!(!refused.err.contains("s3cret"), "{}", refused.err);
    }

    let shown = machine.json(&["databases", "show", "shop"]);
    assert_eq!(shown["actions"][0]["mode"], "allow", "{shown}");
    let text = machine.run(&["databases", "show", &id[..8]]).out;
    assert!(text.contains("orders · read · allow") && text.contains("Lists the orders"), "{text}");
    assert_eq!(machine.json(&["databases", "check", "shop"])["ok"], true);
    let set = machine.json(&["databases", "set", "shop", "--free-form", "write", "--max-rows", "7"]);
    assert_eq!(
        (&set["freeForm"], &set["limits"]["maxRows"], &set["limits"]["timeoutMs"]),
        (&json!("write"), &json!(7), &json!(5000))
    );
    std::fs::remove_file(own.join("shop.db")).unwrap();
    let checked = machine.run(&["databases", "check", "shop"]);
    assert!(checked.code == 1 && checked.err.contains("does not exist"), "{}", checked.err);

    assert_eq!(machine.json(&["databases", "disable", "shop"])["enabled"], false);
    assert_eq!(machine.json(&["databases", "enable", "shop"])["enabled"], true);
    assert_eq!(machine.json(&["databases", "rm", "shop"])["removed"], json!(id));
    assert_eq!(machine.json(&["databases", "ls"]), json!([]));
}

#[test]
fn a_replay_knows_the_recorded_calls_of_queries() {
    let machine = Machine::new();
    let directory = tempfile::tempdir().unwrap();
    let queries = directory.path().join("queries.yaml");
    std::fs::write(&queries, QUERIES).unwrap();
    let gateway = machine.serve_with(&[("DATABASE_FILES_DIR", directory.path().to_str().unwrap())]);
    let own = directory.path().join(machine.first_org());
    std::fs::create_dir(&own).unwrap();
    std::fs::write(own.join("shop.db"), []).unwrap();
    let add = ["databases", "add", "--name", "shop", "--sqlite", "shop.db", "--queries"];
    let added = machine.json(&[&add[..], &[queries.to_str().unwrap()]].concat());
    let query = format!("db:{}:orders", added["id"].as_str().unwrap());
    let call = |run: &str, lane: &str| {
        let actor = json!({"actor_type": "system", "actor_id": "worker"});
        let call = json!({"tool_name": query, "operation": query, "lane_id": lane, "actor": actor, "run_id": run,
            "scope": {}, "parameters": {"customer": "ada"}});
        gateway.post("/v1/tool-calls", &machine.service(), &call).0
    };
    assert_eq!(call("query-run-1", "actions.read"), 200);
    assert_eq!(call("query-run-2", "actions.write"), 403);
    let policy = directory.path().join("policy");
    std::fs::create_dir(&policy).unwrap();
    for (name, text) in [
        ("lanes.yaml", include_str!("../../../../policy/lanes.yaml")),
        ("roles.yaml", include_str!("../../../../policy/roles.yaml")),
    ] {
        std::fs::write(policy.join(name), text).unwrap();
    }
    let replay = ["policy", "replay", policy.to_str().unwrap()];
    let none = json!({"decisions": 2, "unreadable": 0, "pinned": 0, "flips": []});
    assert_eq!(machine.json(&replay), none);
    // What a query risked is recorded, so it counts also when its database is gone.
    assert_eq!(machine.run(&["databases", "rm", "shop"]).code, 0);
    assert_eq!(machine.json(&replay), none);
}
