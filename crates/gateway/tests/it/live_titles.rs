//! The title of a session: the first sentence of its first prompt, then the model's, unless a person has chosen one.

use serde_json::{Value, json};
use testkit::Turn;

use crate::live::{Live, On, Socket, of_type, on_both};

on_both! {
    a_session_is_titled_by_its_prompt_and_then_once_by_its_model
    a_title_that_a_person_has_chosen_stays
    a_title_survives_a_restart_and_the_models_still_replaces_that_of_the_prompt
}

/// The agent's model has made a title. The agent reports it with its session.
fn make_title(live: &Live, turn: &Turn, title: &str) {
    let info = json!({"id": turn.session, "title": title});
    let properties = json!({"sessionID": turn.session, "info": info});
    live.agent.emit(&json!({"id": "evt_1", "type": "session.updated", "properties": properties}));
}

async fn title(live: &Live, session: &str) -> Value {
    let list = live.get("/proliferate/sessions").await;
    let mut sessions = list["sessions"].as_array().unwrap().iter();
    sessions.find(|listed| listed["id"] == session).unwrap()["title"].clone()
}

async fn next_title(socket: &mut Socket) -> Value {
    socket.until_type("title_update").await.pop().unwrap()["payload"]["title"].clone()
}

async fn rename(live: &Live, session: &str, title: &str) {
    let path = format!("/proliferate/{session}");
    let renamed = live.ask("PATCH", &path, Some(&live.ada.token), &json!({"title": title}), None).await;
    assert_eq!(renamed.0, 200, "{}", renamed.1);
}

async fn a_session_is_titled_by_its_prompt_and_then_once_by_its_model(on: On) {
    let live = Live::start(on).await;
    let session = live.session().await;
    assert_eq!(title(&live, &session).await, Value::Null);
    let mut socket = live.running(&session).await;
    live.prompt(&session, "## Fix the login. It fails\non Mondays.").await;
    assert_eq!(next_title(&mut socket).await, "Fix the login.");
    assert_eq!(title(&live, &session).await, "Fix the login.");
    let created = live.agent.asked("/session");
    assert_eq!(created[0].body, json!({}), "with a title, the agent would not ask its model");
    let turn = live.next_turn().await;
    turn.begin();
    for ignored in ["", "New session - 2026-11-18T00:00:00.000Z"] {
        make_title(&live, &turn, ignored);
    }
    let hostile = format!("  The {}\u{1b}[2J\u{0} login {}\nsecond line", "broken", "x".repeat(100_000));
    make_title(&live, &turn, &hostile);
    assert_eq!(next_title(&mut socket).await, "The broken [2J login…");
    make_title(&live, &turn, "Another one");
    turn.say("done");
    turn.end();
    let frames = socket.until_type("turn_complete").await;
    assert!(of_type(&frames, "title_update").is_empty(), "{frames:?}");
    live.prompt(&session, "Now the logout").await;
    live.next_turn().await.answer("done");
    let frames = socket.until_type("turn_complete").await;
    assert!(of_type(&frames, "title_update").is_empty(), "{frames:?}");
    assert_eq!(title(&live, &session).await, "The broken [2J login…");
}

async fn a_title_that_a_person_has_chosen_stays(on: On) {
    let live = Live::start(on).await;
    let named = live.session_with(&json!({"title": "Mine", "initialPrompt": "Fix it."})).await;
    let mut socket = live.running(&named).await;
    assert_eq!(live.agent.asked("/session")[0].body, json!({"title": "Mine"}));
    let turn = live.next_turn().await;
    make_title(&live, &turn, "The model's");
    turn.answer("done");
    let frames = socket.until_type("turn_complete").await;
    assert!(of_type(&frames, "title_update").is_empty(), "{frames:?}");
    assert_eq!(title(&live, &named).await, "Mine");

    let renamed = live.session_with(&json!({"initialPrompt": "Fix that. Now."})).await;
    assert_eq!(title(&live, &renamed).await, "Fix that.", "the title is there before the agent is");
    let mut socket = live.running(&renamed).await;
    let turn = live.next_turn().await;
    rename(&live, &renamed, "Ours").await;
    assert_eq!(next_title(&mut socket).await, "Ours");
    make_title(&live, &turn, "The model's");
    turn.answer("done");
    let frames = socket.until_type("turn_complete").await;
    assert!(of_type(&frames, "title_update").is_empty(), "{frames:?}");
    assert_eq!(title(&live, &renamed).await, "Ours");
}

async fn a_title_survives_a_restart_and_the_models_still_replaces_that_of_the_prompt(on: On) {
    let live = Live::start(on).await;
    let session = live.session().await;
    live.prompt(&session, "First words").await;
    live.next_turn().await.answer("done");
    let live = live.restarted().await;
    assert_eq!(title(&live, &session).await, "First words");
    let mut socket = live.running(&session).await;
    live.prompt(&session, "Second words").await;
    let turn = live.next_turn().await;
    make_title(&live, &turn, "The model's");
    assert_eq!(next_title(&mut socket).await, "The model's");
    turn.answer("done");
    let live = live.restarted().await;
    assert_eq!(title(&live, &session).await, "The model's");
}
