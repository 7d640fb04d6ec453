//! The client against `@modelcontextprotocol/server-everything`, the reference server.

use std::time::Duration;

use mcp::{Auth, Call, CallOutcome, Limits, Listing, Problem, ToolResult};
use serde_json::{Value, json};
use testkit::McpEverything;
use url::Url;

use crate::tools::{Everywhere, list};

async fn call(url: &Url, listing: &Listing, tool: &str, arguments: Value, limits: Limits) -> CallOutcome {
    let arguments = arguments.as_object().unwrap().clone();
    let call = Call { tool: listing.find(tool).unwrap(), arguments };
    mcp::call_tool(&Everywhere, url, &Auth::None, call, limits).await
}

async fn start() -> (McpEverything, Url, Listing) {
    let server = McpEverything::start(&[]).await.unwrap();
    let url = server.url().parse().unwrap();
    let listing = list(&url).await;
    (server, url, listing)
}

#[tokio::test]
async fn tools_are_listed_with_their_complete_definitions() {
    let (_server, url, listing) = start().await;
    assert_eq!((listing.refused.len(), listing.truncated), (0, false));
    let sum = listing.find("get-sum").unwrap();
    assert_eq!(sum.input_schema()["properties"]["a"]["type"], "number");
    assert!(sum.description().contains("sum"));
    assert!(sum.raw()["execution"].is_object(), "a field that the SDK does not know: {}", sum.raw());
    assert_eq!(list(&url).await, listing, "the same definitions have the same hashes");
}

#[tokio::test]
async fn results_and_failures_of_tools_differ() {
    let (_server, url, listing) = start().await;
    let call = async |tool, arguments| {
        call(&url, &listing, tool, arguments, Limits::default()).await.result.unwrap()
    };
    let sum = ToolResult::Done(json!("The sum of 2 and 3 is 5."));
    assert_eq!(call("get-sum", json!({"a": 2, "b": 3})).await, sum);
    let ToolResult::Done(weather) = call("get-structured-content", json!({"location": "Chicago"})).await
    else {
        panic!()
    };
    assert!(weather["temperature"].is_number(), "{weather}");
    let ToolResult::Done(image) = call("get-tiny-image", json!({})).await else { panic!() };
    assert!(image.as_array().unwrap().iter().any(|block| block["type"] == "image"), "{image}");
    let wrong = call("get-sum", json!({"a": "two"})).await;
    assert!(matches!(&wrong, ToolResult::Failed(message) if message.contains('a')), "{wrong:?}");
}

#[tokio::test]
async fn a_result_that_is_too_large_fails_at_once() {
    let (_server, url, listing) = start().await;
    let limits = Limits { bytes: 64 * 1024, ..Limits::default() };
    let huge = json!({"message": "m".repeat(100 * 1024)});
    let outcome = call(&url, &listing, "echo", huge, limits).await;
    assert_eq!((outcome.result, outcome.sent), (Err(Problem::TooLarge(64 * 1024)), true));
}

#[tokio::test]
async fn a_slow_tool_times_out() {
    let (_server, url, listing) = start().await;
    let limits = Limits { call: Duration::from_secs(2), ..Limits::default() };
    let slow = json!({"duration": 600, "steps": 2});
    let outcome = call(&url, &listing, "trigger-long-running-operation", slow, limits).await;
    assert_eq!((outcome.result, outcome.sent), (Err(Problem::Timeout), true));
}

#[tokio::test]
async fn a_server_that_restarts_in_the_middle_loses_the_call_and_answers_the_next() {
    let (server, url, listing) = start().await;
    let limits = Limits::default();
    let slow = json!({"duration": 600, "steps": 600});
    let running = call(&url, &listing, "trigger-long-running-operation", slow, limits);
    let restarted = async {
        // The server has no other sign that the call runs than time; if the kill comes before the call, the assertion
        // about `sent` fails.
        tokio::time::sleep(Duration::from_secs(2)).await;
        McpEverything::start_on(server.kill().await.unwrap(), &[]).await.unwrap()
    };
    let (outcome, _server) = tokio::join!(running, restarted);
    assert!(outcome.sent && outcome.result.is_err(), "{outcome:?}");
    let sum = call(&url, &listing, "get-sum", json!({"a": 1, "b": 1}), limits).await;
    assert!(matches!(sum.result, Ok(ToolResult::Done(_))), "{sum:?}");
}

#[tokio::test]
async fn a_server_that_asks_for_sampling_or_input_gets_neither() {
    let (_server, _, listing) = start().await;
    // The server offers such tools only to clients that declare the capability.
    for tool in ["trigger-sampling-request", "trigger-elicitation-request"] {
        assert!(listing.find(tool).is_none(), "{tool} is offered");
    }
}
