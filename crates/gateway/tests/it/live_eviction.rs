//! Idle sessions are evicted from memory, and a request that arrives during an eviction is still served.

use serde_json::json;

use crate::harness::within;
use crate::live::{Live, On};

/// Starts a gateway that keeps at most one session in memory.
async fn small() -> Live {
    let live = Live::with(On::Sqlite.setup().await.set("PROLIFERATE_MAX_LIVE_SESSIONS", "1")).await;
    live.agent.behave(|manner| manner.echoes = true);
    live
}

#[tokio::test]
async fn idle_sessions_are_evicted_and_load_again_unchanged() {
    let live = small().await;
    let (one, two) = (live.session().await, live.session().await);
    let mut first = live.running(&one).await;
    first.prompt("hello").await;
    first.until_type("turn_complete").await;
    let mut second = live.running(&two).await;
    for _ in 0..20 {
        live.init(&two).await;
    }
    assert_eq!(live.app.hubs.count(), 2, "both are watched");
    drop(first);
    second.prompt("and here").await;
    second.until_type("turn_complete").await;
    // Once the gateway notices that the first watcher has left, the next request evicts that session.
    within(async {
        while live.app.hubs.count() > 1 {
            live.post(&format!("/proliferate/{two}/cancel"), &json!({})).await;
            live.init(&two).await;
        }
    })
    .await;
    let init = live.init(&one).await;
    assert_eq!(init["payload"]["messages"][1]["content"], "echo: hello");
}

#[tokio::test]
async fn a_session_with_a_turn_is_not_evicted() {
    let live = small().await;
    live.agent.behave(|manner| manner.echoes = false);
    let (one, two) = (live.session().await, live.session().await);
    let mut socket = live.running(&one).await;
    socket.prompt("work").await;
    let turn = live.next_turn().await;
    turn.begin();
    socket.until(|frame| frame["payload"]["role"] == "assistant").await;
    drop(socket);
    drop(live.running(&two).await);
    for _ in 0..20 {
        live.init(&two).await;
    }
    let listened = live.agent.asked("/event").len();
    turn.say("done");
    turn.end();
    within(async { while live.init(&one).await["payload"]["messages"][1]["content"] != "done" {} }).await;
    assert_eq!(live.agent.asked("/event").len(), listened, "it was left and had again");
}

/// Every command is answered, however often the session is evicted in between.
#[tokio::test]
async fn no_command_is_lost_to_an_eviction() {
    let live = small().await;
    let (one, two) = (live.session().await, live.session().await);
    for session in [&one, &two] {
        drop(live.running(session).await);
    }
    let rounds = 15;
    let steer = async |session: &str| {
        for round in 0..rounds {
            let title = json!({"title": format!("{round}")});
            let path = format!("/proliferate/{session}");
            let named = live.ask("PATCH", &path, Some(&live.ada.token), &title, None).await;
            assert_eq!(named.0, 200, "{round}: {}", named.1);
            live.eager_start(session).await;
        }
    };
    let look = async |session: &str| {
        for _ in 0..rounds {
            live.init(session).await;
        }
    };
    tokio::join!(steer(&one), steer(&two), look(&one), look(&two));
    for session in [&one, &two] {
        live.prompt(session, "last").await;
    }
    for session in [&one, &two] {
        within(async {
            while live.init(session).await["payload"]["messages"][1]["content"] != "echo: last" {}
        })
        .await;
    }
}
