//! What a session spends: counted while the model answers, and an end to it that pauses and says so.

use std::time::Duration;

use proto::{PauseReason, SessionStatus};
use serde_json::{Value, json};

use crate::harness::{Setup, within};
use crate::live::{Live, id, is_status, of_type, tokens};
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

#[tokio::test]
async fn what_the_model_used_is_counted_streamed_or_whole() {
    for stream in [true, false] {
        let live = dear().await;
        let session = live.session().await;
        let token = sandbox_token(&live.app, id(&session)).await;
        assert_eq!(model(&live, &token, stream).await.0, 200);
        let used = within(async {
            loop {
                let used = live.app.store.session_usage(live.ada.org, id(&session)).await.unwrap();
                if used.requests > 0 {
                    break used;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
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
            let answer = model(&live, &token, true).await;
            if answer.0 != 200 {
                break answer;
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
