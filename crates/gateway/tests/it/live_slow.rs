//! Slow readers: they are notified of everything that they miss, and they do not slow down others.

use serde_json::{Value, json};
use testkit::Turn;

use crate::harness::within;
use crate::live::{Live, On, Socket, assert_unbroken, numbers, tokens};

/// Reads to the end of the turn, and reconnects whenever the server closes the connection for slowness. Returns all
/// frames, or the frames up to a gap and the complete conversation that follows.
async fn read_all(live: &Live, session: &str, mut socket: Socket) -> (Vec<Value>, Option<Value>) {
    let mut frames = Vec::<Value>::new();
    loop {
        match socket.next_or_close().await {
            Ok(text) => {
                let frame: Value = serde_json::from_str(&text).unwrap();
                match frame["type"].as_str().unwrap() {
                    "init" if frames.last().is_some_and(|last| last["type"] == "gap") => {
                        return (frames, Some(frame));
                    }
                    _ => {}
                }
                let over = frame["type"] == "turn_complete";
                frames.push(frame);
                if over {
                    return (frames, None);
                }
            }
            Err(close) => {
                assert_eq!(close, (1013, "slow consumer".to_owned()));
                let place = numbers(&frames).pop().unwrap();
                socket = live.watch_with(session, &format!("&since={place}")).await;
            }
        }
    }
}

/// The length of the text in one step, the maximum length of a part.
const STEP_BYTES: usize = 1000 * 1000;

/// Emits this many steps of text and ends the turn.
fn talk(turn: &Turn, steps: usize) {
    let piece = "x".repeat(1000);
    for step in 0..steps {
        if step > 0 {
            turn.step();
        }
        for _ in 0..STEP_BYTES / piece.len() {
            turn.say(&piece);
        }
    }
    turn.end();
}

#[tokio::test]
async fn a_burst_to_a_reader_that_stalls_loses_nothing() {
    let live = Live::start(On::Sqlite).await;
    let session = live.session().await;
    let mut socket = live.running(&session).await;
    socket.prompt("burst").await;
    let turn = live.next_turn().await;
    turn.begin();
    let mut said = String::new();
    for number in 0..20_000 {
        let piece = format!("{number} ");
        turn.say(&piece);
        said.push_str(&piece);
    }
    within(async {
        while live.init(&session).await["payload"]["messages"][1]["content"] != said.as_str() {}
    })
    .await;
    turn.end();
    let (frames, whole) = read_all(&live, &session, socket).await;
    assert_unbroken(&frames);
    match whole {
        None => assert_eq!(tokens(&frames), said),
        Some(init) => assert_eq!(init["payload"]["messages"][1]["content"], said.as_str()),
    }
}

#[tokio::test]
async fn a_reader_that_falls_out_of_the_log_is_disconnected_and_reconnects_to_the_complete_conversation() {
    let live = Live::start(On::Sqlite).await;
    let session = live.session().await;
    let (mut socket, mut stalled) = (live.running(&session).await, live.watch_narrowly(&session).await);
    stalled.prompt("much").await;
    let turn = live.next_turn().await;
    turn.begin();
    stalled.until_type("message").await;
    talk(&turn, 8);
    // The other reader keeps up, and has read everything by the time the log is truncated.
    let frames = socket.until_type("turn_complete").await;
    assert_unbroken(&frames);
    assert_eq!(tokens(&frames).len(), 8 * STEP_BYTES);
    socket.prompt("again").await;
    live.next_turn().await.answer("yes");
    socket.until_type("turn_complete").await;
    let (frames, whole) = read_all(&live, &session, stalled).await;
    assert_unbroken(&frames);
    let init = whole.unwrap_or_else(|| panic!("it was never sent away"));
    // The size of `init` is bounded; earlier messages can be fetched.
    let mut messages = init["payload"]["messages"].as_array().unwrap().clone();
    let mut earlier = init["payload"]["earlier"].clone();
    assert!(init.to_string().len() < 1024 * 1024);
    while earlier != 0 {
        let first = messages[0]["id"].as_str().unwrap();
        let mut page = live.get(&format!("/proliferate/{session}/messages?before={first}")).await;
        earlier = page["earlier"].take();
        messages.splice(0..0, page["messages"].as_array().unwrap().clone());
    }
    let answers = &messages[1..9];
    let said: usize = answers.iter().map(|answer| answer["content"].as_str().unwrap().len()).sum();
    assert_eq!(said, 8 * STEP_BYTES);
}

#[tokio::test]
async fn stalled_readers_do_not_delay_other_readers() {
    let live = Live::start(On::Sqlite).await;
    let session = live.session().await;
    let mut socket = live.running(&session).await;
    let mut stalled = Vec::new();
    for _ in 0..64 {
        stalled.push(live.watch(&session).await);
    }
    socket.prompt("talk").await;
    let turn = live.next_turn().await;
    turn.begin();
    talk(&turn, 8);
    let frames = socket.until_type("turn_complete").await;
    assert_unbroken(&frames);
    assert_eq!(tokens(&frames).len(), 8 * STEP_BYTES);
    // Stalled readers are still served, each from its own position.
    let (late, whole) = read_all(&live, &session, stalled.pop().unwrap()).await;
    assert_unbroken(&late);
    assert!(whole.is_some() || tokens(&late).len() == 8 * STEP_BYTES, "{} bytes", tokens(&late).len());
    socket.send(&json!({"type": "ping"})).await;
    socket.until_type("pong").await;
}
