//! Expired sandboxes that somebody else runs: the gateway reconnects when needed, and nothing is lost, ended or
//! reported as a failure. The tests of the binary cover our own sandboxes.

use std::time::Duration;

use clock::Clock;
use serde_json::{Value, json};

use crate::harness::within;
use crate::live::{Live, On, assert_unbroken, id, is_status, of_type, on_both, tokens};

on_both! {
    a_watched_session_is_reconnected_and_its_turn_continues
    an_expired_sandbox_of_an_evicted_session_is_found_and_pauses_until_a_prompt
    sandboxes_that_expired_while_no_gateway_ran_are_paused_after_the_start
}

const LIFETIME: Duration = Duration::from_mins(1);

/// Starts a gateway with a manual clock and a sandbox lifetime of one minute.
async fn lasting(on: On) -> (Live, Clock) {
    let clock = Clock::manual(Clock::system().now());
    let setup = on.setup().await.clock(&clock).set("SANDBOX_LIFETIME_SECONDS", "60");
    let live = Live::with(setup.set("PROLIFERATE_MAX_LIVE_SESSIONS", "1")).await;
    live.agent.behave(|manner| manner.echoes = true);
    (live, clock)
}

async fn info(live: &Live, session: &str) -> Value {
    live.get(&format!("/proliferate/{session}")).await
}

/// Waits until the session is paused, and checks that nothing else about it has changed.
async fn until_it_sleeps(live: &Live, session: &str) {
    within(async { while info(live, session).await["status"] != "paused" {} }).await;
    let now = info(live, session).await;
    assert_eq!((&now["expiresAt"], &now["sandboxId"]), (&Value::Null, &json!(session)));
    let record = live.app.store.session(live.ada.org, id(session)).await.unwrap().unwrap();
    assert_eq!(record.pause_reason, Some(proto::PauseReason::Inactivity));
    assert_eq!((record.snapshot_id, record.outcome), (None, None), "it counts as no failure");
}

async fn a_watched_session_is_reconnected_and_its_turn_continues(on: On) {
    let live = Live::with(on.setup().await.set("SANDBOX_LIFETIME_SECONDS", "1")).await;
    let session = live.session().await;
    let mut socket = live.running(&session).await;
    socket.prompt("go").await;
    let turn = live.next_turn().await;
    turn.begin();
    turn.say("one ");
    let mut frames = socket.until_type("token").await;
    let connected = live.agent.asked("/event").len();
    frames.extend(socket.until(|frame| is_status(frame, "resuming")).await);
    frames.extend(socket.until(|frame| is_status(frame, "running")).await);
    assert!(live.agent.asked("/event").len() > connected, "the old connection is still used");
    turn.say("two");
    turn.end();
    frames.extend(socket.until_type("turn_complete").await);
    assert_unbroken(&frames);
    assert_eq!(tokens(&frames), "one two");
    assert_eq!(live.agent.asked("/prompt_async").len(), 1, "the prompt was sent again");
    for wrong in ["error", "snapshot_result", "message_cancelled"] {
        assert!(of_type(&frames, wrong).is_empty(), "{wrong}: {frames:?}");
    }
    let bad = |frame: &&Value| {
        ["error", "stopped", "migrating"].contains(&frame["payload"]["status"].as_str().unwrap())
    };
    assert_eq!(of_type(&frames, "status").into_iter().find(bad), None);
}

async fn an_expired_sandbox_of_an_evicted_session_is_found_and_pauses_until_a_prompt(on: On) {
    let (live, clock) = lasting(on).await;
    let session = live.session().await;
    live.eager_start(&session).await;
    within(async { while info(&live, &session).await["status"] != "running" {} }).await;
    let expires = (clock.now() + LIFETIME).timestamp_millis();
    assert_eq!(info(&live, &session).await["expiresAt"], json!(expires));
    // Another session evicts it from memory.
    let other = live.session().await;
    let _watched = live.running(&other).await;
    within(async {
        while live.app.hubs.count() > 1 {
            live.post(&format!("/proliferate/{other}/cancel"), &json!({})).await;
        }
    })
    .await;

    clock.advance(LIFETIME);
    until_it_sleeps(&live, &session).await;
    let kept = live.app.runtime.sandboxes.provider.list().await.unwrap();
    assert!(kept.iter().any(|listed| listed.id.as_str() == session), "it was ended: {kept:?}");

    live.prompt(&session, "wake").await;
    within(async { while live.init(&session).await["payload"]["messages"][1]["content"] != "echo: wake" {} })
        .await;
    let expires = (clock.now() + LIFETIME).timestamp_millis();
    assert_eq!(info(&live, &session).await["expiresAt"], json!(expires));
}

async fn sandboxes_that_expired_while_no_gateway_ran_are_paused_after_the_start(on: On) {
    let (live, clock) = lasting(on).await;
    let session = live.session().await;
    drop(live.running(&session).await);
    clock.advance(LIFETIME);
    let live = live.restarted().await;
    until_it_sleeps(&live, &session).await;
    let mut socket = live.running(&session).await;
    socket.prompt("hello").await;
    assert_eq!(tokens(&socket.until_type("turn_complete").await), "echo: hello");
}
