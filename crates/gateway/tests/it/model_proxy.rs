//! The model proxy for agents: it takes our credentials and sends the provider's key, and never mixes the two.

use std::net::SocketAddr;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::IntoResponse as _;
use axum::{Router, routing};
use model::Script;
use proto::Role;
use serde_json::{Value, json};
use testkit::{FaultProxy, ScriptedModel};
use tokio::net::TcpListener;

use crate::call::{Answer, Call};
use crate::harness::{Setup, TestGateway, address_of};
use crate::logs::Captured;
use crate::people::{Person, api_key, login_code, org, person, sandbox_token, service_token, session};
use crate::raw::Raw;

const PROVIDER_KEY: &str = "sk-ant-the-real-key-of-the-provider";

fn prompt(text: &str, stream: bool) -> Value {
    json!({"model": "m", "max_tokens": 9, "stream": stream, "messages": [{"role": "user", "content": text}]})
}

async fn scripted(script: &str) -> ScriptedModel {
    ScriptedModel::start(Script::parse(script).unwrap()).await.unwrap()
}

/// A gateway in front of a provider, and a sandbox's API key.
async fn in_front_of(base: &str) -> (TestGateway, String) {
    let gateway = behind(Setup::sqlite(), base).start().await;
    let key = of_a_sandbox(&gateway).await;
    (gateway, key)
}

fn behind(setup: Setup, base: &str) -> Setup {
    setup.set("ANTHROPIC_API_KEY", PROVIDER_KEY).set("ANTHROPIC_BASE_URL", base)
}

async fn of_a_sandbox(gateway: &TestGateway) -> String {
    sandbox_token(&gateway.app, session(&gateway.app, org(&gateway.app).await).await).await
}

async fn agent(gateway: &TestGateway) -> Person {
    person(&gateway.app, org(&gateway.app).await, Role::Member).await
}

fn messages(gateway: &TestGateway, text: &str) -> Call {
    gateway.post("/llm/v1/messages", &prompt(text, true))
}

fn assert_refusal(answer: &Answer, status: u16, kind: &str) {
    assert_eq!(answer.status, status, "{}", answer.text());
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let body = answer.json();
    assert_eq!((&body["type"], &body["error"]["type"]), (&json!("error"), &json!(kind)), "{body}");
    assert!(body["error"]["message"].is_string(), "{body}");
}

#[tokio::test]
async fn without_a_valid_key_the_refusal_has_the_form_of_the_api() {
    let gateway = TestGateway::sqlite().await;
    let person = agent(&gateway).await;
    for (method, path) in [("POST", "messages"), ("POST", "messages/count_tokens"), ("GET", "models")] {
        let call = || gateway.call(method, &format!("/llm/v1/{path}")).json(&prompt("hi", true));
        assert_refusal(&call().send().await, 401, "authentication_error");
        for bad in ["", "x", "plk_00", &login_code(&gateway.app, &person).await] {
            assert_refusal(&call().header("x-api-key", bad).send().await, 401, "authentication_error");
            assert_refusal(&call().bearer(bad).send().await, 401, "authentication_error");
        }
        assert_refusal(&call().cookie(&person.token).send().await, 401, "authentication_error");
    }
}

#[tokio::test]
async fn of_two_keys_none_counts() {
    let gateway = TestGateway::sqlite().await;
    let person = agent(&gateway).await;
    let (key, token) = (api_key(&gateway.app, &person).await.1, &person.token);
    let call = || messages(&gateway, "hi");
    assert_eq!(
        call().header("x-api-key", &key).bearer(token).status().await,
        200,
        "one of each is one client"
    );
    for twice in [
        call().header("x-api-key", &key).header("x-api-key", &key),
        call().header("x-api-key", "x").header("x-api-key", &key),
        call().header("x-api-key", &key).header("x-api-key", &key).bearer(token),
        call().bearer(token).bearer(token),
        call().header("x-api-key", b"\xff").bearer(token),
    ] {
        assert_refusal(&twice.send().await, 401, "authentication_error");
    }
}

#[tokio::test]
async fn a_request_that_is_too_large_is_refused_after_its_key_was_checked() {
    let gateway = TestGateway::sqlite().await;
    let person = agent(&gateway).await;
    let call = || messages(&gateway, "hi").header("content-length", (model::MAX_BODY + 1).to_string());
    assert_refusal(&call().send().await, 401, "authentication_error");
    assert_refusal(&call().bearer(&person.token).send().await, 413, "request_too_large");
}

#[tokio::test]
async fn the_scripted_model_streams_to_every_credential_of_ours() {
    let gateway = TestGateway::sqlite().await;
    let person = agent(&gateway).await;
    let session = session(&gateway.app, person.org).await;
    for token in
        [api_key(&gateway.app, &person).await.1, person.token, sandbox_token(&gateway.app, session).await]
    {
        for call in
            [messages(&gateway, "hi").header("x-api-key", &token), messages(&gateway, "hi").bearer(&token)]
        {
            let answer = call.send().await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            assert_eq!(answer.header("content-type"), Some("text/event-stream; charset=utf-8"));
            assert!(
                answer.text().starts_with("event: message_start\n") && answer.text().contains("message_stop")
            );
        }
        let models = gateway.get("/llm/v1/models").bearer(&token).send().await;
        assert_eq!((models.status, models.json()["data"].is_array()), (200, true));
    }
}

#[tokio::test]
async fn only_sandboxes_reach_the_provider() {
    let provider = scripted("[[rule]]\n[[rule.step]]\ntext = \"x\"").await;
    let (gateway, sandbox) = in_front_of(&provider.url()).await;
    let person = agent(&gateway).await;
    let service = service_token(&gateway.app, Some(person.org));
    for token in [api_key(&gateway.app, &person).await.1, person.token, service] {
        assert_refusal(&messages(&gateway, "hi").bearer(&token).send().await, 403, "permission_error");
    }
    assert!(provider.requests().is_empty(), "{:?}", provider.requests());
    assert_eq!(messages(&gateway, "hi").bearer(&sandbox).status().await, 200);
}

#[tokio::test]
async fn the_provider_gets_its_own_key_and_nothing_of_the_callers() {
    let provider = scripted("[[rule]]\n[[rule.step]]\ntext = \"hello {prompt}\"\nchunk = 2").await;
    let logs = Captured::start();
    let (gateway, key) = in_front_of(&provider.url()).await;
    let call = messages(&gateway, "you").bearer(&key).cookie(&key).header("x-forwarded-for", "10.1.2.3");
    let call = call.header("anthropic-version", "2023-06-01").header("anthropic-beta", "a,b");
    let answer = call.send().await;
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (200, Some("text/event-stream; charset=utf-8"))
    );
    assert!(answer.text().contains("\"text\":\"he\"") && answer.text().ends_with("message_stop\"}\n\n"));
    let [seen] = &provider.requests()[..] else { panic!("{:?}", provider.requests()) };
    assert_eq!((seen.path.as_str(), seen.json()), ("/v1/messages", prompt("you", true)));
    assert_eq!(seen.headers["x-api-key"], PROVIDER_KEY);
    assert_eq!(seen.headers["anthropic-version"], "2023-06-01");
    assert_eq!(seen.headers["anthropic-beta"], "a,b");
    let expected = [
        "accept",
        "anthropic-beta",
        "anthropic-version",
        "content-length",
        "content-type",
        "host",
        "x-api-key",
    ];
    let mut names: Vec<_> = seen.headers.keys().map(axum::http::HeaderName::as_str).collect();
    names.sort_unstable();
    assert!(names.iter().all(|name| expected.contains(name)), "{names:?}");
    let (shown, logged) = (format!("{:?}{}", answer.headers, answer.text()), logs.text());
    for place in [&shown, &logged] {
        assert!(!place.contains(PROVIDER_KEY) && !place.contains(&key), "{place}");
    }
}

#[tokio::test]
async fn the_query_of_a_request_reaches_the_provider() {
    let provider = scripted("[[rule]]\n[[rule.step]]\ntext = \"x\"").await;
    let (gateway, key) = in_front_of(&format!("{}/", provider.url())).await;
    gateway.get("/llm/v1/models?limit=1&after_id=a%20b").bearer(&key).send().await;
    gateway.post("/llm/v1/messages?beta=true", &prompt("x", false)).bearer(&key).send().await;
    let paths: Vec<_> = provider.requests().into_iter().map(|request| request.path).collect();
    assert_eq!(paths, ["/v1/models?limit=1&after_id=a%20b", "/v1/messages?beta=true"]);
}

#[tokio::test]
async fn a_provider_that_is_down_is_a_502_in_the_form_of_the_api() {
    let provider = scripted("[[rule]]\n[[rule.step]]\ntext = \"back\"").await;
    let proxy = FaultProxy::start(address_of(&provider.url())).await.unwrap();
    let logs = Captured::start();
    let (gateway, key) = in_front_of(&format!("http://{}", proxy.address())).await;
    proxy.refuse().await;
    let down = messages(&gateway, "x").header("x-api-key", &key).send().await;
    assert_refusal(&down, 502, "api_error");
    assert!(!down.text().contains(&proxy.address().port().to_string()), "it tells where the provider is");
    assert!(
        logs.text().contains("the model provider cannot be reached") && !logs.text().contains(PROVIDER_KEY)
    );
    proxy.heal().await.unwrap();
    assert_eq!(messages(&gateway, "x").header("x-api-key", &key).status().await, 200);
}

#[tokio::test]
async fn a_refusal_of_the_provider_is_passed_on_with_its_waiting_time() {
    let script =
        "[[rule]]\n[[rule.step]]\nerror = { status = 429, message = \"slow down\", retry_after_ms = 1500 }";
    let provider = scripted(script).await;
    let (gateway, key) = in_front_of(&provider.url()).await;
    let answer = messages(&gateway, "x").bearer(&key).send().await;
    assert_eq!(
        (answer.status, answer.header("retry-after"), answer.header("retry-after-ms")),
        (429, Some("2"), Some("1500"))
    );
    assert_eq!(answer.json()["error"]["message"], "slow down");
}

#[tokio::test]
async fn a_redirect_of_the_provider_does_not_carry_the_key_away() {
    let thief = scripted("[[rule]]\n[[rule.step]]\ntext = \"thanks\"").await;
    let location = HeaderValue::from_str(&format!("{}/v1/messages", thief.url())).unwrap();
    let redirect =
        move || async { (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, location)]).into_response() };
    let provider = serve(Router::new().fallback(routing::any(redirect))).await;
    let (gateway, key) = in_front_of(&format!("http://{provider}")).await;
    let answer = messages(&gateway, "x").bearer(&key).send().await;
    assert_eq!(thief.requests().len(), 0, "the key went to {}", thief.url());
    assert_eq!((answer.status, answer.header("location")), (307, None));
}

#[tokio::test]
async fn bytes_before_a_planned_disconnect_arrive() {
    let setup = Setup::sqlite();
    let script = setup.directory().join("model.toml");
    std::fs::write(&script, "[[rule]]\n[[rule.step]]\ntext = \"one two three\"\nchunk = 1\ndrop_after = 5")
        .unwrap();
    let gateway = setup.set("PROLIFERATE_MODEL_SCRIPT", script.to_str().unwrap()).start().await;
    let key = api_key(&gateway.app, &agent(&gateway).await).await.1;
    let running = gateway.serve();
    // Each request differs, because the script interrupts each distinct request once.
    for at in 0..10 {
        let mut client = Raw::open(running.address).await;
        let body = prompt(&format!("hi {at}"), true).to_string();
        let length = body.len();
        let head = format!(
            "POST /llm/v1/messages HTTP/1.1\r\nHost: t\r\nx-api-key: {key}\r\nContent-Length: {length}"
        );
        client.send(format!("{head}\r\n\r\n{body}")).await;
        let said = client.rest().await;
        assert!(said.starts_with("HTTP/1.1 200"), "{said}");
        assert_eq!(said.matches("event: ").count(), 5, "{said}");
        assert!(!said.ends_with("0\r\n\r\n"), "it was not cut: {said}");
    }
}

pub(crate) async fn serve(router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service = hyper_util::service::TowerToHyperService::new(router.clone());
            let stream = hyper_util::rt::TokioIo::new(stream);
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(stream, service));
        }
    });
    address
}

#[tokio::test]
async fn a_database_that_is_down_is_not_a_bad_key() {
    let url = crate::harness::fresh_database().await;
    let proxy = FaultProxy::start(address_of(&url)).await.unwrap();
    let setup = Setup::postgres().await.set("DATABASE_URL", &crate::harness::through(&url, proxy.address()));
    let gateway = setup.start().await;
    let person = agent(&gateway).await;
    let key = api_key(&gateway.app, &person).await.1;
    proxy.refuse().await;
    proxy.reset_now();
    let answer = messages(&gateway, "x").bearer(&key).send().await;
    assert_refusal(&answer, 503, "api_error");
    proxy.heal().await.unwrap();
    assert_eq!(messages(&gateway, "x").bearer(&key).status().await, 200);
}
