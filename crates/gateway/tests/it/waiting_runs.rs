//! What the run of a request that waits for a person says, in the contract's vocabulary, and what a person says who denies it.

use std::time::Duration;

use clock::Clock;
use proto::Role;
use proto::http::SecretPurpose;
use secrecy::SecretString;
use serde_json::{Value, json};
use store::Scope;

use crate::actions::{agent, get, invoke, worlds};
use crate::harness::Setup;
use crate::mcp::{call, mcp_key, text, tool_of};
use crate::world::{DENIED_EVENTS, World, outcomes};

/// Requests a write, which waits, and returns the ids of its invocation and of its run.
async fn request(world: &World, session: proto::SessionId, token: &str) -> (String, String) {
    let (status, body) = invoke(world, token, session, "effect.write", json!({"note": "hello"})).await;
    assert_eq!(status, 202, "{body}");
    let id = body["invocation"]["id"].as_str().unwrap().to_owned();
    let run = format!("call_{}", id.replace('-', ""));
    (id, run)
}

async fn decide(world: &World, id: &str, act: &str, body: &Value) -> (u16, Value) {
    let path = format!("/v1/invocations/{id}/{act}");
    let answer = world.gateway.post(&path, body).bearer(world.team.token(Role::Owner)).send().await;
    (answer.status, answer.json())
}

/// The status and the workflow state of a run, by itself and in the list.
async fn state(world: &World, run: &str) -> (String, Value) {
    let alone = world.run(run).await;
    let (_, listed) = get(world, world.team.token(Role::Owner), "/v1/runs?limit=200").await;
    let listed = listed["runs"].as_array().unwrap().iter().find(|found| found["run_id"] == run).unwrap();
    assert_eq!(*listed, alone);
    (alone["status"].as_str().unwrap().to_owned(), alone["workflow_state"].clone())
}

#[tokio::test]
async fn a_run_that_waits_says_so_and_its_events_tell_the_request_and_the_decision() {
    for setup in [Setup::sqlite(), Setup::postgres().await] {
        let clock = Clock::manual(Clock::system().now());
        let world = World::on(setup.clock(&clock)).await;
        let (own, token) = agent(&world).await;
        let (approved, approved_run) = request(&world, own, &token).await;
        let (denied, denied_run) = request(&world, own, &token).await;
        let (_, expired_run) = request(&world, own, &token).await;
        for run in [&approved_run, &denied_run, &expired_run] {
            let waits = ("created".to_owned(), json!("waiting_for_approval"));
            assert_eq!(state(&world, run).await, waits);
            let events = world.events(run).await;
            assert_eq!(outcomes(&events), [("system", "success")]);
            let reason = events[0]["outcome_reason"].as_str().unwrap();
            assert!(reason.starts_with("the call waits for approval: "), "{reason}");
        }
        assert_eq!(decide(&world, &approved, "approve", &json!({})).await.0, 200);
        assert_eq!(decide(&world, &denied, "deny", &json!({})).await.0, 200);
        clock.advance(Duration::from_mins(5));
        let done = [("system", "success"), ("authz_decision", "allow"), ("tool_call", "success")];
        let refused = [&[("system", "success")][..], &DENIED_EVENTS].concat();
        for (run, status, events) in [
            (&approved_run, "completed", &done[..]),
            (&denied_run, "denied", &refused),
            // It waits no more, whether its end is recorded yet or not.
            (&expired_run, "created", &[("system", "success")]),
        ] {
            assert_eq!(state(&world, run).await, (status.to_owned(), Value::Null));
            assert_eq!(outcomes(&world.events(run).await), events, "{status}");
        }
    }
}

#[tokio::test]
async fn the_reason_of_a_denial_reaches_the_agent_and_the_ledger_without_secrets() {
    for world in worlds().await {
        let secret = [("PLATFORM_KEY".to_owned(), SecretString::from("platform-canary"))];
        let vault = &world.gateway.app.vault;
        vault.put(world.team.org, Scope::Org, SecretPurpose::Platform, &secret, None).await.unwrap();
        let (own, token) = agent(&world).await;
        let (id, run) = request(&world, own, &token).await;
        for wrong in [json!(""), json!("a\nb"), json!("\u{1b}[2J"), json!("x".repeat(501)), json!(7)] {
            let (status, body) = decide(&world, &id, "deny", &json!({"reason": wrong})).await;
            let named = body["error"].as_str().is_some_and(|error| error.contains("reason"));
            assert!(status == 400 && named, "{wrong}: {body}");
            assert_eq!(state(&world, &run).await.1, "waiting_for_approval", "{wrong}");
        }
        let reason = json!({"reason": "wrong channel, and platform-canary is a key"});
        let (status, body) = decide(&world, &id, "deny", &reason).await;
        let said = "wrong channel, and [REDACTED] is a key";
        assert_eq!((status, &body["invocation"]["deniedReason"]), (200, &json!(format!("denied: {said}"))));
        let path = format!("/proliferate/{own}/actions/invocations/{id}");
        assert_eq!(get(&world, &token, &path).await.1, body, "the agent sees the same");
        let events = world.events(&run).await;
        assert_eq!(events[1]["outcome_reason"], "denied by a person");
        let notes = events[1]["notes"].as_str().unwrap();
        assert_eq!(notes.lines().next().unwrap(), format!("reason: {said}"));
        assert_eq!(events[2]["error"]["message"], format!("denied by a person: {said}"));
        assert!(!json!([events, world.run(&run).await]).to_string().contains("platform-canary"));
        gate::verify_database(&world.gateway.app.store, Vec::new(), None, &|_| ()).await.unwrap();

        let (_, key) = mcp_key(&world, Role::Owner).await;
        let waiting = call(&world, &key, &tool_of("effect.write"), json!({"note": "hello"})).await;
        let id = waiting["result"]["structuredContent"]["invocationId"].as_str().unwrap();
        assert_eq!(decide(&world, id, "deny", &json!({"reason": "not today"})).await.0, 200);
        let told = call(&world, &key, "get_invocation", json!({"invocationId": id})).await;
        assert_eq!(text(&told["result"]), "Action denied: a person denied it: not today");
    }
}
