//! The client against servers that break the protocol, fall silent, never end, or want what is not theirs.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mcp::{
    Auth, Call, CallOutcome, ClientCredentials, Definition, DefinitionError, Limits, Listing, Problem, Reach,
    ToolResult,
};
use reqwest::Client;
use schemas::SchemaError;
use serde_json::{Value, json};
use url::Url;

use crate::scripted::{Scripted, act, http, json_body, ordinary};
use crate::tools::{Everywhere, list};

async fn call(server: &Scripted, auth: &Auth, limits: Limits) -> CallOutcome {
    let tool = Definition::parse(act()).unwrap();
    let call = Call { tool: &tool, arguments: serde_json::Map::new() };
    mcp::call_tool(&Everywhere, &server.url, auth, call, limits).await
}

fn done() -> ToolResult {
    ToolResult::Done(json!("done"))
}

#[tokio::test]
async fn a_session_that_the_server_forgot_is_initialized_once_more() {
    let calls = AtomicUsize::new(0);
    let server = Scripted::start(move |request| match request.method().as_str() {
        "tools/call" if calls.fetch_add(1, Ordering::SeqCst) == 0 => http(404, "", ""),
        _ => ordinary(request),
    })
    .await;
    let outcome = call(&server, &Auth::None, Limits::default()).await;
    assert_eq!((outcome.result, outcome.sent), (Ok(done()), true));
    assert_eq!(server.methods().iter().filter(|method| *method == "initialize").count(), 2);

    let server = Scripted::start(|request| match request.method().as_str() {
        "tools/call" => http(404, "", ""),
        _ => ordinary(request),
    })
    .await;
    let outcome = call(&server, &Auth::None, Limits::default()).await;
    assert_eq!((outcome.result, outcome.sent), (Err(Problem::Status(404)), false));
    let methods = server.methods();
    assert_eq!(methods.iter().filter(|method| *method == "tools/call").count(), 2, "{methods:?}");
}

#[tokio::test]
async fn a_stream_without_end_is_cut_off() {
    let server = Scripted::start(|request| match request.method().as_str() {
        "tools/call" => {
            let endless = "content-type: text/event-stream\r\nx-endless: 1\r\nconnection: close";
            format!("HTTP/1.1 200 X\r\n{endless}\r\n\r\n")
        }
        _ => ordinary(request),
    })
    .await;
    let limits = Limits { bytes: 100_000, ..Limits::default() };
    let outcome = call(&server, &Auth::None, limits).await;
    assert_eq!((outcome.result, outcome.sent), (Err(Problem::TooLarge(100_000)), true));
}

#[tokio::test]
async fn a_silent_server_times_out() {
    let server = Scripted::start(|request| match request.method().as_str() {
        "tools/list" => {
            "HTTP/1.1 200 X\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n".to_owned()
        }
        _ => ordinary(request),
    })
    .await;
    let usual = Limits::default();
    assert_eq!((usual.list, usual.call), (Duration::from_secs(15), Duration::from_secs(30)));
    let limits = Limits { list: Duration::from_secs(1), ..usual };
    let listing = mcp::list_tools(&Everywhere, &server.url, &Auth::None, limits).await;
    assert!(matches!(listing, Err(Problem::Timeout | Problem::Broken)), "{listing:?}");
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let target = Scripted::start(ordinary).await;
    let location = format!("location: {}\r\n", target.url);
    let server = Scripted::start(move |_| http(307, &location, "")).await;
    let secret = Auth::Bearer("tops3cret".to_owned().into());
    let outcome = call(&server, &secret, Limits::default()).await;
    assert_eq!((outcome.result, outcome.sent), (Err(Problem::Redirect), false));
    assert!(target.seen.lock().is_empty());
}

#[tokio::test]
async fn requests_of_a_server_are_refused_and_the_call_continues() {
    let server = Scripted::start(|request| match request.method().as_str() {
        "tools/call" => {
            let ask = json!({"jsonrpc": "2.0", "id": 77, "method": "elicitation/create",
                "params": {"message": "your password?", "requestedSchema": {"type": "object", "properties": {}}}});
            let sample = json!({"jsonrpc": "2.0", "id": 78, "method": "sampling/createMessage",
                "params": {"messages": [], "maxTokens": 1}});
            let answer = json!({"jsonrpc": "2.0", "id": request.message()["id"],
                "result": {"content": [{"type": "text", "text": "done"}]}});
            let events = format!("\u{feff}data: {ask}\n\ndata: {sample}\n\ndata: {answer}\n\n");
            http(200, "content-type: text/event-stream\r\n", &events)
        }
        _ => ordinary(request),
    })
    .await;
    assert_eq!(call(&server, &Auth::None, Limits::default()).await.result, Ok(done()));
    let seen = server.seen.lock().clone();
    for request in seen.iter().filter(|request| [json!(77), json!(78)].contains(&request.message()["id"])) {
        assert!(request.message()["error"].is_object(), "{}", request.body);
    }
    let initialize = seen.iter().find(|request| request.method() == "initialize").unwrap().message();
    assert_eq!(initialize["params"]["capabilities"], json!({}));
}

#[tokio::test]
async fn pages_that_never_end_are_cut_off() {
    let server = Scripted::start(|request| match request.method().as_str() {
        "tools/list" => {
            let page = json!({"tools": [], "nextCursor": "again"});
            json_body("", &json!({"jsonrpc": "2.0", "id": request.message()["id"], "result": page}))
        }
        _ => ordinary(request),
    })
    .await;
    assert!(list(&server.url).await.truncated);
}

/// Lists a server that offers these tools.
async fn list_of(tools: Value) -> Result<Listing, Problem> {
    let server = Scripted::start(move |request| match request.method().as_str() {
        "tools/list" => {
            let result = json!({"tools": tools});
            json_body("", &json!({"jsonrpc": "2.0", "id": request.message()["id"], "result": result}))
        }
        _ => ordinary(request),
    })
    .await;
    mcp::list_tools(&Everywhere, &server.url, &Auth::None, Limits::default()).await
}

#[tokio::test]
async fn definitions_that_take_much_memory_are_refused() {
    let tools = |count: usize, value: Value| {
        let tool = |number| json!({"name": format!("t{number}"), "inputSchema": {"type": "object", "default": value}});
        Value::Array((0..count).map(tool).collect())
    };
    let text = json!("x".repeat(60_000));
    assert_eq!(list_of(tools(8, text.clone())).await.unwrap().definitions.len(), 8);
    assert_eq!(list_of(tools(9, text)).await.unwrap_err(), Problem::Listing, "more than 512 KiB");
    let zeros = json!(vec![0; 4900]);
    assert_eq!(list_of(tools(10, zeros.clone())).await.unwrap().definitions.len(), 10);
    let problem = list_of(tools(11, zeros)).await.unwrap_err();
    assert_eq!(problem, Problem::Listing, "more than 50,000 values");
    assert!(problem.to_string().contains("512 KiB"), "{problem}");
    let listing = list_of(tools(20, json!(vec![0; 30_000]))).await.unwrap();
    assert_eq!((listing.definitions.len(), listing.refused.len()), (0, 20));
    assert_eq!(listing.refused[0], DefinitionError::TooManyNodes);
}

#[tokio::test]
async fn a_schema_that_grows_exponentially_is_left_out() {
    let reference = |number| json!({"$ref": format!("#/$defs/d{number}")});
    let mut definitions = json!({"d40": {"type": "string"}});
    for number in 0..40 {
        definitions[format!("d{number}")] = json!({"allOf": [reference(number + 1), reference(number + 1)]});
    }
    let schema = json!({"type": "object", "properties": {"a": reference(0)}, "$defs": definitions});
    let nested = (0..18).fold(
        json!({"properties": {"x": {}}}),
        |schema, _| json!({"if": schema, "then": true, "unevaluatedProperties": false}),
    );
    let patterns: Vec<_> = (0..900).map(|at| json!({"pattern": format!(r"^\p{{L}}{{12}}x{at}$")})).collect();
    let tool = |name: &str, schema: Value| json!({"name": name, "inputSchema": schema});
    let tools =
        [tool("wide", schema), tool("nested", nested), tool("patterns", json!({"anyOf": patterns})), act()];
    let listing = list_of(json!(tools)).await.unwrap();
    let limits = [SchemaError::TooLarge, SchemaError::Unevaluated, SchemaError::Patterns];
    assert_eq!(
        (listing.definitions.len(), listing.refused),
        (1, limits.map(DefinitionError::Limits).to_vec())
    );
}

#[tokio::test]
async fn one_malformed_tool_does_not_hide_the_others() {
    let server = Scripted::start(|request| match request.method().as_str() {
        "tools/list" => {
            let tools = json!([{"name": 7, "inputSchema": []}, act()]);
            json_body(
                "",
                &json!({"jsonrpc": "2.0", "id": request.message()["id"], "result": {"tools": tools}}),
            )
        }
        _ => ordinary(request),
    })
    .await;
    let listing = list(&server.url).await;
    assert_eq!((listing.definitions.len(), listing.refused.len()), (1, 1));
}

#[tokio::test]
async fn a_refused_credential_differs_from_a_broken_server() {
    for (status, expected) in
        [(401, Problem::Credential(401)), (403, Problem::Credential(403)), (500, Problem::Status(500))]
    {
        let server = Scripted::start(move |_| http(status, "", "secret details")).await;
        assert_eq!(call(&server, &Auth::None, Limits::default()).await.result, Err(expected));
    }
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", free.local_addr().unwrap()).parse().unwrap();
    drop(free);
    let listing = mcp::list_tools(&Everywhere, &url, &Auth::None, Limits::default()).await;
    assert_eq!(listing, Err(Problem::Unreachable));
}

/// Refuses one address, as the gateway refuses private ones.
struct Except(Url);

impl Reach for Except {
    fn client(&self, url: &Url) -> Option<Client> {
        if *url == self.0 { None } else { Everywhere.client(url) }
    }
}

#[tokio::test]
async fn client_credentials_become_a_token_and_only_the_token_is_sent() {
    let endpoint =
        Scripted::start(|_| json_body("", &json!({"access_token": "t0ken", "token_type": "Bearer"}))).await;
    let server = Scripted::start(ordinary).await;
    let oauth = || {
        Auth::ClientCredentials(ClientCredentials {
            token_url: endpoint.url.clone(),
            client_id: "me".to_owned().into(),
            client_secret: "tops3cret".to_owned().into(),
            scope: Some("read write".to_owned()),
        })
    };
    let outcome = call(&server, &oauth(), Limits::default()).await;
    assert_eq!(outcome.result, Ok(done()));
    assert!(["t0ken", "tops3cret"].iter().all(|secret| outcome.secrets.iter().any(|found| found == secret)));
    let asked = endpoint.seen.lock()[0].clone();
    assert!(asked.has("authorization: Basic bWU6dG9wczNjcmV0"), "{}", asked.head);
    assert!(asked.body.starts_with("grant_type=client_credentials&resource=http%3A%2F%2F"), "{}", asked.body);
    assert!(asked.body.ends_with("&scope=read+write"), "{}", asked.body);
    for request in server.seen.lock().iter() {
        assert!(request.has("authorization: Bearer t0ken"), "{}", request.head);
        assert!(!request.head.contains("tops3cret") && !request.head.contains("bWU6"));
    }
    let refused =
        mcp::list_tools(&Except(endpoint.url.clone()), &server.url, &oauth(), Limits::default()).await;
    assert_eq!(refused, Err(Problem::Address));
    let refused =
        mcp::list_tools(&Except(server.url.clone()), &server.url, &Auth::None, Limits::default()).await;
    assert_eq!(refused, Err(Problem::Address));
}

#[tokio::test]
async fn a_header_credential_is_sent_under_its_name_only() {
    let server = Scripted::start(ordinary).await;
    let auth = Auth::Header { name: "x-api-key".to_owned(), value: "tops3cret".to_owned().into() };
    assert_eq!(call(&server, &auth, Limits::default()).await.result, Ok(done()));
    for request in server.seen.lock().iter() {
        assert!(request.has("x-api-key: tops3cret") && !request.has("authorization:"), "{}", request.head);
    }
}
