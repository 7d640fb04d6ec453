//! Session owners that crash at any point: the next owner finishes the remaining work, and does nothing twice.

use agent::prompt_id;
use clock::Rng;
use proto::PromptState;
use proto::socket::{Frame, Message, MessageRole, MessageSource, ServerMessage};
use serde_json::{Value, json};
use store::{NewPrompt, Owner, StoredMessage};

use crate::harness::within;
use crate::live::{Live, Midway, On, assert_unbroken, id, is_status, numbers, of_type, on_both, tokens};

on_both! {
    the_initial_prompt_is_one_turn_wherever_its_owner_died
    a_long_turn_continues_after_a_restart
    accepted_prompts_continue_after_a_restart_without_a_client
    a_cancel_after_a_restart_reaches_the_unfinished_turn
    metrics_survive_a_stop
}

/// The last step that the owner completed before it died, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Died {
    Owning,
    Queued,
    Marked,
    Dispatched,
    Said,
}

/// Performs the steps of an owner for the initial prompt, up to its death.
async fn die(live: &Live, owner: &Owner, prompt: NewPrompt, died: Died) {
    let (store, now) = (&live.app.store, live.app.clock.now());
    let said = Message {
        id: prompt.id.clone(),
        role: MessageRole::User,
        content: prompt.content.clone(),
        is_complete: true,
        created_at: now.timestamp_millis(),
        sender_id: None,
        source: None,
        tool_calls: Vec::new(),
        parts: Vec::new(),
        interrupted: false,
        error: None,
    };
    if died >= Died::Queued {
        assert!(store.queue_prompt(owner, prompt.clone()).await.unwrap());
    }
    if died >= Died::Marked {
        assert!(store.mark_initial_prompt(owner, now).await.unwrap());
    }
    if died >= Died::Dispatched {
        store.set_prompt_state(owner, &prompt.id, PromptState::Dispatched).await.unwrap();
    }
    if died >= Died::Said {
        let frame = Frame::broadcast(ServerMessage::Message(said.clone()), 1);
        store.reserve_numbers(owner, 100).await.unwrap();
        store.append_events(owner, 1, 1, &json!(frame).to_string(), now).await.unwrap();
        store.save_messages(owner, 1, vec![StoredMessage::from_message(said, [])]).await.unwrap();
    }
}

async fn the_initial_prompt_is_one_turn_wherever_its_owner_died(on: On) {
    for died in [Died::Owning, Died::Queued, Died::Marked, Died::Dispatched, Died::Said] {
        let live = Live::echoing(on).await;
        let session = live.session_with(&json!({"initialPrompt": "begin"})).await;
        let owned = live.app.store.own_session(id(&session), "an instance that died").await.unwrap();
        let began = owned.record.started_at.timestamp_millis();
        let prompt_id = prompt_id(began, &Rng::seeded(owned.record.id.uuid().as_u64_pair().1));
        let prompt = NewPrompt {
            id: prompt_id.clone(),
            content: "begin".to_owned(),
            images: Vec::new(),
            sender_id: Some(live.ada.id.to_string()),
            source: Some(MessageSource::Web),
            at: live.app.clock.now(),
        };
        die(&live, &owned.owner, prompt, died).await;
        let mut socket = live.watch(&session).await;
        let frames = socket.until_type("turn_complete").await;
        assert_eq!(tokens(&frames), "echo: begin", "{died:?}");
        socket.nothing_but_pong().await;
        let sent = live.agent.asked("/prompt_async");
        let sent: Vec<_> = sent.iter().map(|asked| asked.body["messageID"].as_str().unwrap()).collect();
        assert_eq!(sent, [prompt_id.as_str()], "{died:?}");
        let init = live.init(&session).await;
        assert_eq!(init["payload"]["messages"].as_array().unwrap().len(), 2, "{died:?}");
        let live = live.restarted().await;
        live.running(&session).await.nothing_but_pong().await;
        assert_eq!(live.agent.asked("/prompt_async").len(), 1, "{died:?}: sent again later");
    }
}

/// The turn is longer than one batch read from the log.
async fn a_long_turn_continues_after_a_restart(on: On) {
    let Midway { live, session, mut socket, turn, frames } = Midway::start(on, "begin ").await;
    let place = numbers(&frames).pop().unwrap();
    let long = "x".repeat(50_000);
    for _ in 0..40 {
        turn.say(&long);
    }
    turn.step();
    turn.say("middle ");
    socket.until(|frame| frame["payload"]["token"] == "middle ").await;
    let live = live.restarted().await;
    let mut socket = live.watch_with(&session, &format!("&since={place}")).await;
    let mut frames = socket.until(|frame| is_status(frame, "running")).await;
    turn.say("end");
    turn.end();
    frames.extend(socket.until_type("turn_complete").await);
    assert!(of_type(&frames, "gap").is_empty() && of_type(&frames, "init").is_empty());
    assert_unbroken(&frames);
    assert_eq!(tokens(&frames), format!("{}middle end", long.repeat(40)));
}

async fn accepted_prompts_continue_after_a_restart_without_a_client(on: On) {
    let Midway { live, session, turn, .. } = Midway::start(on, "one ").await;
    live.prompt(&session, "next").await;
    let live = live.restarted().await;
    within(live.agent.wait_for_asked("/event", 2)).await;
    turn.say("two");
    turn.end();
    within(live.next_turn()).await.answer("three");
    let mut socket = live.watch(&session).await;
    let whole =
        |frame: &Value| frame["type"] == "init" && frame["payload"]["messages"][3]["content"] == "three";
    if !socket.until_type("init").await.iter().any(whole) {
        socket.until_type("turn_complete").await;
    }
    let init = live.init(&session).await;
    let contents: Vec<_> =
        init["payload"]["messages"].as_array().unwrap().iter().map(|m| &m["content"]).collect();
    assert_eq!(contents[1..], [&json!("one two"), &json!("next"), &json!("three")]);
}

async fn a_cancel_after_a_restart_reaches_the_unfinished_turn(on: On) {
    let Midway { live, session, .. } = Midway::start(on, "one ").await;
    let live = live.restarted().await;
    live.post(&format!("/proliferate/{session}/cancel"), &json!({})).await;
    within(live.agent.wait_for_asked("/abort", 1)).await;
}

async fn metrics_survive_a_stop(on: On) {
    let Midway { live, mut socket, turn, .. } = Midway::start(on, "one ").await;
    turn.call("bash", &json!({"command": "ls"}), "out");
    socket.until_type("tool_end").await;
    let live = live.restarted().await;
    let shown = live.get("/proliferate/sessions").await["sessions"][0].clone();
    assert_eq!(shown["metrics"]["toolCalls"], 1, "{shown}");
}
