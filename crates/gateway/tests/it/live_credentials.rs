//! A socket closes when the credential that opened it ends, whichever process ends it, and no later command is
//! executed.

use proto::Role;
use serde_json::json;

use crate::live::{Live, On, Socket, on_both};
use crate::people::{Person, api_key, person, service_token, user_token};

on_both! {
    a_socket_ends_with_the_membership
    a_socket_is_closed_only_with_its_own_key
    a_socket_ends_with_its_login
    a_ticket_ends_with_the_credential_that_created_it
    a_command_is_refused_before_the_socket_is_closed
    a_role_counts_from_the_next_command
    an_expired_token_does_not_end_a_socket
}

const CREDENTIAL_ENDED: (u16, &str) = (4401, "credential ended");

async fn assert_ended(socket: &mut Socket) {
    let (code, reason) = socket.closed().await;
    assert_eq!((code, reason.as_str()), CREDENTIAL_ENDED);
}

async fn a_socket_ends_with_the_membership(on: On) {
    let live = Live::echoing(on).await;
    let session = live.session().await;
    let bob = person(&live.app, live.ada.org, Role::Member).await;
    let key = api_key(&live.app, &bob).await.1;
    let mut by_token = live.try_watch(&session, &bob.token, "").await.unwrap();
    let mut by_key = live.try_watch(&session, &key, "").await.unwrap();
    let mut others = live.running(&session).await;
    let mut service = live.try_watch(&session, &service_token(&live.app, None), "").await.unwrap();
    // Change the store directly, as `users rm` does in another process: this process is not notified.
    live.app.store.change_member(bob.org, bob.id, None, live.app.clock.now()).await.unwrap();
    assert_ended(&mut by_token).await;
    assert_ended(&mut by_key).await;
    others.nothing_but_pong().await;
    service.send(&json!({"type": "ping"})).await;
    service.until_type("pong").await;
}

async fn a_socket_is_closed_only_with_its_own_key(on: On) {
    let live = Live::echoing(on).await;
    let session = live.session().await;
    let (id, key) = api_key(&live.app, &live.ada).await;
    let (_, other) = api_key(&live.app, &live.ada).await;
    let mut by_key = live.try_watch(&session, &key, "").await.unwrap();
    let mut by_other = live.try_watch(&session, &other, "").await.unwrap();
    let mut by_token = live.running(&session).await;
    live.app.store.revoke_key(live.ada.org, id, None, live.app.clock.now()).await.unwrap();
    assert_ended(&mut by_key).await;
    by_token.nothing_but_pong().await;
    by_other.send(&json!({"type": "ping"})).await;
    by_other.until_type("pong").await;
}

/// Creates a ticket for the session's socket with this credential.
async fn ticket(live: &Live, session: &str, credential: (&str, &str)) -> String {
    let (header, value) = credential;
    let origin = live.app.site.url.origin().ascii_serialization();
    let request = crate::harness::client()
        .post(live.gateway.url("/v1/tickets"))
        .header(header, value)
        .header("origin", origin)
        .header("content-type", "application/json")
        .body(json!({"sessionId": session, "kind": "socket"}).to_string());
    let answer = crate::harness::within(request.send()).await.unwrap();
    assert_eq!(answer.status().as_u16(), 201);
    let body: serde_json::Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
    body["ticket"].as_str().unwrap().to_owned()
}

/// Logs this person in and returns the value of the cookie header.
async fn login(live: &Live, person: &Person) -> String {
    let code = crate::people::login_code(&live.app, person).await;
    let request = crate::harness::client()
        .post(live.gateway.url("/v1/login"))
        .header("content-type", "application/json")
        .body(json!({ "code": code }).to_string());
    let answer = crate::harness::within(request.send()).await.unwrap();
    answer.headers()["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned()
}

async fn a_socket_ends_with_its_login(on: On) {
    let live = Live::echoing(on).await;
    let session = live.session().await;
    let cookie = login(&live, &live.ada).await;
    let ticket = ticket(&live, &session, ("cookie", &cookie)).await;
    let mut socket = live.try_watch(&session, &ticket, "").await.unwrap();
    let origin = live.app.site.url.origin().ascii_serialization();
    let logout = crate::harness::client()
        .post(live.gateway.url("/v1/logout"))
        .header("cookie", &cookie)
        .header("origin", origin);
    assert_eq!(crate::harness::within(logout.send()).await.unwrap().status().as_u16(), 200);
    assert_ended(&mut socket).await;
}

async fn a_ticket_ends_with_the_credential_that_created_it(on: On) {
    let live = Live::echoing(on).await;
    let session = live.session().await;
    let (id, key) = api_key(&live.app, &live.ada).await;
    let bearer = format!("Bearer {key}");
    let early = ticket(&live, &session, ("authorization", &bearer)).await;
    let late = ticket(&live, &session, ("authorization", &bearer)).await;
    let mut socket = live.try_watch(&session, &early, "").await.unwrap();
    live.app.store.revoke_key(live.ada.org, id, None, live.app.clock.now()).await.unwrap();
    assert_eq!(live.try_watch(&session, &late, "").await.err(), Some(401), "its key has ended");
    assert_ended(&mut socket).await;
}

/// Every command is checked, however recently the credential has ended.
async fn a_command_is_refused_before_the_socket_is_closed(on: On) {
    let live = Live::echoing(on).await;
    let session = live.session().await;
    let bob = person(&live.app, live.ada.org, Role::Member).await;
    live.running(&session).await;
    for command in [json!({"type": "prompt", "content": "after the end"}), json!({"type": "get_messages"})] {
        let (id, key) = api_key(&live.app, &bob).await;
        let mut socket = live.try_watch(&session, &key, "").await.unwrap();
        socket.until_type("init").await;
        live.app.store.revoke_key(bob.org, id, None, live.app.clock.now()).await.unwrap();
        socket.send(&command).await;
        loop {
            match socket.next_or_close().await {
                Ok(frame) => {
                    let answered = ["\"init\"", "\"message\""].iter().any(|kind| frame.contains(kind));
                    assert!(!answered, "{frame}");
                }
                Err((code, reason)) => {
                    assert_eq!((code, reason.as_str()), CREDENTIAL_ENDED);
                    break;
                }
            }
        }
    }
    assert!(live.agent.asked("/prompt_async").is_empty(), "the prompt reached the agent");
}

async fn a_role_counts_from_the_next_command(on: On) {
    let live = Live::echoing(on).await;
    let session = live.session().await;
    let admin = person(&live.app, live.ada.org, Role::Admin).await;
    live.running(&session).await;
    let mut socket = live.try_watch(&session, &admin.token, "").await.unwrap();
    let snapshot = json!({"type": "save_snapshot"});
    socket.send(&snapshot).await;
    socket.until_type("snapshot_result").await;
    live.app
        .store
        .change_member(admin.org, admin.id, Some(Role::Member), live.app.clock.now())
        .await
        .unwrap();
    socket.send(&snapshot).await;
    let refused = socket.until_type("error").await.pop().unwrap();
    assert_eq!(refused["payload"]["message"], "Not authorized to modify this session");
    live.app.store.change_member(admin.org, admin.id, Some(Role::Admin), live.app.clock.now()).await.unwrap();
    socket.send(&snapshot).await;
    socket.until_type("snapshot_result").await;
}

async fn an_expired_token_does_not_end_a_socket(on: On) {
    let clock = clock::Clock::manual(clock::Clock::system().now());
    let live = Live::with(on.setup().await.clock(&clock)).await;
    live.agent.behave(|manner| manner.echoes = true);
    let session = live.session().await;
    let token = user_token(&live.app, live.ada.id, live.ada.org);
    let mut socket = live.try_watch(&session, &token, "").await.unwrap();
    socket.until(|frame| crate::live::is_status(frame, "running")).await;
    clock.advance(std::time::Duration::from_hours(2));
    assert_eq!(live.try_watch(&session, &token, "").await.err(), Some(401), "it opens nothing any more");
    socket.send(&json!({"type": "prompt", "content": "still here"})).await;
    socket.until_type("turn_complete").await;
}
