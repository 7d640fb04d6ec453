//! Files that were given up: client and agent are told that the session starts from its last snapshot, until the agent
//! has answered, whatever happens in between.

use serde_json::json;

use crate::harness::within;
use crate::live::{Live, On, is_status, on_both};

on_both! {
    the_agent_is_told_that_files_are_gone_however_often_the_gateway_restarts
}

const FILES_LOST_NOTE: &str = "Files that were changed after it are gone.";

async fn the_agent_is_told_that_files_are_gone_however_often_the_gateway_restarts(on: On) {
    let live = Live::start(on).await;
    let session = live.session().await;
    let mut socket = live.running(&session).await;
    live.post(&format!("/proliferate/{session}/stop?discard=true"), &json!({})).await;
    socket.until(|frame| is_status(frame, "stopped")).await;
    let live = live.restarted().await;
    // The prompt is accepted, and no agent has it yet.
    live.agent.behave(|behavior| behavior.mute_health = true);
    let mut socket = live.watch(&session).await;
    socket.prompt("go on").await;
    let told = "Starting from the last snapshot: later files are gone";
    socket.until(|frame| frame["type"] == "status" && frame["payload"]["message"] == told).await;
    socket.until_type("queue").await;
    within(live.agent.wait_for_asked("/global/health", 2)).await;
    let live = live.restarted().await;
    live.agent.behave(|behavior| behavior.mute_health = false);
    let mut socket = live.running(&session).await;
    let turn = live.next_turn().await;
    assert!(turn.text.contains(FILES_LOST_NOTE) && turn.text.ends_with("go on"), "{}", turn.text);
    turn.fail("the model is away");
    socket.until_type("turn_complete").await;
    let live = live.restarted().await;
    let mut socket = live.running(&session).await;
    socket.prompt("and now?").await;
    let next = live.next_turn().await;
    assert!(next.text.contains(FILES_LOST_NOTE), "an agent that failed may not know: {}", next.text);
    next.answer("I know");
    let frames = socket.until_type("turn_complete").await;
    let shown = frames.iter().filter(|frame| frame["type"] == "message");
    assert!(shown.into_iter().all(|message| !message.to_string().contains(FILES_LOST_NOTE)), "{frames:?}");
    let live = live.restarted().await;
    live.prompt(&session, "the last one").await;
    assert_eq!(live.next_turn().await.text, "the last one");
}
