//! The model proxy for the Chat Completions API: keys stay apart, and errors have the form of that API.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::IntoResponse as _;
use axum::{Router, routing};
use model::Script;
use proto::Role;
use serde_json::{Value, json};
use testkit::ScriptedModel;

use crate::call::{Answer, Call};
use crate::harness::{Setup, TestGateway};
use crate::logs::Captured;
use crate::model_proxy::serve;
use crate::people::{api_key, org, person, sandbox_token, session};

const CHAT_PATH: &str = "/llm/v1/chat/completions";
const PROVIDER_KEY: &str = "sk-the-real-key-of-the-endpoint";
const SCRIPT: &str = "[[rule]]\n[[rule.step]]\ntext = \"hello {prompt}\"";

fn prompt(text: &str, stream: bool) -> Value {
    json!({"model": "m", "max_tokens": 9, "stream": stream, "messages": [{"role": "user", "content": text}]})
}

async fn scripted() -> ScriptedModel {
    ScriptedModel::start(Script::parse(SCRIPT).unwrap()).await.unwrap()
}

/// A gateway in front of an endpoint, and the token of a sandbox.
async fn in_front_of(setup: Setup, base: &str) -> (TestGateway, String) {
    let gateway = setup.set("OPENAI_BASE_URL", base).start().await;
    let session = session(&gateway.app, org(&gateway.app).await).await;
    let token = sandbox_token(&gateway.app, session).await;
    (gateway, token)
}

fn chat(gateway: &TestGateway, text: &str) -> Call {
    gateway.post(CHAT_PATH, &prompt(text, true))
}

fn assert_refusal(answer: &Answer, status: u16, kind: &str) {
    assert_eq!(answer.status, status, "{}", answer.text());
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let body = answer.json();
    assert_eq!((&body["error"]["type"], &body["type"]), (&json!(kind), &Value::Null), "{body}");
    assert!(body["error"]["message"].is_string() && body["error"]["param"].is_null(), "{body}");
}

#[tokio::test]
async fn refusals_have_the_form_of_the_api() {
    let provider = scripted().await;
    let (gateway, token) = in_front_of(Setup::sqlite(), &format!("{}/v1", provider.url())).await;
    assert_refusal(&chat(&gateway, "hi").send().await, 401, "authentication_error");
    assert_refusal(&chat(&gateway, "hi").bearer("pls_x").send().await, 401, "authentication_error");
    let ada = person(&gateway.app, org(&gateway.app).await, Role::Member).await;
    assert_refusal(&chat(&gateway, "hi").bearer(&ada.token).send().await, 403, "permission_error");
    let large = chat(&gateway, "hi").header("content-length", (model::MAX_BODY + 1).to_string());
    assert_refusal(&large.bearer(&token).send().await, 413, "invalid_request_error");
    assert!(provider.requests().is_empty());
    // The other API has no provider here, and says so in its own form.
    let answer = gateway.post("/llm/v1/messages", &prompt("hi", false)).bearer(&token).send().await;
    assert_eq!((answer.status, &answer.json()["error"]["type"]), (404, &json!("not_found_error")));
    assert!(answer.text().contains("ANTHROPIC_API_KEY"), "{}", answer.text());
    let gateway = Setup::sqlite().set("ANTHROPIC_API_KEY", "k").start().await;
    let token = sandbox_token(&gateway.app, session(&gateway.app, org(&gateway.app).await).await).await;
    let answer = chat(&gateway, "hi").bearer(&token).send().await;
    assert_refusal(&answer, 404, "invalid_request_error");
    assert!(answer.text().contains("OPENAI_BASE_URL"), "{}", answer.text());
}

#[tokio::test]
async fn the_endpoint_gets_its_own_key_and_nothing_of_the_callers() {
    let provider = scripted().await;
    let logs = Captured::start();
    let setup = Setup::sqlite().set("OPENAI_API_KEY", PROVIDER_KEY);
    let (gateway, token) = in_front_of(setup, &format!("{}/v1/", provider.url())).await;
    let call = chat(&gateway, "you").bearer(&token).cookie(&token).header("x-forwarded-for", "10.1.2.3");
    let answer = call.header("openai-organization", "org").send().await;
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (200, Some("text/event-stream; charset=utf-8"))
    );
    assert!(answer.text().contains("hello you") && answer.text().ends_with("data: [DONE]\n\n"));
    let [seen] = &provider.requests()[..] else { panic!("{:?}", provider.requests()) };
    let mut expected = prompt("you", true);
    expected["stream_options"] = json!({"include_usage": true});
    assert_eq!((seen.path.as_str(), seen.json()), ("/v1/chat/completions", expected));
    assert_eq!(seen.headers["authorization"], format!("Bearer {PROVIDER_KEY}"));
    let names: Vec<_> = seen.headers.keys().map(axum::http::HeaderName::as_str).collect();
    let known = ["accept", "authorization", "content-length", "content-type", "host"];
    assert!(names.iter().all(|name| known.contains(name)), "{names:?}");
    let (shown, logged) = (format!("{:?}{}", answer.headers, answer.text()), logs.text());
    for place in [&shown, &logged] {
        assert!(!place.contains(PROVIDER_KEY) && !place.contains(&token), "{place}");
    }
}

/// Some endpoints name the key that they refuse; from the proxy, it would reach the sandbox, the database and members.
#[tokio::test]
async fn a_key_that_the_endpoint_repeats_does_not_reach_the_sandbox() {
    let repeat = |status: StatusCode| {
        let sent = format!("bad key Bearer {PROVIDER_KEY}");
        let body = json!({"error": {"message": sent, "hex": hex::encode(PROVIDER_KEY), "code": "bad_key"}});
        (
            status,
            [("request-id", format!("r-{PROVIDER_KEY}")), ("retry-after", "7".to_owned())],
            axum::Json(body),
        )
    };
    let endpoint = move |request: axum::extract::Request| async move {
        let path = request.uri().path().to_owned();
        match path.as_str() {
            "/long/chat/completions" => (StatusCode::UNAUTHORIZED, "x".repeat(1 << 20)).into_response(),
            "/fine/chat/completions" => repeat(StatusCode::OK).into_response(),
            _ => repeat(StatusCode::UNAUTHORIZED).into_response(),
        }
    };
    let provider = serve(Router::new().fallback(routing::any(endpoint))).await;
    for (directory, status) in [("bad", 401), ("fine", 200), ("long", 401)] {
        let setup = Setup::sqlite().set("OPENAI_API_KEY", PROVIDER_KEY);
        let (gateway, token) = in_front_of(setup, &format!("http://{provider}/{directory}")).await;
        let answer = chat(&gateway, "x").bearer(&token).send().await;
        let shown = format!("{:?}{}", answer.headers, answer.text());
        assert_eq!(answer.status, status, "{shown}");
        assert!(!shown.contains(PROVIDER_KEY), "{shown}");
        if directory == "long" {
            assert_refusal(&answer, 401, "authentication_error");
            continue;
        }
        let error = answer.json()["error"].clone();
        assert_eq!(
            (&error["message"], &error["code"]),
            (&json!("bad key Bearer [REDACTED]"), &json!("bad_key"))
        );
        assert_eq!((answer.header("retry-after"), answer.header("request-id")), (Some("7"), None));
        // A stream is searched for the key as it is only.
        assert_eq!(error["hex"] == "[REDACTED]", directory == "bad", "{error}");
        let known = gate::Secrets::redactor(
            &gateway.app.vault,
            gate::ToolScope { org: org(&gateway.app).await, session: None },
        )
        .await;
        assert_eq!(known.unwrap().text(&format!("it is {PROVIDER_KEY}")), "it is [REDACTED]");
    }
}

#[tokio::test]
async fn an_endpoint_without_a_key_gets_none() {
    let provider = scripted().await;
    let (gateway, token) = in_front_of(Setup::sqlite(), &format!("{}/v1", provider.url())).await;
    assert_eq!(chat(&gateway, "x").bearer(&token).status().await, 200);
    assert_eq!(gateway.get("/llm/v1/models?limit=1").bearer(&token).status().await, 200);
    let seen = provider.requests();
    assert!(seen.iter().all(|request| !request.headers.contains_key("authorization")), "{seen:?}");
    assert_eq!(seen[1].path, "/v1/models?limit=1");
}

#[tokio::test]
async fn a_redirect_does_not_carry_the_key_away_and_an_endpoint_that_is_down_is_a_502() {
    let thief = scripted().await;
    let location = HeaderValue::from_str(&format!("{}{CHAT_PATH}", thief.url())).unwrap();
    let redirect =
        move || async { (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, location)]).into_response() };
    let provider = serve(Router::new().fallback(routing::any(redirect))).await;
    let setup = Setup::sqlite().set("OPENAI_API_KEY", PROVIDER_KEY);
    let (gateway, token) = in_front_of(setup, &format!("http://{provider}/v1")).await;
    let answer = chat(&gateway, "x").bearer(&token).send().await;
    assert_eq!((answer.status, answer.header("location")), (307, None));
    assert_eq!(thief.requests().len(), 0, "the key was sent to {}", thief.url());
    let (gateway, token) = in_front_of(Setup::sqlite(), "http://127.0.0.1:1/v1").await;
    assert_refusal(&chat(&gateway, "x").bearer(&token).send().await, 502, "server_error");
}

#[tokio::test]
async fn the_scripted_model_answers_every_credential_of_ours() {
    let gateway = TestGateway::sqlite().await;
    let ada = person(&gateway.app, org(&gateway.app).await, Role::Member).await;
    let sandbox = sandbox_token(&gateway.app, session(&gateway.app, ada.org).await).await;
    for token in [api_key(&gateway.app, &ada).await.1, ada.token, sandbox] {
        let answer = chat(&gateway, "hi").bearer(&token).send().await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert!(answer.text().ends_with("data: [DONE]\n\n"), "{}", answer.text());
        let whole = gateway.post(CHAT_PATH, &prompt("hi", false)).bearer(&token).send().await;
        assert_eq!(whole.json()["choices"][0]["finish_reason"], "stop", "{}", whole.text());
    }
}
