//! Session control over HTTP: create once, rename, stop, delete; and who may do each.

use chrono::TimeDelta;
use proto::socket::{Message, MessageRole};
use serde_json::{Value, json};
use store::StoredMessage;

use crate::harness::{Setup, within};
use crate::live::{Live, On, id, is_status, of_type, on_both, tokens};
use crate::people::{org, person, sandbox_token, service_token, some_uuid};

on_both! {
    a_stopped_session_is_readable_and_wakes_with_a_prompt_only
    a_stop_in_the_middle_settles_the_turn_and_what_waited
    a_stop_during_a_boot_ends_the_boot
    a_new_title_is_broadcast
    a_deleted_session_is_gone_for_everyone_at_once
    a_prompt_over_the_queue_limit_or_budget_is_refused_and_not_stored
    a_session_stuck_in_its_start_stops_counting_against_the_limit
    an_immediate_session_that_cannot_start_is_deleted
    an_immediate_session_that_is_stopped_before_it_runs_is_refused
    every_route_knows_who_may_call_it
    only_prompts_may_have_twenty_megabytes_of_images
    a_heartbeat_and_a_cancel_wake_no_session
    a_long_conversation_is_read_page_by_page_without_waking_anything
}

fn new() -> Value {
    json!({"sessionType": "coding", "clientType": "web"})
}

async fn a_stopped_session_is_readable_and_wakes_with_a_prompt_only(on: On) {
    let live = Live::echoing(on).await;
    let session = live.session().await;
    let mut socket = live.running(&session).await;
    socket.prompt("hello").await;
    socket.until_type("turn_complete").await;
    live.post(&format!("/proliferate/{session}/stop"), &json!({})).await;
    socket.until(|frame| is_status(frame, "stopped")).await;
    let listened = live.agent.asked("/event").len();
    for live in [live.restarted().await] {
        let mut late = live.watch(&session).await;
        let frames =
            late.until(|frame| frame["type"] == "status" && frame["payload"]["status"] == "stopped").await;
        assert_eq!(of_type(&frames, "init")[0]["payload"]["messages"][1]["content"], "echo: hello");
        late.nothing_but_pong().await;
        assert_eq!(live.agent.asked("/event").len(), listened, "it was woken by a look");
        live.eager_start(&session).await;
        late.nothing_but_pong().await;
        assert_eq!(live.agent.asked("/event").len(), listened, "it was woken by a service");
        let status = live.status(&session).await;
        assert_eq!((&status["state"], &status["status"]), (&json!("terminated"), &json!("stopped")));
        assert!(status["terminatedAt"].is_string());
        late.prompt("wake up").await;
        assert_eq!(tokens(&late.until_type("turn_complete").await), "echo: wake up");
        let status = live.status(&session).await;
        assert_eq!(
            (&status["state"], &status["status"], &status["terminatedAt"]),
            (&json!("running"), &json!("running"), &json!(null))
        );
    }
}

async fn a_stop_in_the_middle_settles_the_turn_and_what_waited(on: On) {
    let live = Live::start(on).await;
    let session = live.session().await;
    let mut socket = live.running(&session).await;
    for prompt in ["first", "second", "third"] {
        socket.prompt(prompt).await;
    }
    // The stop comes over another connection and could overtake the prompts.
    socket.until(|frame| frame["type"] == "queue" && frame["payload"]["length"] == 2).await;
    let turn = live.next_turn().await;
    turn.begin();
    turn.say("half");
    socket.until_type("token").await;
    live.post(&format!("/proliferate/{session}/stop"), &json!({})).await;
    let frames = socket.until(|frame| is_status(frame, "stopped")).await;
    assert_eq!(of_type(&frames, "turn_complete")[0]["payload"]["outcome"], "error");
    assert!(live.app.store.queued_prompts(id(&session)).await.unwrap().is_empty(), "something still waits");
    within(live.agent.wait_for_asked("/abort", 1)).await;
    let live = live.restarted().await;
    live.agent.behave(|manner| manner.echoes = true);
    let mut late = live.watch(&session).await;
    let init = late.until_type("init").await.pop().unwrap();
    let half = &init["payload"]["messages"][1];
    assert_eq!((&half["content"], &half["interrupted"]), (&json!("half"), &json!(true)));
    late.prompt("fresh").await;
    let frames = late.until_type("turn_complete").await;
    assert_eq!(tokens(&frames), "echo: fresh", "what was stopped came back");
}

async fn a_stop_during_a_boot_ends_the_boot(on: On) {
    let live = Live::echoing(on).await;
    live.agent.behave(|manner| manner.mute_health = true);
    let session = live.session_with(&json!({"initialPrompt": "hello"})).await;
    let mut socket = live.watch(&session).await;
    within(live.agent.wait_for_asked("/global/health", 1)).await;
    live.post(&format!("/proliferate/{session}/stop"), &json!({})).await;
    socket.until(|frame| is_status(frame, "stopped")).await;
    within(live.agent.wait_for_hung_up(1)).await;
    assert_eq!(live.agent.asked("").len(), 1, "it went on booting");
    socket.nothing_but_pong().await;
}

async fn a_new_title_is_broadcast(on: On) {
    let live = Live::echoing(on).await;
    let session = live.session().await;
    let mut socket = live.running(&session).await;
    let path = format!("/proliferate/{session}");
    for title in ["", "   ", "two\nlines", &"x".repeat(201)] {
        assert_eq!(
            live.ask("PATCH", &path, Some(&live.ada.token), &json!({"title": title}), None).await.0,
            400
        );
    }
    assert_eq!(
        live.ask("PATCH", &path, Some(&live.ada.token), &json!({"title": " A name "}), None).await.0,
        200
    );
    let update = socket.frame().await;
    assert_eq!((&update["type"], &update["payload"]["title"]), (&json!("title_update"), &json!("A name")));
    let list = live.get("/proliferate/sessions").await;
    assert_eq!(list["sessions"][0]["title"], "A name");
}

async fn a_deleted_session_is_gone_for_everyone_at_once(on: On) {
    let live = Live::start(on).await;
    let session = live.session().await;
    let mut socket = live.running(&session).await;
    socket.prompt("work").await;
    live.next_turn().await.begin();
    let path = format!("/proliferate/{session}");
    assert_eq!(live.ask("DELETE", &path, Some(&live.ada.token), &json!(null), None).await.0, 200);
    assert_eq!(socket.closed().await, (1000, "Session deleted".to_owned()));
    within(live.agent.wait_for_asked("/abort", 1)).await;
    assert_eq!(live.ask("DELETE", &path, Some(&live.ada.token), &json!(null), None).await.0, 404);
    assert_eq!(live.try_watch(&session, &live.ada.token, "").await.err(), Some(404));
    assert!(live.app.store.session_any(id(&session)).await.unwrap().is_none());
    let list = live.get("/proliferate/sessions").await;
    assert_eq!(list["sessions"], json!([]));
    let events = live.get("/v1/audit/events?limit=1000").await;
    let events = events["events"].as_array().unwrap();
    let deletion = events.iter().find(|event| event["target"]["name"] == "session").unwrap();
    assert_eq!(
        (&deletion["target"]["operation"], &deletion["actor"]["actor_id"], &deletion["notes"]),
        (&json!("delete"), &json!(live.ada.id.to_string()), &json!(session))
    );
}

#[tokio::test]
async fn a_deleted_session_is_kept_until_its_sandbox_has_ended() {
    let setup = Setup::sqlite();
    let sandboxes = setup.data_dir().join("sandboxes/sandboxes");
    let live = Live::local(setup).await;
    let session = live.session().await;
    let sandbox = sandboxes.join(&session);
    std::fs::create_dir_all(&sandbox).unwrap();
    std::fs::write(sandbox.join("state.json"), "not a record").unwrap();
    let path = format!("/proliferate/{session}");
    assert_eq!(live.ask("DELETE", &path, Some(&live.ada.token), &json!(null), None).await.0, 200);
    assert_eq!(live.get("/proliferate/sessions").await["sessions"], json!([]));
    assert_eq!(live.ask("DELETE", &path, Some(&live.ada.token), &json!(null), None).await.0, 404);
    assert!(sandbox.exists() && live.app.store.session_any(id(&session)).await.unwrap().is_some());
    // Whoever opens the session next ends the sandbox: this request, or the sweep.
    std::fs::remove_file(sandbox.join("state.json")).unwrap();
    assert_eq!(live.ask("DELETE", &path, Some(&live.ada.token), &json!(null), None).await.0, 404);
    assert!(!sandbox.exists() && live.app.store.session_any(id(&session)).await.unwrap().is_none());
}

async fn a_prompt_over_the_queue_limit_or_budget_is_refused_and_not_stored(on: On) {
    let live = Live::echoing(on).await;
    let (one, two) = (live.session().await, live.session().await);
    let mut socket = live.running(&one).await;
    live.running(&two).await;
    live.post(&format!("/proliferate/{one}/stop"), &json!({})).await;
    socket.until(|frame| is_status(frame, "stopped")).await;
    let prompt = json!({"type": "prompt", "content": "wake up"});
    let ask = async || {
        let path = format!("/proliferate/{one}/message");
        let (status, answer) = live.ask("POST", &path, Some(&live.ada.token), &prompt, None).await;
        (status, answer["details"]["billingCode"].clone())
    };
    for (budget, limit, code) in [(None, Some(1), "CONCURRENT_LIMIT"), (Some(0), None, "NO_CREDITS")] {
        live.app.store.set_org_limits(live.ada.org, budget, limit).await.unwrap();
        assert_eq!(ask().await, (402, json!(code)));
        socket.prompt("wake up").await;
        let refused = socket.frame().await;
        assert_eq!((&refused["type"], &refused["seq"]), (&json!("error"), &json!(null)));
    }
    assert!(live.app.store.queued_prompts(id(&one)).await.unwrap().is_empty(), "a refused prompt waits");
    live.app.store.set_org_limits(live.ada.org, None, Some(2)).await.unwrap();
    assert_eq!(ask().await.0, 200);
    assert_eq!(tokens(&socket.until_type("turn_complete").await), "echo: wake up");
}

async fn a_session_stuck_in_its_start_stops_counting_against_the_limit(on: On) {
    let live = Live::echoing(on).await;
    let (one, two) = (live.session().await, live.session().await);
    let (store, long_ago) = (&live.app.store, live.app.clock.now() - TimeDelta::minutes(11));
    let owner = store.own_session(id(&one), "an instance that died").await.unwrap().owner;
    store.start_session(&owner, long_ago).await.unwrap();
    live.running(&two).await;
    let path = format!("/proliferate/{one}/message");
    let prompt = json!({"type": "prompt", "content": "wake up"});
    for (limit, answer) in [(1, 402), (2, 200)] {
        store.set_org_limits(live.ada.org, None, Some(limit)).await.unwrap();
        assert_eq!(live.ask("POST", &path, Some(&live.ada.token), &prompt, None).await.0, answer);
    }
}

async fn an_immediate_session_that_cannot_start_is_deleted(on: On) {
    let live = Live::unreachable(on).await;
    let mut body = new();
    body["sandboxMode"] = json!("immediate");
    let (status, answer) =
        live.ask("POST", "/proliferate/sessions", Some(&live.ada.token), &body, Some("k")).await;
    assert_eq!(status, 503, "{answer}");
    let list = live.get("/proliferate/sessions").await;
    assert_eq!(list["sessions"], json!([]));
    // The error is the same as the one that watchers of a session that cannot start receive.
    let mut socket = live.watch(&live.session().await).await;
    let told = socket.until(|frame| is_status(frame, "error")).await.pop().unwrap();
    let reason = told["payload"]["message"].as_str().unwrap();
    assert_eq!(answer["error"], format!("The sandbox is not available: {reason}"));
    assert!(reason.contains("not trusted") && !reason.contains("127.0.0.1"), "{reason}");
}

async fn an_immediate_session_that_is_stopped_before_it_runs_is_refused(on: On) {
    let live = Live::echoing(on).await;
    live.agent.behave(|manner| manner.healthy = false);
    let mut body = new();
    body["sandboxMode"] = json!("immediate");
    let slow = live.ask("POST", "/proliferate/sessions", Some(&live.ada.token), &body, None);
    let meanwhile = async {
        within(live.agent.wait_for_asked("/global/health", 1)).await;
        let list = live.get("/proliferate/sessions").await;
        let session = list["sessions"][0]["id"].as_str().unwrap().to_owned();
        live.post(&format!("/proliferate/{session}/stop"), &json!({})).await;
    };
    let ((status, answer), ()) = tokio::join!(slow, meanwhile);
    assert_eq!(status, 503, "{answer}");
    assert!(answer["error"].as_str().unwrap().contains("stopped"), "{answer}");
    assert_eq!(live.get("/proliferate/sessions").await["sessions"], json!([]));
}

async fn every_route_knows_who_may_call_it(on: On) {
    let live = Live::echoing(on).await;
    let session = live.session().await;
    live.running(&session).await;
    let stranger = person(&live.app, org(&live.app).await, proto::Role::Owner).await.token;
    let (unbound, bound) = (service_token(&live.app, None), service_token(&live.app, Some(live.ada.org)));
    let elsewhere = service_token(&live.app, Some(org(&live.app).await));
    let sandbox = sandbox_token(&live.app, id(&session)).await;
    let prompt = json!({"type": "prompt", "content": "x", "userId": live.ada.id.to_string()});
    // Route, body, and the statuses that a member, a service and the sandbox get.
    let routes = [
        ("GET", "", json!(null), 200, 200, 200),
        ("POST", "/message", prompt, 200, 200, 401),
        ("GET", "/messages", json!(null), 200, 200, 403),
        ("POST", "/cancel", json!({}), 200, 200, 403),
        ("POST", "/heartbeat", json!({}), 200, 200, 403),
        ("POST", "/eager-start", json!({}), 403, 202, 403),
        ("PATCH", "", json!({"title": "t"}), 200, 403, 403),
        ("POST", "/stop", json!({}), 200, 403, 403),
        ("DELETE", "", json!(null), 200, 403, 403),
    ];
    for (method, path, body, ..) in &routes {
        let at = |id: &str| format!("/proliferate/{id}{path}");
        let unknown = live.ask(method, &at(&some_uuid().to_string()), Some(&stranger), body, None).await;
        assert_eq!(unknown.0, 404, "{method} {path}");
        for token in [&stranger, &elsewhere] {
            assert_eq!(
                live.ask(method, &at(&session), Some(token), body, None).await,
                unknown,
                "{method} {path}"
            );
        }
        assert_eq!(live.ask(method, &at(&session), None, body, None).await.0, 401, "{method} {path}");
        assert_eq!(live.ask(method, &at(&session), Some("x"), body, None).await.0, 401, "{method} {path}");
    }
    for (method, path, body, member, service, inside) in routes {
        let path = format!("/proliferate/{session}{path}");
        let ask = async |token: &str| live.ask(method, &path, Some(token), &body, None).await.0;
        if method != "DELETE" {
            assert_eq!(ask(&sandbox).await, inside, "the sandbox: {method} {path}");
        }
        assert_eq!(
            (ask(&bound).await, ask(&unbound).await),
            (service, service),
            "a service: {method} {path}"
        );
        assert_eq!(ask(&live.ada.token).await, member, "a member: {method} {path}");
    }
    assert_eq!(
        live.ask("POST", "/proliferate/sessions", Some(&sandbox), &new(), None).await.0,
        401,
        "it died with its session"
    );
}

async fn a_heartbeat_and_a_cancel_wake_no_session(on: On) {
    let live = Live::echoing(on).await;
    let session = live.session().await;
    let heartbeat = live
        .ask("POST", &format!("/proliferate/{session}/heartbeat"), Some(&live.ada.token), &json!({}), None)
        .await;
    assert_eq!((heartbeat.0, &heartbeat.1["error"]), (404, &json!("Session not active")));
    live.post(&format!("/proliferate/{session}/cancel"), &json!({})).await;
    assert_eq!(live.app.hubs.count(), 0);
    let service = service_token(&live.app, None);
    let path = format!("/proliferate/{session}/message");
    let (status, answer) =
        live.ask("POST", &path, Some(&service), &json!({"type": "prompt", "content": "x"}), None).await;
    assert_eq!((status, &answer["error"]), (400, &json!("userId is required for service prompts")));
    for body in [
        json!({"type": "prompt", "content": 5}),
        json!({"type": "other"}),
        json!({"type": "other", "content": "x"}),
        json!({"type": "prompt"}),
        json!({"content": "x"}),
        json!([]),
    ] {
        let (status, answer) = live.ask("POST", &path, Some(&live.ada.token), &body, None).await;
        assert_eq!((status, &answer["error"]), (400, &json!("Invalid message type")), "{body}");
    }
    for empty in ["", " \n"] {
        let body = json!({"type": "prompt", "content": empty});
        let (status, answer) = live.ask("POST", &path, Some(&live.ada.token), &body, None).await;
        assert_eq!((status, &answer["error"]), (400, &json!("content must not be empty")));
    }
    for (missing, other) in
        [("sessionType", "clientType"), ("clientType", "sessionType"), ("sessionType", "title")]
    {
        let body = json!({other: if other == "clientType" { "web" } else { "coding" }});
        let (status, answer) =
            live.ask("POST", "/proliferate/sessions", Some(&live.ada.token), &body, None).await;
        assert_eq!((status, &answer["error"]), (400, &json!(format!("{missing} is required"))), "{body}");
    }
    assert!(live.agent.asked("").is_empty());
}

async fn only_prompts_may_have_twenty_megabytes_of_images(on: On) {
    let live = Live::start(on).await;
    let session = live.session().await;
    let ask = async |path: &str, length: usize| {
        let image = format!("data:image/png;base64,{}", "A".repeat(length));
        let body = json!({"type": "prompt", "content": "look", "images": [image]});
        live.ask("POST", &format!("/proliferate/{path}"), Some(&live.ada.token), &body, None).await.0
    };
    let message = format!("{session}/message");
    assert_eq!(ask(&message, 20_000_000).await, 200);
    assert_eq!(ask(&message, 33 << 20).await, 413);
    assert_eq!(ask("sessions", 2 << 20).await, 413);
}

#[tokio::test]
async fn a_new_managed_configuration_is_set_up_by_a_session_of_its_own_once() {
    let live = Live::start(On::Sqlite).await;
    for name in ["app", "library"] {
        live.add_repo(&format!("https://example.com/{name}.git")).await;
    }
    let mut body = new();
    body["managedConfiguration"] = json!({});
    let made = live.post("/proliferate/sessions", &body).await;
    assert_eq!((&made["isNewConfiguration"], &made["status"]), (&json!(true), &json!("pending")));
    let turn = within(live.agent.next_turn()).await;
    assert!(turn.text.contains("app, library"), "{}", turn.text);
    turn.answer("done");
    let again = live.post("/proliferate/sessions", &body).await;
    assert_eq!(
        (&again["isNewConfiguration"], &again["configurationId"]),
        (&json!(false), &made["configurationId"])
    );
    let (_, list) = live.ask("GET", "/proliferate/sessions", Some(&live.ada.token), &json!(null), None).await;
    let all = list["sessions"].as_array().unwrap();
    let setup: Vec<_> = all.iter().filter(|session| session["sessionType"] == "setup").collect();
    assert_eq!((all.len(), setup.len()), (3, 1), "{list}");
    assert_eq!(setup[0]["configurationId"], made["configurationId"]);
    let mut socket = live.watch(setup[0]["id"].as_str().unwrap()).await;
    let init = socket.until_type("init").await.pop().unwrap();
    assert_eq!(init["payload"]["messages"][0]["senderId"], "managed-configuration-setup");
}

#[tokio::test]
async fn a_failed_setup_of_a_managed_configuration_is_tried_again_for_the_next_session() {
    let live = Live::start(On::Sqlite).await;
    live.add_repo("https://example.com/app.git").await;
    let mut body = new();
    body["managedConfiguration"] = json!({});
    let create = async || live.ask("POST", "/proliferate/sessions", Some(&live.ada.token), &body, None).await;
    let limit = async |limit| live.app.store.set_org_limits(live.ada.org, None, Some(limit)).await.unwrap();
    limit(0).await;
    assert_eq!(create().await.0, 402);
    assert_eq!(live.get("/v1/configurations").await["configurations"], json!([]), "it was made for nobody");
    // The limit allows the session itself, but not the additional setup session.
    limit(1).await;
    let (status, made) = create().await;
    assert_eq!((status, &made["isNewConfiguration"]), (201, &json!(true)));
    limit(9).await;
    let (status, again) = create().await;
    assert_eq!((status, &again["configurationId"]), (201, &made["configurationId"]));
    let turn = within(live.agent.next_turn()).await;
    assert!(turn.text.contains("Set up the workspace for: app"), "{}", turn.text);
    turn.answer("done");
    assert_eq!(create().await.0, 201);
    let list = live.get("/proliferate/sessions").await;
    let all = list["sessions"].as_array().unwrap();
    let setup = all.iter().filter(|session| session["sessionType"] == "setup").count();
    assert_eq!((all.len(), setup), (4, 1), "{list}");
}

async fn a_long_conversation_is_read_page_by_page_without_waking_anything(on: On) {
    let live = Live::echoing(on).await;
    let session = live.session().await;
    let owner = live.app.store.own_session(id(&session), "a test").await.unwrap().owner;
    let said = |number: usize| Message {
        id: format!("msg_{number:02}"),
        role: if number.is_multiple_of(2) { MessageRole::User } else { MessageRole::Assistant },
        content: format!("{number} {}", "x".repeat(900_000)),
        is_complete: true,
        created_at: 1_794_709_467_000,
        sender_id: None,
        source: None,
        tool_calls: Vec::new(),
        parts: Vec::new(),
        interrupted: false,
        error: None,
    };
    let all: Vec<_> = (0..20).map(|number| StoredMessage::from_message(said(number), [])).collect();
    live.app.store.save_messages(&owner, 0, all).await.unwrap();

    // A stream starts with the newest messages, up to a size limit, and says how many came before.
    let mut socket = live.watch_with(&session, "&passive=1").await;
    let init = socket.until_type("init").await.pop().unwrap();
    let shown = init["payload"]["messages"].as_array().unwrap().clone();
    let earlier = init["payload"]["earlier"].as_u64().unwrap();
    assert!(earlier > 0 && shown.len() as u64 + earlier == 20, "{earlier} {}", shown.len());
    let mut ids: Vec<_> = shown.iter().map(|message| message["id"].clone()).collect();
    let mut left = earlier;
    while left > 0 {
        let page =
            live.get(&format!("/proliferate/{session}/messages?before={}", ids[0].as_str().unwrap())).await;
        let older = page["messages"].as_array().unwrap();
        assert!(!older.is_empty() && page["earlier"].as_u64().unwrap() + older.len() as u64 == left);
        assert!(older[0]["content"].as_str().unwrap().len() > 900_000, "a page holds whole messages");
        left = page["earlier"].as_u64().unwrap();
        ids.splice(0..0, older.iter().map(|message| message["id"].clone()));
    }
    assert_eq!(ids, (0..20).map(|number| json!(format!("msg_{number:02}"))).collect::<Vec<_>>());
    let newest = live.get(&format!("/proliferate/{session}/messages")).await;
    assert_eq!(newest["messages"].as_array().unwrap().last().unwrap()["id"], "msg_19");

    let ask =
        async |path: String, token: &str| live.ask("GET", &path, Some(token), &Value::Null, None).await.0;
    let path = format!("/proliferate/{session}/messages?before=msg_20");
    assert_eq!(ask(path.clone(), &live.ada.token).await, 404);
    let stranger = person(&live.app, org(&live.app).await, proto::Role::Owner).await.token;
    assert_eq!(ask(path, &stranger).await, 404);
    assert_eq!(live.agent.asked("/event").len(), 0, "it was woken");
}

#[tokio::test]
async fn a_heartbeat_counts_as_use() {
    let live = Live::echoing(On::Sqlite).await;
    let session = live.session().await;
    let _socket = live.running(&session).await;
    let used = async || live.app.store.session_any(id(&session)).await.unwrap().unwrap().last_activity_at;
    let before = used().await;
    live.post(&format!("/proliferate/{session}/heartbeat"), &json!({})).await;
    assert!(used().await > before);
}
