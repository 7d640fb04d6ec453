//! Budgets and metering of the Chat Completions API, with endpoints that report their usage, that do not, and that
//! misbehave.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::IntoResponse as _;
use axum::{Router, routing};
use futures_util::stream::FuturesUnordered;
use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::harness::{Setup, client, within};
use crate::live::{Live, id};
use crate::live_budget::{Provider, counted};
use crate::model_proxy::serve;
use crate::people::sandbox_token;

const CHAT_PATH: &str = "/llm/v1/chat/completions";

fn request(max_tokens: i64, stream: bool) -> Value {
    json!({"model": "m", "max_tokens": max_tokens, "stream": stream, "messages": []})
}

/// A session behind an endpoint, at a cent per output token, and the token of its sandbox.
async fn behind(provider: Router, budget: Option<&str>) -> (Live, String, String) {
    let address = serve(provider).await;
    let base = format!("http://{address}/v1");
    let mut setup = Setup::sqlite().set("MODEL_PRICES", "*=0/10000").set("OPENAI_BASE_URL", &base);
    if let Some(budget) = budget {
        setup = setup.set("SESSION_BUDGET_DOLLARS", budget);
    }
    let live = Live::with(setup).await;
    let session = live.session().await;
    let token = sandbox_token(&live.app, id(&session)).await;
    (live, session, token)
}

fn answering(kind: &'static str, body: impl Into<Bytes>) -> Router {
    let body = body.into();
    Router::new().fallback(routing::any(move || async move { ([(header::CONTENT_TYPE, kind)], body) }))
}

async fn ask(live: &Live, token: &str, body: &Value) -> (u16, Value) {
    live.ask("POST", CHAT_PATH, Some(token), body, None).await
}

#[tokio::test]
async fn the_scripted_model_is_metered_streamed_or_complete() {
    for stream in [true, false] {
        let live = Live::with(Setup::sqlite().set("MODEL_PRICES", "*=1/1")).await;
        let session = live.session().await;
        let token = sandbox_token(&live.app, id(&session)).await;
        let mut body = request(9, stream);
        body["messages"] = json!([{"role": "user", "content": "hi"}]);
        assert_eq!(ask(&live, &token, &body).await.0, 200);
        let used = counted(&live, &session).await;
        assert!(
            used.input_tokens > 0 && used.output_tokens > 0 && used.cost_micros > 0,
            "{stream}: {used:?}"
        );
    }
}

#[tokio::test]
async fn an_answer_without_usage_is_charged_by_its_bytes() {
    const EVENT_STREAM: &str = "text/event-stream";
    let stream = "data: {\"choices\":[{\"delta\":{\"content\":\"12345\"}}]}\n\ndata: [DONE]\n\n";
    let whole = r#"{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}]}"#;
    let endless = format!("data: {}", "x".repeat(1 << 20));
    let bytes = |text: &str| i64::try_from(text.len()).unwrap();
    for (kind, body, streamed, output) in [
        (EVENT_STREAM, stream, true, 5),
        ("application/json", whole, false, bytes(whole)),
        ("text/html", "<html>", false, 6),
        (EVENT_STREAM, endless.as_str(), true, 200),
        (EVENT_STREAM, "data: {\"usage\":{\"prompt_tokens\":\"x\"}}\n\n", true, 0),
    ] {
        let (live, session, token) = behind(answering(kind, body.to_owned()), None).await;
        let asked = request(200, streamed);
        assert_eq!(ask(&live, &token, &asked).await.0, 200);
        let used = counted(&live, &session).await;
        assert_eq!(used.output_tokens, output, "{body:.80}");
        assert!(used.input_tokens >= bytes(&asked.to_string()), "{used:?}");
        assert_eq!(used.cost_micros, output * 10_000);
    }
}

/// A stream that sends one chunk, and another text when the test releases it: the rest of the answer, or an error.
fn released(rest: Option<&'static str>) -> (Router, Arc<Semaphore>) {
    let release = Arc::new(Semaphore::new(0));
    let gate = Arc::clone(&release);
    let answer = move || {
        let gate = Arc::clone(&gate);
        async move {
            let first =
                Ok(Bytes::from_static(b"data: {\"choices\":[{\"delta\":{\"content\":\"hal\"}}]}\n\n"));
            let second = async move {
                gate.acquire().await.unwrap().forget();
                rest.map(|text| Bytes::from_static(text.as_bytes()))
                    .ok_or_else(|| std::io::Error::other("cut"))
            };
            let body = Body::from_stream(stream::iter([first]).chain(stream::once(second)));
            ([(header::CONTENT_TYPE, "text/event-stream")], body).into_response()
        }
    };
    (Router::new().fallback(routing::any(answer)), release)
}

#[tokio::test]
async fn an_aborted_answer_costs_its_reported_usage_or_else_its_worst_case() {
    let usage =
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3}}\n\ndata: [DONE]\n\n";
    for (rest, output) in [(Some(usage), 3), (None, 50)] {
        let (provider, release) = released(rest);
        let (live, session, token) = behind(provider, None).await;
        let asked = client()
            .post(live.gateway.url(CHAT_PATH))
            .bearer_auth(&token)
            .body(request(50, true).to_string());
        let mut answer = within(asked.send()).await.unwrap();
        assert!(within(answer.chunk()).await.unwrap().is_some());
        drop(answer);
        release.add_permits(1);
        assert_eq!(counted(&live, &session).await.output_tokens, output, "{rest:?}");
    }
}

#[tokio::test]
async fn a_budget_lowers_a_request_adds_a_missing_limit_and_refuses_what_it_cannot_bound() {
    // Half a dollar buys 5000 tokens.
    let prices = Setup::sqlite().set("MODEL_PRICES", "*=0/100").set("SESSION_BUDGET_DOLLARS", "0.5");
    let held = Provider::behind(prices).await;
    held.permits.add_permits(60);
    let (session, token) = held.agent().await;
    let ask = async |body: &Value| held.ask_alone(CHAT_PATH, &token, body).await;
    for (field, value) in
        [("n", json!(2)), ("web_search_options", json!({})), ("max_completion_tokens", json!(1))]
    {
        let mut odd = request(10, false);
        odd[field] = value;
        let (status, refused) = ask(&odd).await;
        assert_eq!((status, &refused["error"]["type"]), (400, &json!("invalid_request_error")), "{refused}");
    }
    let used = store::Usage { cost_micros: 350_000, ..store::Usage::default() };
    let (org, now) = (held.live.ada.org, held.live.app.clock.now());
    held.live.app.store.add_usage(org, id(&session), "m", used, now).await.unwrap();
    assert_eq!(ask(&request(300, false)).await.0, 200);
    assert_eq!(held.seen()[0]["max_tokens"], 300, "a request that fits is not changed");
    // The remaining budget buys 1200 tokens.
    assert_eq!(ask(&json!({"model": "m", "messages": []})).await.0, 200);
    assert_eq!(held.seen(), [json!({"max_tokens": 1200, "model": "m", "messages": []})]);
    let (status, refused) = ask(&request(300, false)).await;
    assert_eq!((status, &refused["error"]["type"]), (402, &json!("insufficient_quota")), "{refused}");
    let used = held.live.app.store.session_usage(org, id(&session)).await.unwrap();
    assert_eq!(used.cost_micros, 500_000, "all of the budget, and no more");
}

#[tokio::test]
async fn concurrent_requests_of_both_apis_never_exceed_a_budget() {
    let prices = Setup::sqlite().set("MODEL_PRICES", "*=10/100").set("SESSION_BUDGET_DOLLARS", "0.5");
    let held = Provider::behind(prices).await;
    held.permits.add_permits(10_000);
    let (session, token) = held.agent().await;
    let ask = async |at: usize| {
        let path = if at.is_multiple_of(2) { CHAT_PATH } else { "/llm/v1/messages" };
        let text = "x".repeat(at * 97 % 1500);
        let message = json!([{"role": "user", "content": text}]);
        let body = json!({"model": "m", "max_tokens": 1 + at * 613 % 9_000, "messages": message});
        held.live.ask("POST", path, Some(&token), &body, None).await
    };
    let mut all: FuturesUnordered<_> = (0..100).map(ask).collect();
    while let Some((status, answer)) = within(all.next()).await {
        assert!([200, 402, 429].contains(&status), "{answer}");
    }
    let mut more = 0;
    while held.ask_alone(CHAT_PATH, &token, &request(64_000, false)).await.0 == 200 {
        more += 1;
        assert!(more < 1_000, "the budget never ends");
    }
    let used = held.live.app.store.session_usage(held.live.ada.org, id(&session)).await.unwrap();
    assert!((390_000..=500_000).contains(&used.cost_micros), "{used:?}");
}

#[tokio::test]
async fn a_stop_charges_what_it_cuts_off_at_its_worst_case() {
    let (provider, _release) = released(None);
    let (live, session, token) = behind(provider, None).await;
    let org = live.ada.org;
    let asked =
        client().post(live.gateway.url(CHAT_PATH)).bearer_auth(&token).body(request(50, true).to_string());
    let mut answer = within(asked.send()).await.unwrap();
    assert!(within(answer.chunk()).await.unwrap().is_some());
    let gateway = live.gateway;
    gateway.life.soft.cancel();
    gateway.life.hard.cancel();
    let (ended, setup) = gateway.finished().await;
    assert!(!ended, "a request was cut off, and that is reported");
    let gateway = setup.start().await;
    let used = gateway.app.store.session_usage(org, id(&session)).await.unwrap();
    assert_eq!((used.requests, used.output_tokens), (1, 50));
}
