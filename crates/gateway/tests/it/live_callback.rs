//! Callbacks of an agent while its turns start and end.

use proto::RunStatus;
use serde_json::json;
use store::{Change, Ended, GateWrite, JsonText, RunFilter, Written};

use crate::live::{Midway, On, id, on_both};
use crate::people::sandbox_token;

on_both! {
    a_callback_whose_turn_has_ended_in_between_is_decided_without_it
}

/// A race, held open: the callback has looked up the current turn of the session, and the run of that turn has ended
/// before the decision. The session does not know yet.
async fn a_callback_whose_turn_has_ended_in_between_is_decided_without_it(on: On) {
    let Midway { live, session, .. } = Midway::start(on, "Once upon").await;
    let (org, store) = (live.ada.org, &live.app.store);
    let filter = RunFilter { status: Some(RunStatus::Running), limit: 10, ..RunFilter::default() };
    let turn = store.runs(org, &filter).await.unwrap().remove(0);
    let ended = Ended {
        started_at: None,
        status: RunStatus::Completed,
        outcome: "completed".to_owned(),
        error: None,
        answer: None,
        response_hash: None,
        outputs: JsonText::of(&json!({"artifact_refs": []})),
        at: live.app.clock.now(),
    };
    let end = Change::End { org, run_id: turn.run_id.clone(), instance: None, ended: Box::new(ended) };
    let written = store.gate_write(GateWrite::new(end, Vec::new())).await.unwrap();
    assert!(matches!(written, Written::Done), "{written:?}");
    let token = sandbox_token(&live.app, id(&session)).await;
    let path = format!("/proliferate/{session}/tools/save_snapshot");
    let body = json!({"tool_call_id": "call-1", "args": {}});
    let (status, answer) = live.ask("POST", &path, Some(&token), &body, None).await;
    assert_eq!(status, 200, "{answer}");
    assert_ne!(answer["result"], "the run is not active", "{answer}");
    let events = live.get(&format!("/v1/audit/events?case_id={session}&limit=100")).await;
    let events = events["events"].as_array().unwrap();
    let decision = events.iter().rev().find(|event| event["target"]["name"] == "save_snapshot");
    let decision = decision.unwrap_or_else(|| panic!("{events:?}"));
    let run = live.app.store.run(org, decision["run_id"].as_str().unwrap()).await.unwrap().unwrap();
    assert_ne!(run.status, RunStatus::Denied);
    assert_eq!(run.parent_run_id, None, "the turn that has ended is not its parent");
}
