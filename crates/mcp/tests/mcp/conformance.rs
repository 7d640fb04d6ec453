//! The public conformance suite for clients. It runs this test program as the client, in one scenario after the other,
//! because some of them measure time.

#![expect(clippy::disallowed_methods, reason = "the suite passes the scenario in the environment")]

use std::collections::BTreeSet;
use std::process::Output;

use mcp::{Auth, Call, ClientCredentials, Limits, Problem, Reach as _, call_tool, list_tools};
use serde_json::{Value, json};
use testkit::McpEverything;
use tokio::process::Command;
use url::Url;

use crate::scripted::{Scripted, ordinary};
use crate::tools::Everywhere;

/// The scenarios about what connectors do, with the versions of the protocol to run them at.
const SCENARIOS: [(&str, &[&str]); 9] = [
    ("initialize", &["2025-11-25"]),
    ("tools_call", &["2025-06-18", "2025-11-25", "2026-07-28"]),
    ("sse-retry", &["2025-11-25"]),
    ("request-metadata", &["2026-07-28"]),
    ("http-standard-headers", &["2026-07-28"]),
    ("http-custom-headers", &["2026-07-28"]),
    ("http-invalid-tool-headers", &["2026-07-28"]),
    ("json-schema-ref-no-deref", &["2026-07-28"]),
    ("auth/client-credentials-basic", &["2026-07-28"]),
];
/// The scenarios that do not apply, each with the reason.
const NOT_OFFERED: &str = include_str!("conformance-not-offered.txt");

async fn suite(arguments: &[&str]) -> Output {
    let packages = McpEverything::packages();
    let program = packages.join("@modelcontextprotocol/conformance/dist/index.js");
    let results = tempfile::tempdir().unwrap();
    let mut command = Command::new(packages.join(".bin/node"));
    command.arg(program).args(arguments).current_dir(results.path()).output().await.unwrap()
}

#[tokio::test]
async fn the_client_conforms_in_every_scenario_that_applies() {
    let program = std::env::current_exe().unwrap();
    let client = format!("{} conformance::conforming_client_lists_and_calls --exact", program.display());
    for (scenario, versions) in SCENARIOS {
        for version in versions {
            let arguments =
                ["client", "--command", &client, "--scenario", scenario, "--spec-version", version];
            let run = suite(&arguments).await;
            let said = String::from_utf8_lossy(&run.stdout);
            assert!(
                run.status.success(),
                "{scenario} at {version}: {said}{}",
                String::from_utf8_lossy(&run.stderr)
            );
        }
    }
}

#[tokio::test]
async fn every_scenario_of_the_suite_is_run_or_excused() {
    let listed = String::from_utf8(suite(&["list"]).await.stdout).unwrap();
    let clients = listed.split("Client scenarios").nth(1).unwrap().split("\n\n").next().unwrap();
    let name = |line: &str| line.trim().strip_prefix("- ")?.split(' ').next().map(str::to_owned);
    let listed: BTreeSet<_> = clients.lines().filter_map(name).collect();
    let excused =
        NOT_OFFERED.lines().filter_map(|line| line.split_once(": ")).map(|(name, _)| name.to_owned());
    let run = SCENARIOS.iter().map(|(name, _)| (*name).to_owned());
    assert_eq!(listed, excused.chain(run).collect());
}

/// The client that the suite starts: lists the tools of the server whose URL is the last argument, and calls each. As an
/// ordinary test, it does the same with a scripted server.
#[tokio::test]
async fn conforming_client_lists_and_calls() {
    let server = Scripted::start(ordinary).await;
    let url: Url = match std::env::var("MCP_CONFORMANCE_SCENARIO") {
        Ok(_) => std::env::args().next_back().unwrap().parse().unwrap(),
        Err(_) => server.url.clone(),
    };
    let context = std::env::var("MCP_CONFORMANCE_CONTEXT").unwrap_or_default();
    let context: Value = serde_json::from_str(&context).unwrap_or_default();
    let auth = auth(&url, &context).await;
    let listing = list_tools(&Everywhere, &url, &auth, Limits::default()).await.unwrap();
    for tool in &listing.definitions {
        for arguments in arguments(tool.name(), tool.input_schema(), &context) {
            let call = Call { tool, arguments: arguments.as_object().cloned().unwrap_or_default() };
            let result = call_tool(&Everywhere, &url, &auth, call, Limits::default()).await.result;
            // The server of one scenario only lists.
            assert!(matches!(result, Ok(_) | Err(Problem::Server { code: -32601, .. })), "{result:?}");
        }
    }
}

/// The credentials of the scenario. Operators configure the token endpoint of a connector; here its address comes from
/// the authorization server's metadata.
async fn auth(url: &Url, context: &Value) -> Auth {
    let (Some(id), Some(secret)) = (context["client_id"].as_str(), context["client_secret"].as_str()) else {
        return Auth::None;
    };
    let resource = fetch(url.join("/.well-known/oauth-protected-resource/mcp").unwrap()).await;
    let issuer: Url = resource["authorization_servers"][0].as_str().unwrap().parse().unwrap();
    let server = fetch(issuer.join("/.well-known/oauth-authorization-server").unwrap()).await;
    Auth::ClientCredentials(ClientCredentials {
        token_url: server["token_endpoint"].as_str().unwrap().parse().unwrap(),
        client_id: id.to_owned().into(),
        client_secret: secret.to_owned().into(),
        scope: None,
    })
}

async fn fetch(url: Url) -> Value {
    Everywhere.client(&url).unwrap().get(url).send().await.unwrap().json().await.unwrap()
}

/// The arguments to call a tool with: those that the scenario asks for, else one value for each parameter.
fn arguments(tool: &str, schema: &Value, context: &Value) -> Vec<Value> {
    let wanted = context["toolCalls"].as_array().into_iter().flatten();
    let wanted: Vec<Value> =
        wanted.filter(|call| call["name"] == tool).map(|call| call["arguments"].clone()).collect();
    if !wanted.is_empty() {
        return wanted;
    }
    let value = |schema: &Value| match schema["type"].as_str() {
        Some("number" | "integer") => json!(3),
        Some("boolean") => json!(true),
        Some("array") => json!([]),
        Some("object") => json!({}),
        _ => json!("text"),
    };
    let properties = schema["properties"].as_object().into_iter().flatten();
    vec![properties.map(|(name, schema)| (name.clone(), value(schema))).collect()]
}
