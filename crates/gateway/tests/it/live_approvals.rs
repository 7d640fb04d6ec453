//! Invocations that wait for approval, as the people who watch their session see them.

use std::time::Duration;

use clock::Clock;
use proto::{InvocationStatus, Role, RunStatus};
use serde_json::{Value, json};
use testkit::{EffectRecorder, Plan};

use crate::harness::{Setup, within};
use crate::live::{Live, On, id, is_status, of_type, on_both};
use crate::people::{Person, person, sandbox_token};
use crate::world::{DENIED_EVENTS, outcomes, tools};

on_both! {
    init_carries_the_requests_that_wait
    everybody_who_watches_learns_of_a_request_and_of_what_became_of_it
    an_approved_action_that_fails_is_completed_as_failed
    a_request_that_nobody_decides_ends_as_expired
}

/// Requests an action that waits, and returns the id of its invocation.
async fn request(live: &Live, session: &str, token: &str, params: Value) -> String {
    let path = format!("/proliferate/{session}/actions/invoke");
    let body = json!({"integration": "tools", "action": "effect.open", "params": params});
    let (status, answer, ..) = live.ask("POST", &path, Some(token), &body, None).await;
    assert_eq!(status, 202, "{answer}");
    answer["invocation"]["id"].as_str().unwrap().to_owned()
}

async fn approvals(live: &Live, session: &str) -> Value {
    live.init(session).await["payload"]["approvals"].clone()
}

async fn init_carries_the_requests_that_wait(on: On) {
    let effects = EffectRecorder::start().await.unwrap();
    let address = effects.url().trim_start_matches("http://").trim_end_matches('/').to_owned();
    let live = Live::with(on.setup().await.with_tools(&tools(&address), &address)).await;
    let (session, other) = (live.session().await, live.session().await);
    let mut socket = live.running(&session).await;
    let token = sandbox_token(&live.app, id(&session)).await;
    let admin = person(&live.app, live.ada.org, Role::Admin).await;
    assert_eq!(approvals(&live, &session).await, Value::Null);

    let params = json!({"note": "hello"});
    let first = request(&live, &session, &token, params).await;
    let announced = socket.until_type("action_approval_request").await.pop().unwrap();
    let second = request(&live, &session, &token, json!({})).await;
    let shown = approvals(&live, &session).await;
    assert_eq!(shown[0], announced["payload"], "`init` shows what was announced");
    assert_eq!(shown[0]["params"], json!({"note": "hello"}));
    assert_eq!((&shown[0]["invocationId"], &shown[1]["invocationId"]), (&json!(first), &json!(second)));
    assert_eq!(approvals(&live, &other).await, Value::Null, "another session has none");

    let live = live.restarted().await;
    assert_eq!(approvals(&live, &session).await, shown, "the requests survive a restart");
    let deny = format!("/v1/invocations/{first}/deny");
    assert_eq!(live.ask("POST", &deny, Some(&admin.token), &json!({}), None).await.0, 200);
    assert_eq!(approvals(&live, &session).await, json!([shown[1]]));
    let stop = format!("/proliferate/{session}/stop");
    let (status, answer, ..) = live.ask("POST", &stop, Some(&live.ada.token), &json!({}), None).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(approvals(&live, &session).await, Value::Null, "a stopped session expires its requests");
    let mut socket = live.watch(&session).await;
    live.prompt(&session, "go on").await;
    socket.until(|frame| is_status(frame, "running")).await;
    assert_eq!(decide(&live, &admin, &second, "approve").await.0, 410, "also once it runs again");
}

/// A gateway with tools, and an admin.
async fn acting(setup: Setup) -> (Live, Person, EffectRecorder) {
    let effects = EffectRecorder::start().await.unwrap();
    let address = effects.url().trim_start_matches("http://").trim_end_matches('/').to_owned();
    let live = Live::with(setup.with_tools(&tools(&address), &address)).await;
    let admin = person(&live.app, live.ada.org, Role::Admin).await;
    (live, admin, effects)
}

async fn decide(live: &Live, who: &Person, id: &str, act: &str) -> (u16, Value) {
    let path = format!("/v1/invocations/{id}/{act}");
    let (status, answer, ..) = live.ask("POST", &path, Some(&who.token), &json!({}), None).await;
    (status, answer)
}

async fn everybody_who_watches_learns_of_a_request_and_of_what_became_of_it(on: On) {
    let (live, admin, _effects) = acting(on.setup().await).await;
    let session = live.session().await;
    let mut sockets = [live.running(&session).await, live.running(&session).await];
    let token = sandbox_token(&live.app, id(&session)).await;
    let (done, denied) = (
        request(&live, &session, &token, json!({})).await,
        request(&live, &session, &token, json!({})).await,
    );
    assert_eq!(decide(&live, &admin, &done, "approve").await.0, 200);
    assert_eq!(decide(&live, &admin, &denied, "deny").await.0, 200);
    let mut seen = Vec::new();
    for socket in &mut sockets {
        let mut frames = socket.until_type("action_completed").await;
        if of_type(&frames, "action_approval_result").is_empty() {
            frames.extend(socket.until_type("action_approval_result").await);
        }
        let requests = of_type(&frames, "action_approval_request");
        let ids: Vec<_> = requests.iter().map(|frame| frame["payload"]["invocationId"].clone()).collect();
        assert_eq!(ids, [json!(done), json!(denied)]);
        let completed = of_type(&frames, "action_completed")[0].clone();
        assert_eq!(
            (&completed["payload"]["invocationId"], &completed["payload"]["status"]),
            (&json!(done), &json!("completed")),
            "{completed}"
        );
        let result = of_type(&frames, "action_approval_result")[0].clone();
        assert_eq!(
            (&result["payload"]["invocationId"], &result["payload"]["status"]),
            (&json!(denied), &json!("denied")),
            "{result}"
        );
        seen.push([requests[0].clone(), requests[1].clone(), completed, result]);
    }
    assert_eq!(seen[0], seen[1], "everybody sees the same");
}

async fn an_approved_action_that_fails_is_completed_as_failed(on: On) {
    let (live, admin, effects) = acting(on.setup().await).await;
    let session = live.session().await;
    let mut socket = live.running(&session).await;
    let token = sandbox_token(&live.app, id(&session)).await;
    let failing = request(&live, &session, &token, json!({})).await;
    effects.plan_next(Plan { status: 500, ..Plan::default() });
    let (status, answer) = decide(&live, &admin, &failing, "approve").await;
    assert_eq!((status, &answer["code"]), (502, &json!("action_failed")), "{answer}");
    let completed = socket.until_type("action_completed").await.pop().unwrap();
    let expected = json!({"invocationId": failing, "status": "failed", "error": "the tool answered 500"});
    assert_eq!(completed["payload"], expected);
    assert_eq!(approvals(&live, &session).await, Value::Null, "it waits no more");
}

async fn a_request_that_nobody_decides_ends_as_expired(on: On) {
    let clock = Clock::manual(Clock::system().now());
    let (live, admin, effects) =
        acting(on.setup().await.clock(&clock).set("APPROVAL_LIFETIME_SECONDS", "600")).await;
    let session = live.session().await;
    let token = sandbox_token(&live.app, id(&session)).await;
    let waiting = request(&live, &session, &token, json!({})).await;
    let found = || async {
        live.app.store.invocation(live.ada.org, waiting.parse().unwrap()).await.unwrap().unwrap()
    };
    clock.advance(Duration::from_secs(599));
    assert_eq!(found().await.status(clock.now()), InvocationStatus::Pending);
    clock.advance(Duration::from_secs(1));
    let swept = async {
        while found().await.run.status != RunStatus::Cancelled {
            // A read of SQLite is synchronous: without this the gateway on this thread never runs.
            tokio::task::yield_now().await;
        }
    };
    within(swept).await;
    let ended = found().await;
    assert_eq!((ended.run.outcome.as_deref(), &ended.request), (Some("expired"), &None));
    let path = format!("/v1/audit/events?run_id={}", ended.run_id);
    let (_, recorded) = live.ask("GET", &path, Some(&admin.token), &Value::Null, None).await;
    let events = recorded["events"].as_array().unwrap();
    assert_eq!(outcomes(events)[1..], DENIED_EVENTS, "{recorded}");
    let actors = [&events[1]["actor"]["actor_id"], &events[2]["actor"]["actor_id"]];
    assert_eq!(actors, [&json!("gateway"), &json!(session)], "who decided, and whose call it is");
    assert_eq!(decide(&live, &admin, &waiting, "approve").await.0, 410);
    assert_eq!((decide(&live, &admin, &waiting, "deny").await.0, effects.all().len()), (410, 0));
}
