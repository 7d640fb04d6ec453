//! Idempotency keys: a request is executed once, a retry gets the same answer, and a failed request frees its key.

use proto::Role;
use serde_json::{Value, json};

use crate::harness::within;
use crate::live::{Live, On, of_type, on_both};
use crate::people::{person, service_token};

on_both! {
    two_callers_may_use_the_same_key
    one_key_is_one_session_and_one_prompt
    while_a_request_runs_its_key_is_taken
    a_keyed_request_is_finished_although_its_client_disconnected
}

fn new() -> Value {
    json!({"sessionType": "coding", "clientType": "web"})
}

async fn one_key_is_one_session_and_one_prompt(on: On) {
    let live = Live::echoing(on).await;
    let ask = async |path: &str, body: &Value, key: &str| {
        live.ask("POST", path, Some(&live.ada.token), body, Some(key)).await
    };
    let first = ask("/proliferate/sessions", &new(), "k").await;
    assert_eq!(first.0, 201);
    assert_eq!(ask("/proliferate/sessions", &new(), "k").await, first);
    let mut other = new();
    other["title"] = json!("another");
    assert_eq!(ask("/proliferate/sessions", &other, "k").await.0, 422);
    assert_ne!(ask("/proliferate/sessions", &new(), "l").await.1["sessionId"], first.1["sessionId"]);
    let session = first.1["sessionId"].as_str().unwrap().to_owned();
    let mut socket = live.running(&session).await;
    let (path, body) =
        (format!("/proliferate/{session}/message"), json!({"type": "prompt", "content": "once"}));
    // Keys are separate for each route.
    let (one, two) = tokio::join!(ask(&path, &body, "k"), ask(&path, &body, "k"));
    let mut statuses = [one.0, two.0];
    statuses.sort_unstable();
    assert!(statuses == [200, 200] || statuses == [200, 409], "{statuses:?}");
    let replayed = ask(&path, &body, "k").await;
    assert_eq!((replayed.0, &replayed.1["ok"]), (200, &json!(true)));
    assert_eq!(ask(&path, &json!({"type": "prompt", "content": "twice"}), "k").await.0, 422);
    let said = socket.until_type("turn_complete").await;
    assert_eq!(replayed.1["messageId"], of_type(&said, "message")[0]["payload"]["id"]);
    socket.nothing_but_pong().await;
    assert_eq!(live.agent.asked("/prompt_async").len(), 1);
    for key in ["", &"x".repeat(256), "\u{e9}"] {
        assert_eq!(ask("/proliferate/sessions", &new(), key).await.0, 400, "{key:?}");
    }
    let service = service_token(&live.app, Some(live.ada.org));
    let by_service =
        json!({"type": "prompt", "content": "from a service", "userId": live.ada.id.to_string()});
    for _ in 0..2 {
        assert_eq!(live.ask("POST", &path, Some(&service), &by_service, Some("s")).await.0, 200);
    }
    socket.until_type("turn_complete").await;
    socket.nothing_but_pong().await;
    assert_eq!(live.agent.asked("/prompt_async").len(), 2, "keys of services count");
}

async fn two_callers_may_use_the_same_key(on: On) {
    let live = Live::echoing(on).await;
    let bob = person(&live.app, live.ada.org, Role::Member).await;
    let service = service_token(&live.app, Some(live.ada.org));
    let mut made = Vec::new();
    for token in [&live.ada.token, &bob.token, &service] {
        let (status, answer) =
            live.ask("POST", "/proliferate/sessions", Some(token), &new(), Some("k")).await;
        assert_eq!(status, 201, "{answer}");
        made.push(answer["sessionId"].as_str().unwrap().to_owned());
    }
    assert!(made[0] != made[1] && made[1] != made[2] && made[0] != made[2], "{made:?}");
    let path = format!("/proliferate/{}/message", made[0]);
    let prompt = json!({"type": "prompt", "content": "both say this"});
    let ask = async |token: &str| live.ask("POST", &path, Some(token), &prompt, Some("k")).await;
    let (ada, bob) = (ask(&live.ada.token).await, ask(&bob.token).await);
    assert_eq!((ada.0, bob.0), (200, 200), "{} {}", ada.1, bob.1);
    assert_ne!(ada.1["messageId"], bob.1["messageId"], "each of them said it");
}

async fn while_a_request_runs_its_key_is_taken(on: On) {
    let live = Live::echoing(on).await;
    live.agent.behave(|manner| manner.healthy = false);
    let mut body = new();
    body["sandboxMode"] = json!("immediate");
    let slow = live.ask("POST", "/proliferate/sessions", Some(&live.ada.token), &body, Some("slow"));
    let meanwhile = async {
        within(live.agent.wait_for_asked("/global/health", 1)).await;
        let second =
            live.ask("POST", "/proliferate/sessions", Some(&live.ada.token), &body, Some("slow")).await;
        live.agent.behave(|manner| manner.healthy = true);
        second
    };
    let (first, second) = tokio::join!(slow, meanwhile);
    assert_eq!((first.0, second.0), (201, 409));
    assert_eq!(first.1["status"], "running");
    assert_eq!(first.1["sandbox"]["sandboxId"], first.1["sessionId"]);
    let (_, info) = live
        .ask(
            "GET",
            &format!("/proliferate/{}", first.1["sessionId"].as_str().unwrap()),
            Some(&live.ada.token),
            &json!(null),
            None,
        )
        .await;
    assert_eq!(
        (&info["status"], &info["sandboxId"]),
        (&json!("running"), &first.1["sessionId"]),
        "as it is, not as it was"
    );
}

async fn a_keyed_request_is_finished_although_its_client_disconnected(on: On) {
    let live = Live::echoing(on).await;
    live.agent.behave(|manner| manner.healthy = false);
    let mut body = new();
    body["sandboxMode"] = json!("immediate");
    let ask = || live.ask("POST", "/proliferate/sessions", Some(&live.ada.token), &body, Some("k"));
    tokio::select! {
        early = ask() => panic!("{early:?}"),
        () = within(live.agent.wait_for_asked("/global/health", 1)) => {}
    }
    live.agent.behave(|manner| manner.healthy = true);
    let again = within(async {
        loop {
            let again = ask().await;
            if again.0 != 409 {
                return again;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    })
    .await;
    assert_eq!((again.0, &again.1["status"]), (201, &json!("running")), "{}", again.1);
    let list = live.get("/proliferate/sessions").await;
    assert_eq!(list["sessions"].as_array().unwrap().len(), 1, "it was made twice");
}

/// The database failed between the work and its record.
#[tokio::test]
async fn a_session_is_made_once_although_the_answer_could_not_be_stored() {
    let live = Live::echoing(On::Postgres).await;
    let body = new();
    let ask = || live.ask("POST", "/proliferate/sessions", Some(&live.ada.token), &body, Some("k"));
    let refuse = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$; \
        CREATE TRIGGER refuse BEFORE UPDATE ON idempotency_keys FOR EACH ROW EXECUTE FUNCTION refuse()";
    live.gateway.setup.sql(refuse).await;
    let first = ask().await;
    assert_eq!(first.0, 201, "the session exists, so its client is told: {}", first.1);
    assert_eq!(ask().await.0, 409);
    // As if the instance had died before it recorded the answer.
    live.gateway.setup.sql("DROP TRIGGER refuse ON idempotency_keys").await;
    live.gateway.setup.sql("UPDATE idempotency_keys SET instance = 'dead' WHERE state = 'in_flight'").await;
    assert_eq!(ask().await, first);
    let list = live.get("/proliferate/sessions").await;
    assert_eq!(list["sessions"].as_array().unwrap().len(), 1, "it was made twice");
}

/// The gateway died between the session and the answer. Its user has worked in it and stopped it since.
#[tokio::test]
async fn a_retry_that_cannot_start_a_session_leaves_what_the_first_attempt_made() {
    let live = Live::echoing(On::Postgres).await;
    let mut body = new();
    body["sandboxMode"] = json!("immediate");
    let ask = || live.ask("POST", "/proliferate/sessions", Some(&live.ada.token), &body, Some("k"));
    let (status, made) = ask().await;
    assert_eq!(status, 201, "{made}");
    let session = made["sessionId"].as_str().unwrap();
    live.post(&format!("/proliferate/{session}/stop"), &json!({})).await;
    let cut_off = "UPDATE idempotency_keys SET state = 'in_flight', response_status = NULL, response = NULL, \
        instance = 'dead'";
    live.gateway.setup.sql(cut_off).await;
    let (status, answer) = ask().await;
    assert_eq!(status, 503, "{answer}");
    assert!(answer["error"].as_str().unwrap().contains("stopped"), "{answer}");
    assert_eq!(live.status(session).await["status"], "stopped", "it was deleted");
}

/// The gateway died after it stored the prompt and before it stored the answer.
#[tokio::test]
async fn a_prompt_retried_with_its_key_is_sent_once_although_the_reply_was_lost() {
    let live = Live::echoing(On::Postgres).await;
    let session = live.session().await;
    let path = format!("/proliferate/{session}/message");
    let ask = async |content: &str| {
        let body = json!({"type": "prompt", "content": content});
        live.ask("POST", &path, Some(&live.ada.token), &body, Some("key-1")).await
    };
    let (status, first) = ask("once").await;
    assert_eq!(status, 200, "{first}");
    live.gateway.setup.sql("DELETE FROM idempotency_keys").await;
    assert_eq!(ask("once").await, (200, first));
    live.gateway.setup.sql("DELETE FROM idempotency_keys").await;
    let (status, other) = ask("another").await;
    assert_eq!(status, 200, "{other}");
    within(live.agent.wait_for_asked("/prompt_async", 2)).await;
    let sent = live.agent.asked("/prompt_async");
    let texts: Vec<_> = sent.iter().map(|asked| &asked.body["parts"][0]["text"]).collect();
    assert_eq!(texts, [&json!("once"), &json!("another")]);
}
