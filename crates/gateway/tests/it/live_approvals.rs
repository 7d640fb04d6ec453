//! Invocations that wait for approval, as the people who watch their session see them.

use proto::Role;
use serde_json::{Value, json};
use testkit::EffectRecorder;

use crate::live::{Live, On, id, on_both};
use crate::people::{person, sandbox_token};
use crate::world::tools;

on_both! {
    init_carries_the_requests_that_wait
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

    let params = json!({"note": "hello", "password": "canary-5150"});
    let first = request(&live, &session, &token, params).await;
    let announced = socket.until_type("action_approval_request").await.pop().unwrap();
    let second = request(&live, &session, &token, json!({})).await;
    let shown = approvals(&live, &session).await;
    assert_eq!(shown[0], announced["payload"], "`init` shows what was announced");
    assert_eq!(shown[0]["params"], json!({"note": "hello", "password": "[REDACTED]"}));
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
}
