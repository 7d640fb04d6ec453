//! Each caller's share of the ledger: a bounded number of runs and events, a count of the rest, and no artifacts for
//! refused calls.

use std::time::Duration;

use clock::Clock;
use futures_util::{StreamExt as _, stream};
use proto::{OrgId, Role, SessionId};
use serde_json::{Value, json};

use crate::harness::{Setup, client, within};
use crate::people::{sandbox_token, session};
use crate::world::{World, with, write_call};

/// The number of refused calls per session that are recorded individually.
const REQUESTS_PER_SHARE: u64 = 500;
/// The number of allowed calls that one session may make in a burst.
const ALLOWED_ROWS: u64 = 2_000;

async fn worlds(clock: &Clock) -> [World; 2] {
    [World::on(Setup::sqlite().clock(clock)).await, World::on(Setup::postgres().await.clock(clock)).await]
}

fn manual() -> Clock {
    Clock::manual(Clock::system().now())
}

/// The events that carry a count of unrecorded calls.
fn counts(events: &[Value]) -> Vec<&str> {
    events
        .iter()
        .filter_map(|event| event["notes"].as_str())
        .filter(|note| note.starts_with("unrecorded"))
        .collect()
}

#[tokio::test]
async fn malformed_calls_over_the_rate_get_429_and_one_event_a_minute() {
    let clock = manual();
    for world in worlds(&clock).await {
        let app = world.gateway.app.clone();
        let (own, other) = (session(&app, world.team.org).await, session(&app, world.team.org).await);
        let (token, others) = (sandbox_token(&app, own).await, sandbox_token(&app, other).await);
        let owner = world.team.token(Role::Owner).to_owned();
        let (running, http) = (world.gateway.serve(), client());
        let send = async |token: &str, path: &str, body: String| {
            let call = http.post(running.url(path)).bearer_auth(token);
            call.header("content-type", "application/json").body(body).send().await.unwrap()
        };
        let actor = json!({"actor_type": "agent", "actor_id": own.to_string()});
        let call = |run: &str| with(with(write_call(run), "actor", actor.clone()), "case_id", Value::Null);
        let through =
            |call, operation, lane| with(with(call, "operation", json!(operation)), "lane_id", json!(lane));
        let denied = |run: &str| through(call(run), "effect.drop", "actions.danger");
        let before = app.store.ledger_size().await.unwrap();
        // Every kind of refusal counts: invalid JSON, an unknown tool, a denied call.
        let callback = format!("/proliferate/{own}/tools/nothing");
        for number in 0..REQUESTS_PER_SHARE {
            let (path, body, status) = match number % 3 {
                0 => ("/v1/tool-calls", "junk".to_owned(), 400),
                1 => (callback.as_str(), json!({"tool_call_id": "x", "args": {}}).to_string(), 404),
                _ => ("/v1/tool-calls", denied(&format!("run-junk-{number}")).to_string(), 403),
            };
            let answer = send(&token, path, body).await;
            assert_eq!(answer.status().as_u16(), status, "{number}");
        }
        let recorded = app.store.ledger_size().await.unwrap();
        assert_eq!(recorded - before, 2 * REQUESTS_PER_SHARE);
        for (path, body) in [
            ("/v1/tool-calls", "junk".to_owned()),
            (callback.as_str(), json!({"tool_call_id": "x", "args": {}}).to_string()),
            ("/v1/tool-calls", denied("run-junk-more").to_string()),
        ] {
            let answer = send(&token, path, body).await;
            assert_eq!(answer.status().as_u16(), 429, "{path}");
            assert!(answer.headers().contains_key("retry-after"));
            assert!(answer.text().await.unwrap().contains("share of refused calls"));
        }
        assert_eq!(app.store.ledger_size().await.unwrap(), recorded, "nothing is recorded one by one");
        // Duplicates get their first answer again, allowed calls are executed, and other callers are not affected.
        let answer = send(&token, "/v1/tool-calls", denied("run-junk-2").to_string()).await;
        assert_eq!(answer.status().as_u16(), 403);
        let read = through(call("run-fine-1"), "effect.read", "actions.read");
        let answer = send(&token, "/v1/tool-calls", read.to_string()).await;
        assert_eq!(answer.status().as_u16(), 200);
        assert_eq!(send(&others, "/v1/tool-calls", "junk".to_owned()).await.status().as_u16(), 400);
        let events = async || {
            let path = running.url("/v1/audit/events?limit=1000&after=900");
            let page = http.get(path).bearer_auth(&owner).send().await.unwrap();
            page.json::<Value>().await.unwrap()["events"].as_array().unwrap().clone()
        };
        assert_eq!(counts(&events().await), [""; 0], "the minute is not over");
        clock.advance(Duration::from_secs(61));
        let told = within(async {
            loop {
                let events = events().await;
                if !counts(&events).is_empty() {
                    return events;
                }
            }
        })
        .await;
        assert_eq!(counts(&told), ["unrecorded calls: 3"]);
        let told = told.iter().find(|event| event["notes"] == "unrecorded calls: 3").unwrap();
        assert_eq!(told["actor"]["actor_id"], json!(own.to_string()));
        assert_eq!((&told["action_type"], &told["outcome"]), (&json!("tool_call"), &json!("deny")));
        running.stop().await;
    }
}

#[tokio::test]
async fn allowed_calls_over_the_rate_get_429_and_are_not_executed() {
    let clock = manual();
    let world = World::on(Setup::sqlite().clock(&clock)).await;
    let app = world.gateway.app.clone();
    let own = session(&app, world.team.org).await;
    let token = sandbox_token(&app, own).await;
    let read = |run: String, actor: Value| {
        let call = with(with(write_call(&run), "actor", actor), "case_id", Value::Null);
        with(with(call, "operation", json!("effect.read")), "lane_id", json!("actions.read"))
    };
    let agent = json!({"actor_type": "agent", "actor_id": own.to_string()});
    let (effects, service) = (world.effects, world.token);
    let (running, http) = (world.gateway.serve(), client());
    let send = async |token: &str, call: Value| {
        http.post(running.url("/v1/tool-calls")).bearer_auth(token).json(&call).send().await.unwrap()
    };
    let calls =
        (0..ALLOWED_ROWS).map(|number| send(&token, read(format!("run-many-{number}"), agent.clone())));
    let statuses: Vec<_> =
        stream::iter(calls).buffer_unordered(64).map(|answer| answer.status()).collect().await;
    assert!(statuses.iter().all(reqwest::StatusCode::is_success));
    let (recorded, executed) = (app.store.ledger_size().await.unwrap(), effects.all().len());
    let over = send(&token, read("run-many-more".to_owned(), agent.clone())).await;
    assert_eq!(over.status().as_u16(), 429);
    assert!(over.headers().contains_key("retry-after"));
    assert!(over.text().await.unwrap().contains("This session has used its share of calls"));
    assert_eq!(app.store.ledger_size().await.unwrap(), recorded, "nothing is recorded");
    assert_eq!(effects.all().len(), executed, "nothing is executed");
    assert_eq!(send(&token, read("run-many-0".to_owned(), agent.clone())).await.status().as_u16(), 200);
    let worker = read("run-worker-1".to_owned(), json!({"actor_type": "system", "actor_id": "worker"}));
    assert_eq!(send(&service, worker).await.status().as_u16(), 200, "services have no such share");
    clock.advance(Duration::from_secs(1));
    assert_eq!(send(&token, read("run-many-more".to_owned(), agent)).await.status().as_u16(), 200);
    running.stop().await;
}

#[tokio::test]
async fn a_malformed_call_gets_the_field_and_its_expected_value() {
    let world = World::on(Setup::sqlite()).await;
    let mut without = write_call("run-shape-1");
    without.as_object_mut().unwrap().remove("lane_id");
    let wrong = |field: &str, value: Value| with(write_call("run-shape-1"), field, value);
    for (call, told) in [
        (without, "lane_id is required"),
        (wrong("lane", json!("x")), "lane is an unknown field; allowed: tool_name, "),
        (wrong("operation", json!(7)), "operation must be a string"),
        (wrong("actor", json!({"actor_type": "system"})), "actor.actor_id is required"),
    ] {
        let answer = world.call(&call).await.json();
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.starts_with(told), "{message}");
        assert_eq!(
            (&answer["error"]["error_code"], &answer["run_id"]),
            (&json!("INVALID_REQUEST"), &json!("run-shape-1"))
        );
    }
}

#[tokio::test]
async fn a_member_cannot_use_up_the_refused_calls_of_its_colleagues() {
    let world = World::on(Setup::sqlite().clock(&manual())).await;
    let junk = async |role| {
        let call = world.gateway.call("POST", "/v1/tool-calls").body("junk");
        call.bearer(world.team.token(role)).send().await.status
    };
    for _ in 0..REQUESTS_PER_SHARE {
        assert_eq!(junk(Role::Member).await, 400);
    }
    assert_eq!(junk(Role::Member).await, 429);
    assert_eq!(junk(Role::Admin).await, 400);
}

#[tokio::test]
async fn counted_refusals_are_recorded_when_the_gateway_stops() {
    let clock = manual();
    let world = World::on(Setup::sqlite().clock(&clock)).await;
    let app = world.gateway.app.clone();
    let own = session(&app, world.team.org).await;
    let token = sandbox_token(&app, own).await;
    let (org, running, http) = (world.team.org, world.gateway.serve(), client());
    let path = running.url("/v1/tool-calls");
    for _ in 0..REQUESTS_PER_SHARE + 7 {
        http.post(&path).bearer_auth(&token).body("junk").send().await.unwrap();
    }
    let gateway = running.stop().await.start().await;
    let filter = store::EventFilter { run_id: None, case_id: None, after: 0, limit: 10_000 };
    let events = gateway.app.store.ledger_events(org, &filter).await.unwrap();
    let events: Vec<Value> =
        events.iter().map(|event| serde_json::from_str(&event.record).unwrap()).collect();
    assert_eq!(counts(&events), ["unrecorded calls: 7"]);
}

#[tokio::test]
async fn attempts_beyond_the_share_of_request_slots_are_counted() {
    let world = World::on(Setup::sqlite()).await;
    let app = world.gateway.app.clone();
    let own = session(&app, world.team.org).await;
    let token = sandbox_token(&app, own).await;
    let (org, running, http) = (world.team.org, world.gateway.serve(), client());
    let (mut held, sharer) = (Vec::new(), shares::Party::session(own, org));
    while let Ok(slot) = app.shares.requests.take(sharer, 1) {
        held.push(slot);
    }
    for path in [format!("/proliferate/{own}/actions/invoke"), "/mcp".to_owned()] {
        let call = http.post(running.url(&path)).bearer_auth(&token).json(&json!({}));
        assert_eq!(call.send().await.unwrap().status().as_u16(), 429, "{path}");
    }
    drop(held);
    let gateway = running.stop().await.start().await;
    let filter = store::EventFilter { run_id: None, case_id: None, after: -1, limit: 10_000 };
    let events = gateway.app.store.ledger_events(org, &filter).await.unwrap();
    let events: Vec<Value> =
        events.iter().map(|event| serde_json::from_str(&event.record).unwrap()).collect();
    assert_eq!(counts(&events), ["unrecorded calls: 2"]);
}

/// The artifact id that the parameters of a call would have.
fn input_of(org: OrgId, case: &str, parameters: &Value) -> String {
    let hash = ledger::sha256(ledger::canonical(parameters).unwrap().as_bytes()).to_string();
    let place = json!([org.to_string(), case, "tool_input", hash]).to_string();
    format!("art_{}", &ledger::sha256(place.as_bytes()).to_string()[..40])
}

#[tokio::test]
async fn a_refused_call_leaves_its_hashes_and_no_artifact() {
    for world in worlds(&Clock::system()).await {
        let app = &world.gateway.app;
        let large = json!({"note": "x".repeat(900_000)});
        let calls = [
            ("denied", with(write_call("run-large-1"), "lane_id", json!("platform.coding")), 403),
            ("does not fit", write_call("run-large-2"), 400),
        ];
        for (why, call, status) in calls {
            let call = with(call, "parameters", large.clone());
            let answer = world.call(&call).await;
            assert_eq!(answer.status, status, "{why}: {}", answer.text());
            let kept = app.store.artifact(world.team.org, &input_of(world.team.org, "case-1", &large)).await;
            assert_eq!(kept.unwrap(), None, "{why}");
            let run = world.run(call["run_id"].as_str().unwrap()).await;
            assert!(run["inputs"]["parameters_hash_sha256"].is_string(), "{why}: {run}");
            let events = world.events(call["run_id"].as_str().unwrap()).await;
            assert!(events.iter().all(|event| event["request_hash_sha256"].is_string()), "{why}");
        }
        // The platform's tools reject unknown arguments, so a large value cannot be stored next to valid ones.
        let own: SessionId = session(app, world.team.org).await;
        let token = sandbox_token(app, own).await;
        let body = json!({"tool_call_id": "toolu_1", "args": large});
        let path = format!("/proliferate/{own}/tools/save_snapshot");
        let answer = world.gateway.post(&path, &body).bearer(&token).send().await.json();
        assert_eq!(answer["success"], false);
        assert!(answer["result"].as_str().unwrap().starts_with("Invalid arguments"), "{answer}");
        let kept =
            app.store.artifact(world.team.org, &input_of(world.team.org, &own.to_string(), &large)).await;
        assert_eq!(kept.unwrap(), None);
        // A call that was executed keeps its parameters as an artifact.
        assert_eq!(world.call(&write_call("run-small-1")).await.status, 200);
        let small = input_of(world.team.org, "case-1", &json!({"note": "hello"}));
        assert!(app.store.artifact(world.team.org, &small).await.unwrap().is_some());
    }
}
