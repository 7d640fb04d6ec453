//! Clients that join during or after a turn: `init` has all they need, once, and no more than a frame should hold.

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::harness::within;
use crate::live::{Live, Midway, On, of_type, on_both, tokens};

on_both! {
    retractions_reach_clients_that_joined_during_the_turn
    clients_that_join_later_get_the_reason_of_a_failed_turn
    each_text_is_sent_once
    an_endless_answer_is_cut_and_its_conversation_can_be_opened
}

/// The event by which an agent reports that it retries the model request.
fn retry(session: &str) -> Value {
    let status = json!({"type": "retry", "attempt": 1, "message": "overloaded", "next": 1});
    json!({"type": "session.status", "properties": {"sessionID": session, "status": status}})
}

async fn retractions_reach_clients_that_joined_during_the_turn(on: On) {
    let Midway { live, session, mut socket, turn, frames } = Midway::start(on, "half an ans").await;
    let mut joined = live.watch(&session).await;
    let init = joined.until_type("init").await.pop().unwrap();
    let part = &init["payload"]["messages"][1]["parts"][0];
    assert_eq!((&part["type"], &part["text"]), (&json!("text"), &json!("half an ans")));
    assert_eq!(part["partId"], frames.last().unwrap()["payload"]["partId"], "the id of its tokens");
    live.agent.emit(&retry(&turn.session));
    for socket in [&mut socket, &mut joined] {
        let void = socket.until_type("text_part_complete").await.pop().unwrap();
        assert_eq!((&void["payload"]["partId"], &void["payload"]["text"]), (&part["partId"], &json!("")));
    }
    assert_eq!(live.init(&session).await["payload"]["messages"][1]["content"], "");
}

async fn clients_that_join_later_get_the_reason_of_a_failed_turn(on: On) {
    let Midway { live, session, mut socket, turn, .. } = Midway::start(on, "so far").await;
    turn.fail("the model refuses");
    socket.until_type("turn_complete").await;
    let answer = live.init(&session).await["payload"]["messages"][1].clone();
    assert_eq!((&answer["error"], &answer["content"]), (&json!("the model refuses"), &json!("so far")));
    socket.prompt("an image that is none").await;
    live.next_turn().await.refuse("Image could not be decoded");
    socket.until_type("turn_complete").await;
    let live = live.restarted().await;
    let init = live.init(&session).await;
    let prompt = &init["payload"]["messages"][2];
    assert_eq!(prompt["error"], "Image could not be decoded", "nothing was answered: {init}");
    let page = live.get(&format!("/proliferate/{session}/messages")).await;
    assert_eq!(page["messages"][2]["error"], prompt["error"]);
}

async fn each_text_is_sent_once(on: On) {
    let live = Live::echoing(on).await;
    let session = live.session().await;
    let mut socket = live.running(&session).await;
    socket.prompt("a-marker").await;
    socket.until_type("turn_complete").await;
    let init = live.init(&session).await;
    assert_eq!(init["payload"]["messages"][1]["content"], "echo: a-marker");
    assert_eq!(init.to_string().matches("a-marker").count(), 2, "prompt and answer: {init}");
}

async fn an_endless_answer_is_cut_and_its_conversation_can_be_opened(on: On) {
    let Midway { live, session, mut socket, turn, .. } = Midway::start(on, "begin ").await;
    let piece = "x".repeat(60_000);
    for _ in 0..100 {
        turn.say(&piece);
    }
    let mut joined = live.watch(&session).await;
    let init = joined.until_type("init").await.pop().unwrap().to_string();
    assert!(init.len() < 2 * 1024 * 1024 + 8192, "in the middle too: {}", init.len());
    drop(joined);
    turn.end();
    let frames = socket.until_type("turn_complete").await;
    assert_eq!(tokens(&frames).len(), 100 * piece.len(), "whoever watches gets all of it");
    assert_eq!(of_type(&frames, "error").len(), 1, "that not all is kept is told once");
    let init = live.init(&session).await.to_string();
    assert!((1024 * 1024..1024 * 1024 + 4096).contains(&init.len()), "{}", init.len());
}

#[tokio::test]
async fn a_close_is_answered_with_a_close() {
    let live = Live::start(On::Sqlite).await;
    let session = live.session().await;
    let mut socket = live.running(&session).await.socket;
    within(socket.send(Message::Close(None))).await.unwrap();
    let answered = async {
        while let Some(message) = socket.next().await {
            if let Message::Close(_) = message.unwrap() {
                return true;
            }
        }
        false
    };
    assert!(within(answered).await, "the connection ended without an answer");
}
