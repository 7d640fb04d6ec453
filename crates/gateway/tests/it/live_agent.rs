//! Agents that break, hang, lie or never start: what users see stays complete, bounded and clear.

use serde_json::json;

use crate::harness::within;
use crate::live::{Live, Midway, On, assert_unbroken, id, is_status, of_type, on_both, tokens};

on_both! {
    a_broken_event_stream_continues_without_loss_or_repetition
    a_turn_that_ended_while_disconnected_is_ended
    an_agent_that_lost_its_session_ends_the_turn_and_keeps_its_text
    the_text_of_an_agent_that_dies_during_a_turn_is_kept
    a_prompt_that_the_agent_died_with_is_sent_to_the_next_agent
    a_prompt_on_its_way_to_a_lost_agent_is_sent_to_the_next_agent
    garbage_endless_lines_and_forged_events_change_nothing
    unrequested_output_of_an_agent_is_not_kept_forever
    an_agent_that_closes_every_event_stream_fails_after_a_few_attempts
    an_unreachable_agent_fails_after_three_attempts_with_a_reason_for_all_clients
    a_session_accepts_commands_while_its_agent_does_not_answer
    a_cancel_ends_the_turn_of_an_unresponsive_agent
}

async fn a_broken_event_stream_continues_without_loss_or_repetition(on: On) {
    let Midway { live, mut socket, turn, mut frames, .. } = Midway::start(on, "one ").await;
    live.agent.cut();
    // Emitted while the gateway is disconnected.
    turn.say("two ");
    frames.extend(socket.until(|frame| is_status(frame, "running")).await);
    turn.say("three");
    turn.end();
    frames.extend(socket.until_type("turn_complete").await);
    assert_unbroken(&frames);
    assert_eq!(tokens(&frames), "one two three");
    assert_eq!(of_type(&frames, "turn_complete")[0]["payload"]["outcome"], "ok");
    assert_eq!(live.agent.asked("/prompt_async").len(), 1, "the prompt was sent again");
}

async fn a_turn_that_ended_while_disconnected_is_ended(on: On) {
    let Midway { live, mut socket, turn, .. } = Midway::start(on, "one ").await;
    live.agent.cut();
    turn.say("two");
    turn.end();
    let frames = socket.until_type("turn_complete").await;
    assert_eq!(tokens(&frames), "two");
    assert_eq!(of_type(&frames, "turn_complete")[0]["payload"]["outcome"], "ok");
}

async fn an_agent_that_lost_its_session_ends_the_turn_and_keeps_its_text(on: On) {
    let Midway { live, session, mut socket, .. } = Midway::start(on, "partial").await;
    live.agent.forget();
    let frames = socket.until_type("turn_complete").await;
    assert_eq!(of_type(&frames, "turn_complete")[0]["payload"]["outcome"], "error");
    let init = live.init(&session).await;
    let answer = &init["payload"]["messages"][1];
    assert_eq!((&answer["content"], &answer["interrupted"]), (&json!("partial"), &json!(true)));
    socket.prompt("again").await;
    live.next_turn().await.answer("fresh");
    assert_eq!(tokens(&socket.until_type("turn_complete").await), "fresh");
}

async fn the_text_of_an_agent_that_dies_during_a_turn_is_kept(on: On) {
    let Midway { live, session, mut socket, turn, .. } = Midway::start(on, "partial").await;
    turn.die();
    live.agent.cut();
    let frames = socket.until_type("turn_complete").await;
    assert_eq!(of_type(&frames, "turn_complete")[0]["payload"]["outcome"], "error");
    let init = live.init(&session).await;
    let answer = &init["payload"]["messages"][1];
    assert_eq!((&answer["content"], &answer["interrupted"]), (&json!("partial"), &json!(true)));
}

/// The agent stored the prompt and died before it worked on it. It is idle afterwards, and would be for ever.
async fn a_prompt_that_the_agent_died_with_is_sent_to_the_next_agent(on: On) {
    let live = Live::start(on).await;
    let session = live.session().await;
    let mut socket = live.running(&session).await;
    socket.prompt("go").await;
    live.next_turn().await.die();
    live.agent.cut();
    live.next_turn().await.answer("gone");
    let frames = socket.until_type("turn_complete").await;
    assert_eq!(tokens(&frames), "gone");
    assert_eq!(of_type(&frames, "turn_complete")[0]["payload"]["outcome"], "ok");
    assert_eq!(of_type(&frames, "message").len(), 2, "the prompt and one answer: {frames:?}");
    let sent = live.agent.asked("/prompt_async");
    assert_eq!((sent.len(), &sent[0].body), (2, &sent[1].body));
}

/// The attempts to reach the lost agent fail when the session has the next one, and have no effect on its turn.
async fn a_prompt_on_its_way_to_a_lost_agent_is_sent_to_the_next_agent(on: On) {
    let live = Live::echoing(on).await;
    let session = live.session().await;
    let mut socket = live.running(&session).await;
    // As many as there are attempts.
    live.agent.behave(|manner| manner.refusals = 4);
    socket.prompt("go").await;
    within(live.agent.wait_for_asked("/prompt_async", 1)).await;
    live.agent.cut();
    let frames = socket.until_type("turn_complete").await;
    assert_eq!(tokens(&frames), "echo: go", "{frames:?}");
    assert_eq!(of_type(&frames, "turn_complete")[0]["payload"]["outcome"], "ok");
}

async fn garbage_endless_lines_and_forged_events_change_nothing(on: On) {
    let Midway { live, mut socket, turn, mut frames, .. } = Midway::start(on, "before ").await;
    live.agent.send_raw(
        b"data: not json\n\ndata: [1,2\n\n: comment\n\nid: 7\nevent: x\ndata: {}\n\n\xff\xfe\x00\n\n",
    );
    live.agent.send_raw(format!("data: {}\n\n", "[".repeat(100_000)).as_bytes());
    for session in ["ses_other", "", "../x"] {
        let properties = json!({"sessionID": session, "messageID": "msg_x", "partID": "prt_x", "field": "text", "delta": "FORGED"});
        live.agent.emit(&json!({"type": "message.part.delta", "properties": properties}));
        live.agent.emit(&json!({"type": "session.status", "properties": {"sessionID": session, "status": {"type": "idle"}}}));
    }
    // A line without an end, longer than the maximum event size.
    live.agent.send_raw(b"data: ");
    for _ in 0..20 {
        live.agent.send_raw(&vec![b'x'; 1024 * 1024]);
    }
    live.agent.send_raw(b"\n\n");
    turn.say("after");
    turn.end();
    frames.extend(socket.until_type("turn_complete").await);
    assert_eq!(tokens(&frames), "before after");
    assert!(!frames.iter().any(|frame| frame.to_string().contains("FORGED")));
    assert_eq!(of_type(&frames, "message").len(), 2, "the prompt and one answer");
    assert_eq!(live.agent.asked("/event").len(), 1, "one bad event is no reason to leave");
}

async fn unrequested_output_of_an_agent_is_not_kept_forever(on: On) {
    const ANSWER_COUNT: usize = 4_000;
    let live = Live::start(on).await;
    let session = live.session().await;
    let mut socket = live.running(&session).await;
    let record = live.app.store.session_any(id(&session)).await.unwrap().unwrap();
    let own = record.agent_session_id.unwrap();
    for number in 0..ANSWER_COUNT {
        let time = json!({"created": 1, "completed": 2});
        let info =
            json!({"id": format!("msg_{number}"), "sessionID": own, "role": "assistant", "time": time});
        live.agent.emit(&json!({"type": "message.updated", "properties": {"info": info}}));
        let idle = json!({"sessionID": own, "status": {"type": "idle"}});
        live.agent.emit(&json!({"type": "session.status", "properties": idle}));
    }
    socket.until_turns(ANSWER_COUNT).await;
    let logged = live.app.store.events_after(id(&session), 0, 1).await.unwrap();
    assert!(logged[0].first_seq > 1_000, "nothing was let go of: {}", logged[0].first_seq);
}

async fn an_agent_that_closes_every_event_stream_fails_after_a_few_attempts(on: On) {
    let live = Live::start(on).await;
    live.agent.behave(|manner| manner.drops_listeners = true);
    let session = live.session().await;
    let mut socket = live.watch(&session).await;
    let frames = socket.until(|frame| is_status(frame, "error")).await;
    let reason = frames.last().unwrap()["payload"]["message"].as_str().unwrap();
    assert!(reason.contains("lost") && reason.contains("ended its stream"), "{reason}");
    let attempts = live.agent.asked("/event").len();
    assert!((2..=8).contains(&attempts), "{attempts} attempts");
    let info = live.status(&session).await;
    assert_eq!(info["status"], "failed");
    assert_eq!(info["reason"], reason);
    // A later watcher gets the same status, and the gateway does not retry by itself.
    let mut late = live.watch(&session).await;
    let state = late
        .until(|frame| frame["type"] == "status" && frame["payload"]["status"] == "stopped")
        .await
        .pop()
        .unwrap();
    assert_eq!(state["payload"]["message"], reason);
    late.nothing_but_pong().await;
    assert_eq!(live.agent.asked("/event").len(), attempts);
    live.agent.behave(|manner| (manner.drops_listeners, manner.echoes) = (false, true));
    late.prompt("try").await;
    assert_eq!(tokens(&late.until_type("turn_complete").await), "echo: try");
}

async fn an_unreachable_agent_fails_after_three_attempts_with_a_reason_for_all_clients(on: On) {
    let live = Live::unreachable(on).await;
    let session = live.session().await;
    let mut socket = live.watch(&session).await;
    let frames = socket.until(|frame| is_status(frame, "error")).await;
    let reason = frames.last().unwrap()["payload"]["message"].as_str().unwrap().to_owned();
    assert!(reason.contains("not trusted"), "{reason}");
    let error = socket.until_type("error").await.pop().unwrap();
    assert_eq!(error["payload"]["message"], format!("Failed to initialize session: {reason}"));
    let tries = of_type(&frames, "status")
        .iter()
        .filter(|frame| frame["payload"]["message"].as_str().is_some_and(|text| text.contains("again")))
        .count();
    assert_eq!(tries, 2, "three attempts in all");
}

async fn a_session_accepts_commands_while_its_agent_does_not_answer(on: On) {
    let Midway { live, session, mut socket, .. } = Midway::start(on, "x").await;
    live.agent.behave(|manner| manner.mute_history = true);
    live.agent.cut();
    socket.until(|frame| is_status(frame, "running")).await;
    within(live.agent.wait_for_asked("/session/status", 1)).await;
    // The session actor answers this, so it must not be blocked on the agent.
    socket.send(&json!({"type": "get_status"})).await;
    assert_eq!(socket.frame().await["payload"]["status"], "running");
    live.watch(&session).await.until_type("init").await;
    live.post(&format!("/proliferate/{session}/stop"), &json!({})).await;
    let frames = socket.until(|frame| is_status(frame, "stopped")).await;
    assert_eq!(of_type(&frames, "turn_complete").len(), 1);
}

async fn a_cancel_ends_the_turn_of_an_unresponsive_agent(on: On) {
    let live = Live::start(on).await;
    live.agent.behave(|manner| manner.abort = testkit::Abort::Deaf);
    let session = live.session().await;
    let mut socket = live.running(&session).await;
    socket.prompt("go").await;
    live.next_turn().await.begin();
    socket.until(|frame| frame["payload"]["role"] == "assistant").await;
    socket.send(&json!({"type": "cancel"})).await;
    let frames = socket.until_type("turn_complete").await;
    assert!(of_type(&frames, "error")[0]["payload"]["message"].as_str().unwrap().contains("cancel"));
    assert_eq!(live.agent.asked("/abort").len(), 5);
}
