//! The event stream: what a client sees first, in which order, and how it resumes after a disconnect.

use serde_json::json;

use crate::harness::within;
use crate::live::{Live, Midway, On, assert_unbroken, id, is_status, numbers, of_type, on_both, tokens};

on_both! {
    the_first_frames_are_status_init_and_state_and_numbers_rise_by_one
    two_clients_see_the_same_bytes
    a_client_that_reconnects_gets_missed_frames_once_from_memory
    a_client_that_reconnects_late_gets_missed_frames_from_the_log
    a_cursor_outside_of_the_log_gets_a_gap_and_the_complete_conversation
    sequence_numbers_continue_after_a_restart_and_are_never_reused
    callers_who_may_not_watch_are_refused_before_the_upgrade_without_details
    unknown_paths_below_a_session_are_404_and_wake_nothing
    a_ping_is_answered_while_the_agent_boots
    reading_a_session_does_not_wake_it
    invalid_messages_of_a_client_are_ignored_or_refused_and_the_stream_continues
    a_service_may_listen_and_not_speak
    a_slash_after_the_path_of_a_socket_does_not_matter
    get_messages_loses_no_frame_of_the_stream
    everybody_can_see_who_watches
}

async fn the_first_frames_are_status_init_and_state_and_numbers_rise_by_one(on: On) {
    let live = Live::echoing(on).await;
    let session = live.session().await;
    let mut socket = live.watch(&session).await;
    let first = socket.frame().await;
    assert_eq!(
        first,
        json!({"type": "status", "payload": {"status": "resuming", "message": "Connecting to coding agent..."}})
    );
    let mut frames = socket.until(|frame| is_status(frame, "running")).await;
    assert_eq!(frames[0]["type"], "init");
    assert!(frames[0]["seq"].is_number() && frames[0]["epoch"].is_number());
    assert_eq!(frames[0]["payload"]["messages"], json!([]));
    let state = &frames[1];
    assert_eq!(
        (&state["type"], &state["payload"]["status"], &state["seq"]),
        (&json!("status"), &json!("creating"), &json!(null))
    );
    socket.prompt("hello").await;
    frames.extend(socket.until_type("turn_complete").await);
    assert_unbroken(&frames);
    assert_eq!(
        numbers(&frames)[0],
        frames[0]["seq"].as_i64().unwrap() + 1,
        "init tells the last number that it has"
    );
    assert_eq!(tokens(&frames), "echo: hello");
    let kinds: Vec<_> = frames
        .iter()
        .filter(|frame| frame["seq"].is_number())
        .map(|frame| frame["type"].as_str().unwrap())
        .collect();
    let stub = kinds.iter().rposition(|kind| *kind == "message").unwrap();
    assert!(stub < kinds.iter().position(|kind| *kind == "token").unwrap(), "{kinds:?}");
    assert_eq!(kinds[kinds.len() - 2..], ["message_complete", "turn_complete"]);
}

async fn two_clients_see_the_same_bytes(on: On) {
    let live = Live::start(on).await;
    let session = live.session().await;
    let (mut one, mut two) = (live.running(&session).await, live.watch(&session).await);
    // The second client is connected once it has received its status.
    two.until(|frame| frame["type"] == "status" && frame["payload"]["status"] == "running").await;
    one.prompt("count").await;
    let turn = live.next_turn().await;
    turn.begin();
    for number in 0..50 {
        turn.say(&format!("{number} "));
    }
    turn.call("bash", &json!({"command": "ls"}), "a\nb");
    turn.end();
    let mut seen = [Vec::new(), Vec::new()];
    for (socket, seen) in [&mut one, &mut two].into_iter().zip(&mut seen) {
        while seen.last().is_none_or(|frame: &String| !frame.contains("turn_complete")) {
            seen.push(socket.text().await);
        }
    }
    let [first, second] = seen;
    assert!(first.len() > 50);
    assert_eq!(first, second);
}

async fn a_client_that_reconnects_gets_missed_frames_once_from_memory(on: On) {
    let Midway { live, session, socket, turn, mut frames } = Midway::start(on, "one ").await;
    let place = numbers(&frames).pop().unwrap();
    drop(socket);
    turn.say("two ");
    let mut socket = live.watch_with(&session, &format!("&since={place}")).await;
    assert_eq!(socket.frame().await["payload"]["status"], "resuming");
    let mut more = socket.until(|frame| frame["type"] == "status" && frame["seq"].is_null()).await;
    assert_eq!(more.last().unwrap()["payload"]["status"], "running");
    turn.say("three");
    turn.end();
    more.extend(socket.until_type("turn_complete").await);
    assert!(of_type(&more, "init").is_empty() && of_type(&more, "gap").is_empty(), "{more:?}");
    frames.extend(more);
    assert_unbroken(&frames);
    assert_eq!(tokens(&frames), "one two three");
}

async fn a_client_that_reconnects_late_gets_missed_frames_from_the_log(on: On) {
    let live = Live::echoing(on).await;
    let session = live.session().await;
    let mut socket = live.running(&session).await;
    let place = {
        socket.prompt("first").await;
        numbers(&socket.until_type("turn_complete").await).pop().unwrap()
    };
    drop(socket);
    // More text than stays in memory after a turn.
    let long = "x".repeat(40_000);
    let mut other = live.watch(&session).await;
    for _ in 0..3 {
        other.prompt(&long).await;
        other.until_type("turn_complete").await;
    }
    let live = live.restarted().await;
    let mut socket = live.watch_with(&session, &format!("&since={place}")).await;
    let frames = socket.until_turns(3).await;
    assert!(of_type(&frames, "init").is_empty() && of_type(&frames, "gap").is_empty());
    assert_unbroken(&frames);
    assert_eq!(numbers(&frames)[0], place + 1);
    assert_eq!(tokens(&frames), format!("echo: {long}").repeat(3));
}

async fn a_cursor_outside_of_the_log_gets_a_gap_and_the_complete_conversation(on: On) {
    let live = Live::echoing(on).await;
    let session = live.session().await;
    let mut socket = live.running(&session).await;
    socket.prompt("hello").await;
    let head = numbers(&socket.until_type("turn_complete").await).pop().unwrap();
    for since in [head + 1, head + 1_000_000, i64::MAX, -1, i64::MIN] {
        let mut socket = live.watch_with(&session, &format!("&since={since}")).await;
        assert_eq!(socket.frame().await["payload"]["status"], "resuming");
        let gap = socket.frame().await;
        let wanted = json!({"type": "gap", "payload": {"from": since.saturating_add(1), "to": head}});
        assert_eq!(gap, wanted);
        let init = socket.frame().await;
        assert_eq!((&init["type"], init["seq"].as_i64()), (&json!("init"), Some(head)));
        assert_eq!(init["payload"]["messages"][1]["content"], "echo: hello");
        socket.until(|frame| frame["type"] == "status").await;
        socket.nothing_but_pong().await;
    }
    // Emit so much text that the log keeps only its end.
    live.agent.behave(|manner| manner.echoes = false);
    socket.prompt("talk").await;
    let turn = live.next_turn().await;
    turn.begin();
    for _ in 0..6000 {
        turn.say("word ");
    }
    turn.end();
    let now = numbers(&socket.until_type("turn_complete").await).pop().unwrap();
    socket.prompt("again").await;
    live.next_turn().await.answer("yes");
    socket.until_type("turn_complete").await;
    let mut late = live.watch_with(&session, &format!("&since={head}")).await;
    late.frame().await;
    let gap = late.frame().await;
    assert_eq!((&gap["type"], &gap["payload"]["from"]), (&json!("gap"), &json!(head + 1)));
    let init = late.frame().await;
    assert!(init["seq"].as_i64() >= gap["payload"]["to"].as_i64() && init["seq"].as_i64() > Some(now));
    assert_eq!(init["payload"]["messages"].as_array().unwrap().len(), 6);
}

async fn sequence_numbers_continue_after_a_restart_and_are_never_reused(on: On) {
    let mut live = Live::echoing(on).await;
    let session = live.session().await;
    let mut all = Vec::new();
    let mut epochs = Vec::new();
    for _ in 0..3 {
        let mut socket = live.watch(&session).await;
        let frames = socket.until(|frame| is_status(frame, "running")).await;
        epochs.push(of_type(&frames, "init")[0]["epoch"].as_i64().unwrap());
        socket.prompt("hi").await;
        all.extend(numbers(&frames));
        all.extend(numbers(&socket.until_type("turn_complete").await));
        live = live.restarted().await;
    }
    assert!(all.is_sorted_by(|one, next| one < next), "{all:?}");
    assert!(epochs.is_sorted_by(|one, next| one < next), "{epochs:?}");
}

async fn callers_who_may_not_watch_are_refused_before_the_upgrade_without_details(on: On) {
    let live = Live::echoing(on).await;
    let session = live.session().await;
    let refused =
        async |session: &str, token: &str, more: &str| live.try_watch(session, token, more).await.err();
    for token in ["", "x", "plk_0000", &"x".repeat(500)] {
        assert_eq!(refused(&session, token, "").await, Some(401));
        assert_eq!(refused("no-such-session", token, "").await, Some(401));
    }
    let stranger =
        crate::people::person(&live.app, crate::people::org(&live.app).await, proto::Role::Owner).await;
    let unknown = crate::people::some_uuid().to_string();
    for (id, token) in
        [(&session, &stranger.token), (&unknown, &live.ada.token), (&"x".to_owned(), &live.ada.token)]
    {
        assert_eq!(refused(id, token, "").await, Some(404));
    }
    let sandbox = crate::people::sandbox_token(&live.app, id(&session)).await;
    assert_eq!(refused(&session, &sandbox, "").await, Some(401), "a sandbox does not watch");
    for since in ["x", "1.5", "", "99999999999999999999", "1e3", "%00"] {
        assert_eq!(
            refused(&session, &live.ada.token, &format!("&since={since}")).await,
            Some(400),
            "{since:?}"
        );
    }
    assert!(live.agent.asked("").is_empty(), "the agent was asked something");
    assert_eq!(live.app.hubs.count(), 0);
}

async fn unknown_paths_below_a_session_are_404_and_wake_nothing(on: On) {
    let live = Live::echoing(on).await;
    let session = live.session().await;
    for path in ["nothing", "actions/grants", "message/x", "tools", "../x", "%2e%2e"] {
        for method in ["GET", "POST", "PUT", "DELETE"] {
            let path = format!("/proliferate/{session}/{path}");
            let (status, _) = live.ask(method, &path, Some(&live.ada.token), &json!(null), None).await;
            assert!(status == 404 || status == 405, "{method} {path}: {status}");
        }
    }
    assert!(live.try_watch(&format!("{session}/nothing"), &live.ada.token, "").await.is_err());
    assert!(live.agent.asked("").is_empty(), "the agent was asked something");
    assert_eq!(live.app.hubs.count(), 0);
}

async fn a_ping_is_answered_while_the_agent_boots(on: On) {
    let live = Live::start(on).await;
    live.agent.behave(|manner| manner.healthy = false);
    let session = live.session().await;
    let mut socket = live.watch(&session).await;
    socket.until_type("init").await;
    for _ in 0..3 {
        socket.send(&json!({"type": "ping"})).await;
        socket.until_type("pong").await;
    }
    socket.send(&json!({"type": "get_status"})).await;
    let state =
        socket.until(|frame| frame["type"] == "status" && frame["seq"].is_null()).await.pop().unwrap();
    assert_eq!(state["payload"]["status"], "creating");
    live.agent.behave(|manner| manner.healthy = true);
    socket.until(|frame| is_status(frame, "running")).await;
}

async fn reading_a_session_does_not_wake_it(on: On) {
    let live = Live::echoing(on).await;
    let session = live.session_with(&json!({"initialPrompt": "hello"})).await;
    let mut socket = live.watch_with(&session, "&passive=1").await;
    let frames =
        socket.until(|frame| frame["type"] == "status" && frame["payload"]["status"] != "resuming").await;
    assert_eq!(frames.last().unwrap()["payload"]["status"], "stopped");
    socket.nothing_but_pong().await;
    live.ask("GET", &format!("/proliferate/{session}"), Some(&live.ada.token), &json!(null), None).await;
    assert!(live.agent.asked("").is_empty(), "the agent was asked something");
    let mut other = live.watch(&session).await;
    other.until_type("turn_complete").await;
    assert_eq!(tokens(&socket.until_type("turn_complete").await), "echo: hello", "who looks on sees it all");
}

async fn invalid_messages_of_a_client_are_ignored_or_refused_and_the_stream_continues(on: On) {
    let live = Live::echoing(on).await;
    let session = live.session().await;
    let mut socket = live.running(&session).await;
    for text in [
        "",
        "null",
        "[]",
        "{}",
        "{\"type\":1}",
        "{\"type\":\"unheard_of\"}",
        "\u{0}",
        "{\"type\":\"prompt\"}",
    ] {
        futures_util::SinkExt::send(&mut socket.socket, text.to_owned().into()).await.unwrap();
    }
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    futures_util::SinkExt::send(&mut socket.socket, deep.into()).await.unwrap();
    socket.nothing_but_pong().await;
    socket.prompt("   ").await;
    assert_eq!(socket.frame().await["type"], "error");
    socket.send(&json!({"type": "get_messages"})).await;
    assert_eq!(socket.frame().await["type"], "init");
    socket.prompt("still there").await;
    assert_eq!(tokens(&socket.until_type("turn_complete").await), "echo: still there");
}

/// Frames that are not part of the conversation, such as the ends of turns.
async fn get_messages_loses_no_frame_of_the_stream(on: On) {
    let live = Live::echoing(on).await;
    let session = live.session().await;
    let mut socket = live.running(&session).await;
    for round in 0..10 {
        live.prompt(&session, &format!("round {round}")).await;
        for _ in 0..20 {
            socket.send(&json!({"type": "get_messages"})).await;
        }
    }
    let mut frames = within(socket.until_turns(10)).await;
    frames.retain(|frame| frame["type"] != "init");
    assert_unbroken(&frames);
}

async fn everybody_can_see_who_watches(on: On) {
    let live = Live::echoing(on).await;
    let session = live.session().await;
    let presence = format!("/proliferate/{session}/presence");
    assert_eq!(live.get(&presence).await, json!({"users": [], "programs": 0}));
    let (one, two) = (live.running(&session).await, live.watch(&session).await);
    let service = crate::people::service_token(&live.app, None);
    let program = live.try_watch(&session, &service, "").await.unwrap();
    let ada = live.ada.id;
    let seen = async |clients: u64, programs: u64| {
        let users = if clients == 0 { json!([]) } else { json!([{"userId": ada, "clients": clients}]) };
        let wanted = json!({"users": users, "programs": programs});
        while live.get(&presence).await != wanted {
            tokio::task::yield_now().await;
        }
    };
    within(seen(2, 1)).await;
    drop(one);
    within(seen(1, 1)).await;
    drop((two, program));
    within(seen(0, 0)).await;
}

async fn a_service_may_listen_and_not_speak(on: On) {
    let live = Live::echoing(on).await;
    let session = live.session().await;
    let token = crate::people::service_token(&live.app, None);
    let mut socket = live.try_watch(&session, &token, "").await.unwrap();
    socket.until(|frame| is_status(frame, "running")).await;
    for message in [json!({"type": "prompt", "content": "x"}), json!({"type": "cancel"})] {
        socket.send(&message).await;
        assert_eq!(socket.frame().await, json!({"type": "error", "payload": {"message": "Unauthorized"}}));
    }
    live.prompt(&session, "by a person").await;
    assert_eq!(tokens(&socket.until_type("turn_complete").await), "echo: by a person");
}

/// After a power failure the reservations of sequence numbers are in the database, but the end of the log is lost. A
/// client that has seen the lost frames must not get other frames under the same numbers.
#[tokio::test]
async fn after_a_crash_of_the_database_no_number_is_used_again() {
    let Midway { live, session, mut socket, turn, frames } = Midway::start(On::Postgres, "kept ").await;
    let kept = numbers(&frames).pop().unwrap();
    turn.say("lost");
    let lost = numbers(&socket.until_type("token").await).pop().unwrap();
    drop(socket);
    let cut = format!("DELETE FROM events WHERE last_seq > {kept}");
    let live = live.restarted_after(&["UPDATE sessions SET seq_incarnation = 'the one before'", &cut]).await;
    for since in [kept, lost] {
        let mut back = live.watch_with(&session, &format!("&since={since}")).await;
        let frames = back.until_type("init").await;
        let gap = &of_type(&frames, "gap")[0]["payload"];
        assert_eq!(gap["from"], since + 1);
        assert!(gap["to"].as_i64() >= Some(lost), "{gap}");
        assert!(numbers(&frames).is_empty(), "what is left of the log is in the conversation");
        assert!(frames.last().unwrap()["seq"].as_i64() >= gap["to"].as_i64());
    }
    let mut back = live.running(&session).await;
    turn.say(" and on");
    turn.end();
    let frames = back.until_type("turn_complete").await;
    assert!(numbers(&frames).iter().all(|number| *number > lost));
    let init = live.init(&session).await;
    assert_eq!(init["payload"]["messages"][1]["content"], "kept lost and on");
}

async fn a_slash_after_the_path_of_a_socket_does_not_matter(on: On) {
    let live = Live::echoing(on).await;
    let session = live.session().await;
    let mut socket = live.watch(&format!("{session}/")).await;
    socket.until_type("init").await;
    let refused = live.try_watch(&format!("{session}/"), "x", "").await.err();
    assert_eq!(refused, Some(401));
    let path = format!("/proliferate/{session}/");
    assert_eq!(live.ask("GET", &path, Some(&live.ada.token), &json!(null), None).await.0, 404, "no upgrade");
}
