//! Events and references: their content, their sequence numbers, and that nobody can change them.

use serde_json::{Value, json};

use crate::world::{World, with, write_call};

pub(super) async fn an_event_has_actor_action_target_and_time(world: World) {
    let answer = world.call(&write_call("run-00000001")).await.json();
    let events = world.events("run-00000001").await;
    for event in &events {
        let id = event["event_id"].as_str().unwrap();
        assert!((8..=120).contains(&id.len()), "{id}");
        let time = event["timestamp_utc"].as_str().unwrap();
        assert!(time.contains('T') && time.ends_with('Z'), "{time}");
        assert_eq!(event["actor"], json!({"actor_id": "worker", "actor_type": "system"}));
        let named = ["lane_id", "role_id", "case_id", "run_id", "correlation_id", "contract_version"];
        assert_eq!(
            json!(named.map(|field| event[field].clone())),
            json!(["actions.write", "SERVICE", "case-1", "run-00000001", "why-1", "v1"])
        );
        let target = json!({"name": "effect", "operation": "effect.write", "target_type": "tool"});
        assert_eq!(event["target"], target);
        assert_eq!(event["request_hash_sha256"].as_str().unwrap().len(), 64);
        assert!((1..=200).contains(&event["outcome_reason"].as_str().unwrap().chars().count()));
        for pin in ["lanes", "roles"] {
            assert_eq!(event["policy_versions"][pin].as_str().unwrap().len(), 40);
        }
    }
    assert_eq!(events[0]["authz"]["decision"], "allow");
    assert_eq!(events[0]["authz"]["rule_id"], "lane:actions.write");
    assert_eq!(events[0]["response_hash_sha256"], Value::Null);
    assert_eq!(events[1]["response_hash_sha256"], answer["response_hash_sha256"]);
    assert_eq!(events[1]["output_artifacts"], answer["output_artifacts"]);
    assert_ne!(events[0]["event_id"], events[1]["event_id"]);
}

/// The ledger assigns sequence numbers, not the caller, and no route rewrites an event.
pub(super) async fn events_are_numbered_and_immutable(world: World) {
    for number in 0..3 {
        world.call(&write_call(&format!("run-number-{number}"))).await;
    }
    let list = || world.gateway.get("/v1/audit/events").bearer(&world.token).send();
    let before = list().await.json();
    let numbers: Vec<_> = before["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| event["sequence"].as_u64().unwrap())
        .collect();
    assert_eq!(numbers, (0..u64::try_from(numbers.len()).unwrap()).collect::<Vec<_>>());
    assert_eq!(numbers.len(), 6);
    let id = before["events"][0]["event_id"].as_str().unwrap().to_owned();
    let paths =
        ["/v1/audit/events".to_owned(), format!("/v1/audit/events/{id}"), "/v1/audit/events/0".to_owned()];
    for method in ["PUT", "PATCH", "DELETE", "POST"] {
        for path in &paths {
            let call = world.gateway.call(method, path).bearer(world.team.token(proto::Role::Owner));
            let answer = call.json(&json!({"outcome": "success"})).send().await;
            assert!([404, 405].contains(&answer.status), "{method} {path}: {}", answer.status);
        }
    }
    assert_eq!(list().await.json(), before);
    // Sequence numbers, event ids and timestamps from a caller are rejected.
    for field in ["sequence", "event_id", "timestamp_utc"] {
        let call = with(write_call("run-00000001"), field, json!(1));
        assert_eq!(world.call(&call).await.status, 400, "{field}");
    }
}

pub(super) async fn an_artifact_reference_is_complete_and_parsed_strictly(world: World) {
    let made = world.call(&write_call("run-00000001")).await.json()["output_artifacts"][0].clone();
    let text = |field: &str| made[field].as_str().unwrap();
    assert!(
        (3..=120).contains(&text("artifact_id").len()) && (2..=80).contains(&text("artifact_kind").len())
    );
    assert_eq!((text("hash_sha256").len(), text("case_id"), text("scope")), (64, "case-1", "case"));
    assert_eq!((text("hash_source"), &made["lineage"]["run_id"]), ("bytes", &json!("run-00000001")));
    assert!(made["byte_size"].as_u64().unwrap() > 0);
    let ask = |number: usize, reference: Value| {
        let call =
            with(write_call(&format!("run-reference-{number}")), "input_artifacts", json!([reference]));
        let world = &world;
        async move { world.call(&call).await.status }
    };
    assert_eq!(ask(0, made.clone()).await, 200, "what was told is understood");
    let wrong = [
        ("artifact_id", json!("ab")),
        ("artifact_id", json!("a".repeat(121))),
        ("artifact_kind", json!("a")),
        ("hash_sha256", json!("0".repeat(63))),
        ("hash_sha256", json!("g".repeat(64))),
        ("case_id", json!("abc")),
        ("scope", json!("world")),
        ("byte_size", json!(-1)),
        ("hash_source", json!("guess")),
        ("storage_locator", json!("x".repeat(601))),
        ("surprise", json!(1)),
    ];
    for (number, (field, value)) in wrong.into_iter().enumerate() {
        let status = ask(number + 1, with(made.clone(), field, value.clone())).await;
        assert_eq!(status, 400, "{field} {value}");
    }
    let id = text("artifact_id");
    let path = format!("/v1/artifacts/{id}?case_id=case-1");
    assert_eq!(world.gateway.get(&path).bearer(&world.token).send().await.json(), made);
}

/// A reader of a run must not be able to recover its parameters by guessing: `{"note":"hello"}` is quickly found.
pub(super) async fn guessable_parameters_are_hashed_with_a_key(world: World) {
    for number in 1..=2 {
        assert_eq!(world.call(&write_call(&format!("run-0000000{number}"))).await.status, 200);
    }
    let hash = |run: Value| run["inputs"]["parameters_hash_sha256"].as_str().unwrap().to_owned();
    let (first, second) = (hash(world.run("run-00000001").await), hash(world.run("run-00000002").await));
    assert_eq!(first, second, "the same parameters are found again");
    assert_ne!(first, ledger::sha256(br#"{"note":"hello"}"#).to_string());
}
