//! Session budgets: usage is counted while the model answers, and a session that exceeds its budget pauses and says
//! so.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Bytes;
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

const MESSAGES_PATH: &str = "/llm/v1/messages";

/// Starts a gateway on which a token costs a dollar and the budget suffices for one request.
async fn dear() -> Live {
    let setup = Setup::sqlite().set("MODEL_PRICES", "*=1000000/1000000").set("SESSION_BUDGET_DOLLARS", "140");
    let live = Live::with(setup).await;
    live.agent.behave(|manner| manner.echoes = true);
    live
}

/// Sends a model request with the token of the session's agent.
async fn model(live: &Live, token: &str, stream: bool) -> (u16, Value) {
    let messages = json!([{"role": "user", "content": "hi"}]);
    let body = json!({"model": "claude-sonnet-4-6", "max_tokens": 9, "stream": stream, "messages": messages});
    live.ask("POST", "/llm/v1/messages", Some(token), &body, None).await
}

/// Waits until the session has any usage, and returns it.
pub(crate) async fn counted(live: &Live, session: &str) -> store::Usage {
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
async fn usage_is_counted_for_streamed_and_complete_responses() {
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
        let spent = live.app.store.org_budget(live.ada.org).await.unwrap().spent_micros;
        assert_eq!(spent, used.cost_micros);
    }
}

#[tokio::test]
async fn a_session_over_its_budget_pauses_with_the_reason_and_continues_with_a_larger_one() {
    let live = dear().await;
    let session = live.session().await;
    let mut socket = live.running(&session).await;
    let token = sandbox_token(&live.app, id(&session)).await;
    assert_eq!(model(&live, &token, true).await.0, 200);
    let refused = within(async {
        loop {
            // Usage of a finished request is recorded in the background; its reservation is held until then.
            match model(&live, &token, true).await {
                (200 | 429, _) => {}
                other => break other,
            }
        }
    })
    .await;
    assert_eq!((refused.0, &refused.1["error"]["type"]), (402, &json!("billing_error")), "{}", refused.1);
    let frames = socket.until(|frame| is_status(frame, "paused")).await;
    let why = refused.1["error"]["message"].as_str().unwrap();
    assert!(why.starts_with("This request could cost up to 136.50 dollars, and "), "{why}");
    assert!(why.contains(" of this session's budget of 140.00 dollars are left. "), "{why}");
    assert!(
        why.ends_with("Start a new session or raise SESSION_BUDGET_DOLLARS, or send a shorter conversation."),
        "{why}"
    );
    assert_eq!(of_type(&frames, "error")[0]["payload"]["message"], why);
    assert_eq!(frames.last().unwrap()["payload"]["message"], why);
    let record = live.app.store.session_any(id(&session)).await.unwrap().unwrap();
    assert_eq!((record.status, record.pause_reason), (SessionStatus::Paused, Some(PauseReason::CreditLimit)));
    // The fake agent does not use our model, so it can answer. The session must resume and run again.
    socket.prompt("more").await;
    let frames = socket.until_type("turn_complete").await;
    assert_eq!(tokens(&frames), "echo: more");
    let record = live.app.store.session_any(id(&session)).await.unwrap().unwrap();
    assert_eq!((record.status, record.pause_reason), (SessionStatus::Running, None));
    // The second model request over budget pauses the session again.
    assert_eq!(model(&live, &token, true).await.0, 402);
    socket.until(|frame| is_status(frame, "paused")).await;
}

/// A model provider that needs a permit for each answer and always reports the maximum usage: every request byte as a
/// cache-write token, and every allowed output token.
pub(crate) struct Provider {
    pub(crate) live: Live,
    pub(crate) permits: Arc<Semaphore>,
    /// One permit for each request that the provider has received.
    arrived: Arc<Semaphore>,
    seen: Arc<Mutex<Vec<Value>>>,
}

impl Provider {
    /// Ten tokens cost a tenth of a dollar, so a budget of half a dollar pays for five such answers.
    async fn start() -> Self {
        Self::with("*=0/10000").await
    }

    async fn with(prices: &str) -> Self {
        Self::behind(Setup::sqlite().set("MODEL_PRICES", prices).set("SESSION_BUDGET_DOLLARS", "0.5")).await
    }

    pub(crate) async fn behind(setup: Setup) -> Self {
        let (permits, arrived) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let all = (Arc::clone(&permits), Arc::clone(&arrived), Arc::clone(&seen));
        let answer = move |body: Bytes| {
            let (gate, told, seen) = all.clone();
            async move {
                let asked: Value = serde_json::from_slice(&body).unwrap();
                // The names of both APIs.
                let usage = json!({"input_tokens": 0, "output_tokens": asked["max_tokens"],
                    "cache_creation_input_tokens": body.len(),
                    "prompt_tokens": body.len(), "completion_tokens": asked["max_tokens"]});
                seen.lock().unwrap().push(asked);
                told.add_permits(1);
                gate.acquire().await.unwrap().forget();
                let body = json!({"model": "m", "content": [], "usage": usage}).to_string();
                ([(header::CONTENT_TYPE, "application/json")], body).into_response()
            }
        };
        let provider = serve(Router::new().fallback(routing::any(answer))).await;
        let base = format!("http://{provider}");
        let setup = setup.set("ANTHROPIC_API_KEY", "sk-ant-x").set("ANTHROPIC_BASE_URL", &base);
        let setup = setup.set("OPENAI_BASE_URL", &format!("{base}/v1"));
        Self { live: Live::with(setup).await, permits, arrived, seen }
    }

    pub(crate) async fn agent(&self) -> (String, String) {
        let session = self.live.session().await;
        let token = sandbox_token(&self.live.app, id(&session)).await;
        (session, token)
    }

    /// Returns and clears the requests that the provider has received.
    pub(crate) fn seen(&self) -> Vec<Value> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }

    /// Retries a request while concurrent ones make the gateway answer 429.
    pub(crate) async fn ask_alone(&self, path: &str, token: &str, body: &Value) -> (u16, Value) {
        within(async {
            loop {
                match self.live.ask("POST", path, Some(token), body, None).await {
                    (429, _) => {}
                    other => break other,
                }
            }
        })
        .await
    }

    /// Waits until the provider has received one more request.
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
async fn concurrent_requests_cannot_spend_a_budget_twice() {
    let held = Provider::start().await;
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
            // Usage of a finished request is recorded in the background.
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
async fn sessions_share_their_organizations_budget_and_waiting_requests_get_a_retry_time() {
    let held = Provider::start().await;
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
async fn a_request_whose_client_disconnects_before_the_response_is_charged() {
    let held = Provider::start().await;
    let session = held.live.session().await;
    let token = sandbox_token(&held.live.app, id(&session)).await;
    tokio::select! {
        answer = held.ask(&token) => panic!("{answer:?}"),
        () = held.arrives() => {}
    }
    // The provider answers after the client has disconnected; its answer still determines the cost.
    held.permits.add_permits(1);
    let used = counted(&held.live, &session).await;
    assert_eq!((used.requests, used.output_tokens, used.cost_micros), (1, 10, 100_000));
}

#[tokio::test]
async fn a_request_over_the_remaining_budget_is_lowered_or_refused() {
    // Half a dollar buys 5000 tokens.
    let held = Provider::with("*=0/100").await;
    held.permits.add_permits(60);
    let (session, token) = held.agent().await;
    let thinking = json!({"type": "enabled", "budget_tokens": 32_000});
    let asked =
        json!({"model": "m", "max_tokens": 64_000, "thinking": thinking, "messages": [], "stream": true});
    held.live
        .app
        .store
        .add_usage(held.live.ada.org, id(&session), "m", spent(350_000), held.live.app.clock.now())
        .await
        .unwrap();
    assert_eq!(
        held.ask_alone(MESSAGES_PATH, &token, &json!({"model": "m", "max_tokens": 300, "messages": []}))
            .await
            .0,
        200
    );
    assert_eq!(held.seen()[0]["max_tokens"], 300, "what fits is left alone");
    // The remaining budget is 0.5 - 0.35 - 0.03 dollars, which buys 1200 tokens.
    assert_eq!(held.ask_alone(MESSAGES_PATH, &token, &asked).await.0, 200);
    let expected = json!({"model": "m", "max_tokens": 1200, "thinking": {"type": "disabled"}, "messages": [], "stream": true});
    assert_eq!(held.seen(), [expected]);
    let (status, refused) = held.ask_alone(MESSAGES_PATH, &token, &asked).await;
    assert_eq!((status, &refused["error"]["type"]), (402, &json!("billing_error")), "{refused}");
    let why = "All of this session's budget of 0.50 dollars is spent. Start a new session or raise \
        SESSION_BUDGET_DOLLARS.";
    assert_eq!(refused["error"]["message"], why);
    // A prompt could not be answered either, and is refused immediately.
    let prompt = json!({"type": "prompt", "content": "more"});
    let path = format!("/proliferate/{session}/message");
    let (status, answer) = held.live.ask("POST", &path, Some(&held.live.ada.token), &prompt, None).await;
    assert_eq!((status, &answer["error"]), (402, &json!(why)), "{answer}");
    let used = held.live.app.store.session_usage(held.live.ada.org, id(&session)).await.unwrap();
    assert_eq!(used.cost_micros, 500_000, "all of it, and no more");
}

fn spent(cost_micros: i64) -> store::Usage {
    store::Usage { cost_micros, ..store::Usage::default() }
}

#[tokio::test]
async fn concurrent_requests_never_exceed_a_budget() {
    let held = Provider::with("*=10/100").await;
    held.live.app.store.set_org_limits(held.live.ada.org, Some(700_000), None).await.unwrap();
    held.permits.add_permits(10_000);
    let agents = [held.agent().await, held.agent().await];
    let ask = async |at: usize| {
        let text = "x".repeat(at * 97 % 1500);
        let body = json!({"model": "m", "max_tokens": 1 + at * 613 % 9_000, "system": text, "messages": []});
        held.live.ask("POST", "/llm/v1/messages", Some(&agents[at % 2].1), &body, None).await
    };
    let mut all: FuturesUnordered<_> = (0..200).map(ask).collect();
    let mut passed = 0;
    while let Some((status, answer)) = within(all.next()).await {
        assert!([200, 402, 429].contains(&status), "{answer}");
        passed += i64::from(status == 200);
    }
    let mut sum = 0;
    for (session, token) in &agents {
        // Continue until too little budget is left for a useful request.
        let last = json!({"model": "m", "max_tokens": 64_000, "messages": []});
        while held.ask_alone(MESSAGES_PATH, token, &last).await.0 == 200 {
            passed += 1;
            assert!(passed < 1_000, "the budget never ends");
        }
        let used = held.live.app.store.session_usage(held.live.ada.org, id(session)).await.unwrap();
        assert!(used.cost_micros <= 500_000, "{used:?}");
        sum += used.cost_micros;
    }
    assert!((590_000..=700_000).contains(&sum), "{sum} after {passed}");
}

#[tokio::test]
async fn under_a_budget_requests_of_unknown_cost_are_refused() {
    let held = Provider::with("*=0/100").await;
    held.permits.add_permits(60);
    let (_, token) = held.agent().await;
    let search = json!([{"type": "web_search_20250305", "name": "web_search"}]);
    for (more, why) in [
        (json!({"tools": search}), "the provider runs `web_search_20250305` itself"),
        (json!({"mcp_servers": []}), "unknown field `mcp_servers`"),
        (json!({"max_tokens": 64_000.5}), "max_tokens must be a whole number"),
        (json!({"max_tokens": null}), "max_tokens must be a whole number"),
    ] {
        let mut body = tenth();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let (status, refused) = held.ask_alone(MESSAGES_PATH, &token, &body).await;
        assert_eq!((status, &refused["error"]["type"]), (400, &json!("invalid_request_error")), "{refused}");
        let message = refused["error"]["message"].as_str().unwrap();
        assert!(message.starts_with("A budget holds, and") && message.contains(why), "{message}");
    }
    assert_eq!(held.seen(), Vec::<Value>::new());
}

#[tokio::test]
async fn under_a_budget_a_model_without_a_price_is_refused_by_name() {
    let held = Provider::behind(Setup::sqlite().set("MODEL_PRICES", "claude-opus=5/25")).await;
    held.permits.add_permits(60);
    let (session, token) = held.agent().await;
    assert_eq!(
        held.ask_alone(MESSAGES_PATH, &token, &tenth()).await.0,
        200,
        "without a budget nobody asks for the price"
    );
    held.live.app.store.set_org_limits(held.live.ada.org, Some(9_000_000), None).await.unwrap();
    let text = |model: &str| {
        format!(
            "The model {model} has no price, and a budget holds: say in MODEL_PRICES what it costs, e.g. \
             {model}=3/15, or *=3/15 for all"
        )
    };
    let (status, refused) = held.ask_alone(MESSAGES_PATH, &token, &tenth()).await;
    assert_eq!((status, &refused["error"]["message"]), (402, &json!(text("m"))));
    let opus = json!({"model": "claude-opus-4-6", "max_tokens": 9, "messages": []});
    assert_eq!(held.ask_alone(MESSAGES_PATH, &token, &opus).await.0, 200, "this one has a price");
    // The same error is reported before there is a sandbox.
    let create = |model: &str| json!({"sessionType": "coding", "clientType": "web", "agentConfig": {"modelId": model}});
    let ask = async |path: &str, body: &Value| {
        held.live.ask("POST", path, Some(&held.live.ada.token), body, None).await
    };
    for (path, body) in [
        ("/proliferate/sessions".to_owned(), create("claude-sonnet-4.6")),
        (format!("/proliferate/{session}/message"), json!({"type": "prompt", "content": "hi"})),
    ] {
        let (status, refused) = ask(&path, &body).await;
        assert_eq!((status, &refused["error"]), (402, &json!(text("claude-sonnet-4-6"))), "{path}");
        assert_eq!(refused["details"]["billingCode"], "BILLING_NOT_CONFIGURED");
    }
    assert_eq!(ask("/proliferate/sessions", &create("claude-opus-4.6")).await.0, 201);
}

/// Restarts the gateway and reads the usage of a session from its database.
async fn counted_after(setup: Setup, org: proto::OrgId, session: &str) -> store::Usage {
    let gateway = setup.start().await;
    let used = gateway.app.store.session_usage(org, id(session)).await.unwrap();
    gateway.stop().await;
    used
}

#[tokio::test]
async fn a_stop_waits_for_the_model_and_counts_its_answer() {
    let held = Provider::start().await;
    let (session, token) = held.agent().await;
    let (org, permits) = (held.live.ada.org, Arc::clone(&held.permits));
    let url = held.live.gateway.url("/llm/v1/messages");
    let asked = tokio::spawn(client().post(url.clone()).bearer_auth(&token).body(tenth().to_string()).send());
    held.arrives().await;
    // The client disconnects, so that the gateway has no connection left to wait for.
    asked.abort();
    let _ = asked.await;
    let (gateway, app) = (held.live.gateway, held.live.app.clone());
    gateway.life.soft.cancel();
    within(app.process.closing.cancelled()).await;
    permits.add_permits(1);
    let (ended, setup) = gateway.finished().await;
    assert!(ended, "nothing was cut off");
    let used = counted_after(setup, org, &session).await;
    assert_eq!((used.requests, used.output_tokens, used.cost_micros), (1, 10, 100_000));
}

#[tokio::test]
async fn requests_cut_off_by_a_stop_are_charged_at_their_worst_case() {
    let held = Provider::with("*=1000/10000").await;
    let (session, token) = held.agent().await;
    let org = held.live.ada.org;
    let body = tenth().to_string();
    let url = held.live.gateway.url("/llm/v1/messages");
    let asked = tokio::spawn(client().post(url).bearer_auth(&token).body(body.clone()).send());
    held.arrives().await;
    let gateway = held.live.gateway;
    gateway.life.soft.cancel();
    gateway.life.hard.cancel();
    let (ended, setup) = gateway.finished().await;
    assert!(!ended, "a request was cut off, and that is said");
    let _ = within(asked).await;
    let used = counted_after(setup, org, &session).await;
    assert_eq!((used.requests, used.output_tokens), (1, 10), "all of the answer that was asked for");
    assert_eq!(used.cache_write_tokens, i64::try_from(body.len()).unwrap(), "and all of the request");
}

#[tokio::test]
async fn no_model_request_starts_while_the_gateway_stops() {
    let held = Provider::start().await;
    let (_, token) = held.agent().await;
    held.live.app.process.closing.cancel();
    let (status, refused) = held.ask(&token).await;
    assert_eq!((status, &refused["error"]["type"]), (503, &json!("api_error")), "{refused}");
    assert!(held.seen().is_empty());
}

#[tokio::test]
async fn a_lost_response_is_charged_at_its_worst_case() {
    // A provider that accepts requests and closes the connection.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 64 * 1024];
            let _ = tokio::io::AsyncReadExt::read(&mut stream, &mut request).await;
        }
    });
    let setup = Setup::sqlite().set("MODEL_PRICES", "*=0/10000").set("ANTHROPIC_API_KEY", "sk-ant-x");
    let live = Live::with(setup.set("ANTHROPIC_BASE_URL", &base)).await;
    let session = live.session().await;
    let token = sandbox_token(&live.app, id(&session)).await;
    let (status, _) = live.ask("POST", "/llm/v1/messages", Some(&token), &tenth(), None).await;
    assert_eq!(status, 502);
    let used = counted(&live, &session).await;
    assert_eq!((used.requests, used.output_tokens, used.cost_micros), (1, 10, 100_000));
}

#[tokio::test]
async fn an_aborted_response_without_a_stream_is_charged_at_its_worst_case() {
    let (head_sent, told) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (sent, ended) = (Arc::clone(&head_sent), Arc::clone(&told));
    // The provider sends the response head at once, and the body only when the test releases it.
    let answer = move |_: Bytes| {
        let (sent, ended) = (Arc::clone(&sent), Arc::clone(&ended));
        async move {
            sent.add_permits(1);
            let body = futures_util::stream::once(async move {
                let _told = ended.acquire().await;
                Err::<Bytes, _>(std::io::Error::other("cut"))
            });
            ([(header::CONTENT_TYPE, "application/json")], axum::body::Body::from_stream(body))
                .into_response()
        }
    };
    let provider = serve(Router::new().fallback(routing::any(answer))).await;
    let setup = Setup::sqlite().set("MODEL_PRICES", "*=0/10000").set("ANTHROPIC_API_KEY", "sk-ant-x");
    let live = Live::with(setup.set("ANTHROPIC_BASE_URL", &format!("http://{provider}"))).await;
    let session = live.session().await;
    let token = sandbox_token(&live.app, id(&session)).await;
    let request = client().post(live.gateway.url("/llm/v1/messages")).bearer_auth(&token);
    let answer = within(request.body(tenth().to_string()).send()).await.unwrap();
    assert_eq!(answer.status().as_u16(), 200);
    within(head_sent.acquire()).await.unwrap().forget();
    drop(answer);
    told.add_permits(1);
    let used = counted(&live, &session).await;
    assert_eq!((used.requests, used.output_tokens, used.cost_micros), (1, 10, 100_000));
}
