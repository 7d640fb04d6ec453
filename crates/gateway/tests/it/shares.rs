//! Fair shares: however much one session, organization or address holds, the next one is served.

use std::net::Ipv4Addr;
use std::sync::Arc;

use axum::body::Bytes;
use axum::response::IntoResponse as _;
use axum::{Router, routing};
use gateway::AppState;
use serde_json::json;
use tokio::sync::Semaphore;

use proto::Role;

use crate::harness::{Running, Setup, TestGateway, within};
use crate::live::{Live, On};
use crate::model_proxy::serve;
use crate::people::{Person, org, person, sandbox_token, session};
use crate::raw::Raw;

const MIB: u64 = 1024 * 1024;

/// The token of a sandbox in a new organization.
async fn sandbox(app: &AppState) -> String {
    sandbox_token(app, session(app, org(app).await).await).await
}

fn prompt(text: &str) -> String {
    json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": text}]}).to_string()
}

async fn patient(setup: Setup) -> TestGateway {
    setup.set("PROLIFERATE_CLIENT_TIMEOUT_SECONDS", "600").start().await
}

/// Sends the head of a model request and the given part of its body.
async fn ask(running: &Running, token: &str, length: usize, body: &[u8]) -> Raw {
    let mut client = Raw::open(running.address).await;
    let head = format!("POST /llm/v1/messages HTTP/1.1\r\nHost: t\r\nx-api-key: {token}");
    client.send(format!("{head}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n")).await;
    client.send(body).await;
    client
}

/// The complete answer to a model request.
async fn answered(running: &Running, token: &str) -> String {
    let body = prompt("hi");
    ask(running, token, body.len(), body.as_bytes()).await.rest().await
}

/// Yields to other tasks until the condition holds.
async fn until(mut done: impl FnMut() -> bool) {
    within(async {
        while !done() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn slow_requests_of_one_sandbox_do_not_block_the_model_for_others() {
    let gateway = patient(Setup::sqlite()).await;
    let (slow, neighbour) = (sandbox(&gateway.app).await, sandbox(&gateway.app).await);
    let (app, running) = (gateway.app.clone(), gateway.serve());
    let mut held = Vec::new();
    for _ in 0..80 {
        held.push(ask(&running, &slow, 99_999, b"{").await);
    }
    // All requests have arrived once each holds memory.
    until(|| app.shares.memory.used() >= 80).await;
    assert_eq!(app.shares.model_requests.used(), 0, "who still sends has no slot");
    let said = answered(&running, &neighbour).await;
    assert!(said.starts_with("HTTP/1.1 200"), "{said}");
    let said = answered(&running, &slow).await;
    assert!(said.starts_with("HTTP/1.1 200"), "its own finished request passes too: {said}");
}

/// A model provider that answers prompts with "slow" in them only when the test releases it.
async fn slow_provider() -> (String, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let told = Arc::clone(&gate);
    let answer = move |body: Bytes| async move {
        if body.windows(4).any(|word| word == b"slow") {
            let _told = told.acquire().await;
        }
        ([("content-type", "application/json")], r#"{"usage":{"input_tokens":1,"output_tokens":1}}"#)
            .into_response()
    };
    let provider = serve(Router::new().fallback(routing::any(answer))).await;
    (format!("http://{provider}"), gate)
}

#[tokio::test]
async fn beyond_its_share_of_model_requests_a_caller_gets_429_and_others_are_answered() {
    let (provider, told) = slow_provider().await;
    let setup = Setup::sqlite().set("ANTHROPIC_API_KEY", "k").set("ANTHROPIC_BASE_URL", &provider);
    let gateway = patient(setup.set("PROLIFERATE_MODEL_REQUESTS", "60")).await;
    let app = gateway.app.clone();
    let crowded = org(&app).await;
    let mut tokens = Vec::new();
    for _ in 0..3 {
        tokens.push(sandbox_token(&app, session(&app, crowded).await).await);
    }
    let (other, running) = (sandbox(&app).await, gateway.serve());
    let slow = prompt("slow");
    let mut held = Vec::new();
    for token in [&tokens[0], &tokens[1]] {
        for _ in 0..15 {
            held.push(ask(&running, token, slow.len(), slow.as_bytes()).await);
        }
    }
    until(|| app.shares.model_requests.used() == 30).await;
    held.push(ask(&running, &tokens[2], slow.len(), slow.as_bytes()).await);
    let said = held.pop().unwrap().rest().await;
    assert!(said.starts_with("HTTP/1.1 429") && said.contains("rate_limit_error"), "{said}");
    assert!(said.contains("retry-after: 1\r\n"), "{said}");
    assert!(said.contains("This organization has used its share of model requests"), "{said}");
    assert!(answered(&running, &other).await.starts_with("HTTP/1.1 200"));
    told.add_permits(99);
    for mut client in held {
        assert!(client.rest().await.starts_with("HTTP/1.1 200"));
    }
    until(|| app.shares.model_requests.used() == 0).await;
    assert_eq!(app.shares.memory.used(), 0);
    assert!(answered(&running, &tokens[2]).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_session_with_its_share_of_slots_gets_429_while_its_organization_has_some() {
    let (provider, told) = slow_provider().await;
    let setup = Setup::sqlite().set("ANTHROPIC_API_KEY", "k").set("ANTHROPIC_BASE_URL", &provider);
    let gateway = patient(setup).await;
    let app = gateway.app.clone();
    let (token, running, slow) = (sandbox(&app).await, gateway.serve(), prompt("slow"));
    let mut held = Vec::new();
    for _ in 0..16 {
        held.push(ask(&running, &token, slow.len(), slow.as_bytes()).await);
    }
    until(|| app.shares.model_requests.used() == 16).await;
    let said = answered(&running, &token).await;
    assert!(said.starts_with("HTTP/1.1 429") && said.contains("This session has used its share"), "{said}");
    told.add_permits(99);
}

#[tokio::test]
async fn unfinished_bodies_of_one_session_take_no_more_than_its_share_of_memory() {
    let gateway = patient(Setup::sqlite().set("PROLIFERATE_SHARED_MEMORY_MIB", "256")).await;
    let app = gateway.app.clone();
    let (greedy, neighbour) = (sandbox(&app).await, sandbox(&app).await);
    let running = gateway.serve();
    let (length, part) = (model::MAX_BODY - 1, vec![b' '; 9 << 20]);
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(ask(&running, &greedy, length, &part).await);
    }
    until(|| app.shares.memory.used() >= 27 * MIB).await;
    assert!(
        app.shares.memory.used() <= 32 * MIB,
        "what was announced is not held: {}",
        app.shares.memory.used()
    );
    let said = ask(&running, &greedy, length, &part).await.rest().await;
    assert!(said.is_empty() || said.starts_with("HTTP/1.1 429"), "{said}");
    assert!(app.shares.memory.used() <= 32 * MIB);
    assert!(answered(&running, &neighbour).await.starts_with("HTTP/1.1 200"));
    drop(held);
    until(|| app.shares.memory.used() == 0).await;
}

#[tokio::test]
async fn unauthenticated_callers_send_a_few_kilobytes_and_share_little_memory() {
    let gateway = patient(Setup::sqlite().set("PROLIFERATE_SHARED_MEMORY_MIB", "256")).await;
    let (app, running) = (gateway.app.clone(), gateway.serve());
    let login = |length: usize| {
        format!("POST /v1/login HTTP/1.1\r\nHost: t\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n")
    };
    let mut large = Raw::open(running.address).await;
    large.send(login(4097)).await;
    assert!(large.rest().await.starts_with("HTTP/1.1 413"));
    let (mut held, share) = (Vec::new(), app.shares.anonymous_memory.limits().total / 2);
    for _ in 0..share / (16 * 1024) {
        let mut client = Raw::open(running.address).await;
        client.send(format!("{}{{", login(4000))).await;
        held.push(client);
    }
    until(|| app.shares.anonymous_memory.used() == share).await;
    let mut more = Raw::open(running.address).await;
    more.send(format!("{}{{", login(4000))).await;
    let said = more.rest().await;
    assert!(said.starts_with("HTTP/1.1 429") && said.contains("This address has used its share"), "{said}");
    assert!(said.contains("retry-after: 1\r\n"), "{said}");
    let mut other = Raw::open_from(Ipv4Addr::new(127, 0, 0, 2).into(), running.address).await;
    other.send(format!("{}{{\"code\":\"pll_00\"}}", login(17))).await;
    assert!(other.rest().await.starts_with("HTTP/1.1 401"), "another address logs in");
    assert_eq!(app.shares.memory.used(), 0);
}

/// Connects to a new session of this person and completes the WebSocket handshake.
async fn watch(app: &AppState, running: &Running, who: &Person) -> Raw {
    let session = session(app, who.org).await;
    let mut client = Raw::open(running.address).await;
    let path = format!("/proliferate/{session}?passive=1&token={}", who.token);
    let key = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==";
    client
        .send(format!(
            "GET {path} HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n{key}\r\n\r\n"
        ))
        .await;
    assert!(client.until("\r\n\r\n").await.starts_with("HTTP/1.1 101"));
    client
}

/// The header of a text frame of this length, with a mask of zeros that changes nothing.
fn frame_of(length: u64) -> Vec<u8> {
    [&[0x81, 0xff][..], &length.to_be_bytes(), &[0; 4]].concat()
}

#[tokio::test]
async fn unfinished_frames_are_held_within_the_share_of_their_session_and_organization() {
    let gateway = patient(Setup::sqlite().set("PROLIFERATE_SHARED_MEMORY_MIB", "256")).await;
    let app = gateway.app.clone();
    let (greedy, neighbour) = (
        person(&app, org(&app).await, Role::Member).await,
        person(&app, org(&app).await, Role::Member).await,
    );
    let running = gateway.serve();
    let part = vec![b' '; 20 << 20];
    let mut held = Vec::new();
    for _ in 0..6 {
        let mut client = watch(&app, &running, &greedy).await;
        client.send(frame_of(30 * MIB)).await;
        assert!(client.send(&part).await);
        held.push(client);
    }
    until(|| app.shares.memory.used() >= 120 * MIB).await;
    // The seventh frame would exceed half of the memory, and the share of one session.
    let mut over = watch(&app, &running, &greedy).await;
    over.send(frame_of(30 * MIB)).await;
    over.send(&part).await;
    over.rest().await;
    assert!(app.shares.memory.used() <= 128 * MIB, "{}", app.shares.memory.used());
    let mut other = watch(&app, &running, &neighbour).await;
    let ping = format!(r#"{{"type":"ping","pad":"{}"}}"#, "x".repeat(20 << 20));
    other.send(frame_of(ping.len() as u64)).await;
    other.send(&ping).await;
    other.until(r#"{"type":"pong"}"#).await;
    drop((held, over));
    until(|| app.shares.memory.used() == 0).await;
}

#[tokio::test]
async fn queued_prompts_are_stored_up_to_the_limit_of_a_session() {
    for on in [On::Sqlite, On::Postgres] {
        let live = Live::start(on).await;
        let session = live.session().await;
        live.prompt(&session, "first").await;
        let first = live.next_turn().await;
        let image = format!("data:image/png;base64,{}", "A".repeat(30 << 20));
        let large = json!({"type": "prompt", "content": "look", "images": [image]});
        let path = format!("/proliferate/{session}/message");
        let ask = async || live.ask("POST", &path, Some(&live.ada.token), &large, None).await;
        assert_eq!((ask().await.0, ask().await.0), (200, 200));
        let (status, refused) = ask().await;
        assert_eq!((status, &refused["code"]), (429, &json!("rate_limited")), "{refused}");
        until(|| live.app.shares.memory.used() == 0).await;
        live.prompt(&session, "last").await;
        first.answer("one");
        for _ in 0..2 {
            let turn = live.next_turn().await;
            assert_eq!(turn.text, "look");
            turn.answer("seen");
        }
        assert_eq!(live.next_turn().await.text, "last");
        until(|| live.app.shares.memory.used() == 0).await;
    }
}

#[tokio::test]
async fn hostile_histories_use_only_their_sessions_share_and_delay_no_other_session() {
    let live = Live::with(Setup::sqlite().set("PROLIFERATE_SHARED_MEMORY_MIB", "256")).await;
    let mut sessions = Vec::new();
    for _ in 0..2 {
        let session = live.session().await;
        live.prompt(&session, "go").await;
        let turn = live.next_turn().await;
        turn.begin();
        sessions.push((session, turn));
    }
    live.agent.behave(|manner| manner.endless_history = Some(20 << 20));
    live.agent.cut();
    // Both sessions read the endless history until their share is used up.
    let most = Arc::new(std::sync::atomic::AtomicU64::new(0));
    until(|| {
        let used = live.app.shares.memory.used();
        most.fetch_max(used, std::sync::atomic::Ordering::SeqCst);
        used > 20 * MIB
    })
    .await;
    // The test runtime has one worker thread, so this request succeeds only if nothing blocks it.
    let mut other = Raw::open(live.gateway.address).await;
    until(|| {
        most.fetch_max(live.app.shares.memory.used(), std::sync::atomic::Ordering::SeqCst);
        live.app.shares.memory.used() == 0
    })
    .await;
    assert!(other.healthy().await);
    let most = most.load(std::sync::atomic::Ordering::SeqCst);
    assert!(most <= 64 * MIB, "{most}");
    // A normal history is read again.
    live.agent.behave(|manner| manner.endless_history = None);
    for (session, turn) in sessions {
        let mut socket = live.watch(&session).await;
        turn.answer("done");
        socket.until_type("turn_complete").await;
    }
}

#[tokio::test]
async fn requests_of_one_session_leave_slots_to_others() {
    let gateway = patient(Setup::sqlite().set("PROLIFERATE_MAX_CONNECTIONS", "8")).await;
    let app = gateway.app.clone();
    let (busy, neighbour) = (org(&app).await, person(&app, org(&app).await, Role::Member).await);
    let held: Vec<_> =
        (0..4).map(|_| app.shares.requests.take(shares::Party::org(busy), 1).unwrap()).collect();
    let me = person(&app, busy, Role::Member).await;
    let refused = gateway.get("/v1/me").bearer(&me.token).send().await;
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")), "{}", refused.text());
    assert_eq!(gateway.get("/v1/me").bearer(&neighbour.token).status().await, 200);
    drop(held);
    assert_eq!(gateway.get("/v1/me").bearer(&me.token).status().await, 200);
    assert_eq!(app.shares.requests.used(), 0, "answered requests hold nothing");
}

#[tokio::test]
async fn requests_of_one_member_leave_slots_to_the_others_of_its_organization() {
    let gateway = patient(Setup::sqlite().set("PROLIFERATE_MAX_CONNECTIONS", "2048")).await;
    let app = gateway.app.clone();
    let org = org(&app).await;
    let (busy, colleague) = (person(&app, org, Role::Owner).await, person(&app, org, Role::Member).await);
    let held = app.shares.requests.take(shares::Party::user(busy.id, org), 256).unwrap();
    let refused = gateway.get("/v1/me").bearer(&busy.token).send().await;
    assert_eq!(refused.status, 429, "{}", refused.text());
    assert!(refused.text().contains("You have used your share of requests"), "{}", refused.text());
    assert_eq!(gateway.get("/v1/me").bearer(&colleague.token).status().await, 200);
    drop(held);
    assert_eq!(gateway.get("/v1/me").bearer(&busy.token).status().await, 200);
}

#[tokio::test]
async fn metrics_show_shares_and_name_no_caller() {
    let gateway = patient(Setup::sqlite()).await;
    let text = gateway.get("/metrics").send().await.text();
    for line in [
        "proliferate_share_limit{share=\"memory\"}",
        "proliferate_share_limit{share=\"model requests\"}",
        "proliferate_share_used{share=\"memory before login\"}",
    ] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
}
