//! What a session spends: counted while the model answers, and an end to it that pauses and says so.

use std::sync::Arc;
use std::time::Duration;

use axum::http::header;
use axum::response::IntoResponse as _;
use axum::{Router, routing};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use proto::{PauseReason, SessionStatus};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::harness::{Setup, client, within};
use crate::live::{Live, id, is_status, of_type, tokens};
use crate::model_proxy::serve;
use crate::people::sandbox_token;

/// Any token costs more than the whole budget.
async fn dear() -> Live {
    let setup = Setup::sqlite().set("MODEL_PRICES", "*=1000000/1000000").set("SESSION_BUDGET_DOLLARS", "0.5");
    let live = Live::with(setup).await;
    live.agent.behave(|manner| manner.echoes = true);
    live
}

/// Asks the model as the session's agent does.
async fn model(live: &Live, token: &str, stream: bool) -> (u16, Value) {
    let messages = json!([{"role": "user", "content": "hi"}]);
    let body = json!({"model": "claude-sonnet-4-6", "max_tokens": 9, "stream": stream, "messages": messages});
    live.ask("POST", "/llm/v1/messages", Some(token), &body, None).await
}

/// What the session used, once anything was counted.
async fn counted(live: &Live, session: &str) -> store::Usage {
    within(async {
        loop {
            let used = live.app.store.session_usage(live.ada.org, id(session)).await.unwrap();
            if used.requests > 0 {
                break used;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
}

#[tokio::test]
async fn what_the_model_used_is_counted_streamed_or_whole() {
    for stream in [true, false] {
        let live = dear().await;
        let session = live.session().await;
        let token = sandbox_token(&live.app, id(&session)).await;
        assert_eq!(model(&live, &token, stream).await.0, 200);
        let used = counted(&live, &session).await;
        assert_eq!(used.requests, 1);
        assert!(
            used.input_tokens > 0 && used.output_tokens > 0 && used.cost_micros > 0,
            "{stream}: {used:?}"
        );
        let models = live.app.store.org_usage(live.ada.org).await.unwrap();
        assert_eq!(models.iter().map(|used| used.model.as_str()).collect::<Vec<_>>(), ["claude-sonnet-4-6"]);
    }
}

#[tokio::test]
async fn a_session_that_has_spent_its_budget_pauses_says_so_and_goes_on_when_there_is_more() {
    let live = dear().await;
    let session = live.session().await;
    let mut socket = live.running(&session).await;
    let token = sandbox_token(&live.app, id(&session)).await;
    assert_eq!(model(&live, &token, true).await.0, 200);
    let refused = within(async {
        loop {
            // What has ended is counted in the background, and held until then.
            match model(&live, &token, true).await {
                (200 | 429, _) => {}
                other => break other,
            }
        }
    })
    .await;
    assert_eq!((refused.0, &refused.1["error"]["type"]), (402, &json!("billing_error")), "{}", refused.1);
    let frames = socket.until(|frame| is_status(frame, "paused")).await;
    assert!(of_type(&frames, "error")[0]["payload"]["message"].as_str().unwrap().contains("budget"));
    let record = live.app.store.session_any(id(&session)).await.unwrap().unwrap();
    assert_eq!((record.status, record.pause_reason), (SessionStatus::Paused, Some(PauseReason::CreditLimit)));
    // The agent at hand asks our model for nothing, so it can go on; what counts is that it does, and runs again.
    socket.prompt("more").await;
    let frames = socket.until_type("turn_complete").await;
    assert_eq!(tokens(&frames), "echo: more");
    let record = live.app.store.session_any(id(&session)).await.unwrap().unwrap();
    assert_eq!((record.status, record.pause_reason), (SessionStatus::Running, None));
    // And a second time it pauses again.
    assert_eq!(model(&live, &token, true).await.0, 402);
    socket.until(|frame| is_status(frame, "paused")).await;
}

/// A provider whose answers each need a permit, and use ten tokens that cost a cent each: of half a dollar, five fit.
struct Held {
    live: Live,
    permits: Arc<Semaphore>,
    /// One for each request that the provider got.
    arrived: Arc<Semaphore>,
}

impl Held {
    async fn start() -> Self {
        let (permits, arrived) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let (gate, told) = (Arc::clone(&permits), Arc::clone(&arrived));
        let answer = move || {
            let (gate, told) = (Arc::clone(&gate), Arc::clone(&told));
            async move {
                told.add_permits(1);
                gate.acquire().await.unwrap().forget();
                let usage = json!({"input_tokens": 0, "output_tokens": 10});
                let body = json!({"model": "m", "content": [], "usage": usage}).to_string();
                ([(header::CONTENT_TYPE, "application/json")], body).into_response()
            }
        };
        let provider = serve(Router::new().fallback(routing::any(answer))).await;
        let setup = Setup::sqlite().set("MODEL_PRICES", "*=0/10000").set("SESSION_BUDGET_DOLLARS", "0.5");
        let base = format!("http://{provider}");
        let setup = setup.set("ANTHROPIC_API_KEY", "sk-ant-x").set("ANTHROPIC_BASE_URL", &base);
        Self { live: Live::with(setup).await, permits, arrived }
    }

    /// Waits until the provider has got one more.
    async fn arrives(&self) {
        within(self.arrived.acquire()).await.unwrap().forget();
    }

    async fn ask(&self, token: &str) -> (u16, Value) {
        self.live.ask("POST", "/llm/v1/messages", Some(token), &tenth(), None).await
    }
}

/// A request that costs at most a tenth of a dollar.
fn tenth() -> Value {
    json!({"model": "m", "max_tokens": 10, "messages": []})
}

#[tokio::test]
async fn requests_at_once_cannot_spend_a_budget_twice() {
    let held = Held::start().await;
    let session = held.live.session().await;
    let token = sandbox_token(&held.live.app, id(&session)).await;
    let mut all: FuturesUnordered<_> = (0..60).map(|_| held.ask(&token)).collect();
    for _ in 0..55 {
        let (status, refused) = within(all.next()).await.unwrap();
        assert_eq!((status, &refused["error"]["type"]), (429, &json!("rate_limit_error")), "{refused}");
    }
    held.permits.add_permits(60);
    while let Some((status, answer)) = within(all.next()).await {
        assert_eq!(status, 200, "{answer}");
    }
    let (status, refused) = within(async {
        loop {
            // What has ended is counted in the background.
            match held.ask(&token).await {
                (429, _) => {}
                other => break other,
            }
        }
    })
    .await;
    assert_eq!((status, &refused["error"]["type"]), (402, &json!("billing_error")), "{refused}");
    let used = held.live.app.store.session_usage(held.live.ada.org, id(&session)).await.unwrap();
    assert_eq!((used.requests, used.cost_micros), (5, 500_000));
}

#[tokio::test]
async fn sessions_share_their_organisations_budget_and_whoever_must_wait_is_told_for_how_long() {
    let held = Held::start().await;
    held.live.app.store.set_org_limits(held.live.ada.org, Some(150_000), None).await.unwrap();
    let (one, two) = (held.live.session().await, held.live.session().await);
    let (one, two) =
        (sandbox_token(&held.live.app, id(&one)).await, sandbox_token(&held.live.app, id(&two)).await);
    let second = async {
        held.arrives().await;
        let request = client().post(held.live.gateway.url("/llm/v1/messages")).bearer_auth(&two);
        let answer = within(request.body(tenth().to_string()).send()).await.unwrap();
        held.permits.add_permits(60);
        (answer.status().as_u16(), answer.headers().get("retry-after").map(|text| text.as_bytes().to_owned()))
    };
    let (first, second) = tokio::join!(held.ask(&one), second);
    assert_eq!((first.0, second), (200, (429, Some(b"1".to_vec()))));
}

#[tokio::test]
async fn a_client_that_hangs_up_before_the_answer_has_still_asked() {
    let held = Held::start().await;
    let session = held.live.session().await;
    let token = sandbox_token(&held.live.app, id(&session)).await;
    tokio::select! {
        answer = held.ask(&token) => panic!("{answer:?}"),
        () = held.arrives() => {}
    }
    let used = counted(&held.live, &session).await;
    assert_eq!((used.requests, used.output_tokens), (1, 0));
    assert_eq!(used.input_tokens, i64::try_from(tenth().to_string().len().div_ceil(4)).unwrap());
}
