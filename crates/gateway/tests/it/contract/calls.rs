//! Tool calls: the request, the answer, and what is recorded.

use proto::Role;
use serde_json::{Value, json};
use testkit::Plan;

use crate::actions::{agent, invoke};
use crate::world::{DENIED_EVENTS, World, outcomes, with, write_call};

/// The test tool counts its own effects. Every effect must belong to a call that the gate allowed, under its run id.
pub(super) async fn only_the_gate_executes(world: World) {
    assert_eq!(world.call(&write_call("run-00000001")).await.status, 200);
    let denied = with(write_call("run-00000002"), "lane_id", json!("actions.read"));
    assert_eq!(world.call(&denied).await.status, 403);
    let started = world.start_run(&json!({"run_kind": "tool_gateway", "case_id": "case-1"})).await;
    let finish = format!("/v1/runs/{}/finish", started["run_id"].as_str().unwrap());
    let finish =
        world.gateway.post(&finish, &json!({"status": "completed"})).bearer(&world.token).send().await;
    assert_eq!(finish.status, 200, "a run that is only told of executes nothing");
    assert_eq!(world.effects(), 1);
    let path = "/v1/runs?status=completed&run_kind=tool_gateway";
    let runs = world.gateway.get(path).bearer(&world.token).send().await.json();
    let calls =
        runs["runs"].as_array().unwrap().iter().filter(|run| run["tool_versions"]["tool"].is_string());
    assert_eq!(calls.count(), 1);
}

pub(super) async fn a_call_names_a_lane(world: World) {
    let mut nowhere = write_call("run-nowhere-1");
    nowhere.as_object_mut().unwrap().remove("lane_id");
    let answer = world.call(&nowhere).await;
    assert_eq!((answer.status, &answer.json()["error"]["error_code"]), (400, &json!("INVALID_REQUEST")));
    for (number, lane) in ["", "no.such.lane", "ACTIONS.WRITE", "actions.write "].iter().enumerate() {
        let call = with(write_call(&format!("run-lane-{number}")), "lane_id", json!(lane));
        let answer = world.call(&call).await;
        assert!([400, 403].contains(&answer.status), "{lane:?}: {}", answer.text());
    }
    assert_eq!(world.effects(), 0);
    assert_eq!(world.call(&write_call("run-00000001")).await.status, 200);
    let run = world.run("run-00000001").await;
    assert_eq!(run["actor"]["lane_id"], "actions.write");
    assert!(world.events("run-00000001").await.iter().all(|event| event["lane_id"] == "actions.write"));
}

/// Records success, denial by policy and by a person, tool failure, invalid parameters, and a body that is not a call.
pub(super) async fn every_attempt_is_recorded(world: World) {
    assert_eq!(world.call(&write_call("run-success")).await.status, 200);
    let denied = with(write_call("run-denied-1"), "operation", json!("effect.unheard"));
    assert_eq!(world.call(&denied).await.status, 403);
    world.effects.plan_next(Plan { status: 500, ..Plan::default() });
    assert_eq!(world.call(&write_call("run-failure")).await.status, 502);
    let invalid = with(write_call("run-invalid"), "parameters", json!({"unknown": 1}));
    assert_eq!(world.call(&invalid).await.status, 400);
    for (run, expected) in [
        ("run-success", [("authz_decision", "allow"), ("tool_call", "success")]),
        ("run-denied-1", DENIED_EVENTS),
        ("run-failure", [("authz_decision", "allow"), ("tool_call", "failure")]),
        ("run-invalid", [("authz_decision", "allow"), ("tool_call", "failure")]),
    ] {
        assert_eq!(outcomes(&world.events(run).await), expected, "{run}");
    }
    let (own, token) = agent(&world).await;
    let (status, waiting) = invoke(&world, &token, own, "effect.write", json!({"note": "hello"})).await;
    assert_eq!(status, 202, "{waiting}");
    let id = waiting["invocation"]["id"].as_str().unwrap();
    let deny = world.gateway.post(&format!("/v1/invocations/{id}/deny"), &json!({}));
    assert_eq!(deny.bearer(world.team.token(Role::Owner)).status().await, 200);
    let events = world.events(&format!("call_{}", id.replace('-', ""))).await;
    assert_eq!(outcomes(&events), [&[("system", "success")][..], &DENIED_EVENTS].concat());
    let actors = [&events[1]["actor"]["actor_id"], &events[2]["actor"]["actor_id"]];
    assert_eq!(
        actors,
        [&json!(world.team.id(Role::Owner)), &json!(own)],
        "who decided, and whose call it is"
    );
    let before = recorded_events(&world).await;
    let unread = world.gateway.call("POST", "/v1/tool-calls").bearer(&world.token).body("[").send().await;
    assert_eq!(unread.status, 400);
    let told = recorded_events(&world).await;
    let new = &told[before.len()..];
    assert_eq!(outcomes(new), [("authz_decision", "deny"), ("tool_call", "failure")]);
    assert!(new.iter().all(|event| event["run_id"].is_null() && event["actor"]["actor_id"] == "worker"));
}

async fn recorded_events(world: &World) -> Vec<Value> {
    let owner = world.team.token(Role::Owner);
    let answer = world.gateway.get("/v1/audit/events").bearer(owner).send().await;
    answer.json()["events"].as_array().unwrap().clone()
}

/// Key order, white space and the time of sending do not change the request hash; everything else does.
pub(super) async fn equal_requests_have_equal_hashes(world: World) {
    let call = write_call("run-00000001");
    let first = world.call(&call).await;
    let spread =
        serde_json::to_string_pretty(&with(call.clone(), "requested_at_utc", json!("2026-01-01T00:00:00Z")));
    let mut keys: Vec<_> = call.as_object().unwrap().iter().collect();
    keys.reverse();
    let reversed: Vec<_> = keys.iter().map(|(key, value)| format!("\t{}: {value}", json!(key))).collect();
    let reversed = format!("{{\n{}\n}}", reversed.join(",\n"));
    for body in [spread.unwrap(), reversed] {
        let again = world.gateway.call("POST", "/v1/tool-calls").bearer(&world.token).body(body).send().await;
        assert_eq!((again.status, again.json()), (200, first.json()));
    }
    assert_eq!(world.effects(), 1);
    let hash = |call: &Value| json!(ledger::payload_hash(call).unwrap().to_string());
    assert_eq!(world.call(&with(call.clone(), "request_hash_sha256", hash(&call))).await.status, 200);
    let other = with(call.clone(), "parameters", json!({"note": "hello "}));
    assert_ne!(hash(&call), hash(&other));
    assert_eq!(world.call(&with(other, "request_hash_sha256", hash(&call))).await.status, 400);
}

pub(super) async fn every_field_of_a_request_is_understood(world: World) {
    let parent = world.start_run(&json!({"run_kind": "agent", "case_id": "case-1"})).await;
    let made = world.call(&write_call("run-00000001")).await.json()["output_artifacts"][0].clone();
    let call = json!({
        "tool_name": "effect", "operation": "effect.write", "lane_id": "actions.write",
        "actor": {"actor_type": "system", "actor_id": "worker", "agent_name": "helper"},
        "case_id": "case-1", "run_id": "run-00000002", "parent_run_id": parent["run_id"],
        "correlation_id": "why-2", "input_artifacts": [made], "parameters": {"note": "hi"},
    });
    let hash = ledger::payload_hash(&call).unwrap().to_string();
    let answer = world.call(&with(call.clone(), "request_hash_sha256", json!(hash))).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let events = world.events("run-00000002").await;
    for event in &events {
        assert_eq!(event["actor"]["agent_name"], "helper");
        assert_eq!((&event["parent_run_id"], &event["correlation_id"]), (&parent["run_id"], &json!("why-2")));
        assert_eq!(event["input_artifacts"][0]["artifact_id"], made["artifact_id"]);
        assert_eq!(event["request_hash_sha256"], json!(hash));
    }
    // Every field that the contract does not call optional is required, and no other field is accepted.
    for field in ["tool_name", "operation", "lane_id", "actor", "run_id"] {
        let mut less = with(call.clone(), "run_id", json!("run-00000003"));
        less.as_object_mut().unwrap().remove(field);
        assert_eq!(world.call(&less).await.status, 400, "without {field}");
    }
    assert_eq!(world.call(&with(call, "more", json!(1))).await.status, 400);
    assert_eq!(world.effects(), 2);
}

pub(super) async fn every_field_of_an_answer_is_there(world: World) {
    let done = world.call(&write_call("run-00000001")).await.json();
    let denied = with(write_call("run-00000002"), "operation", json!("effect.unheard"));
    let denied = world.call(&denied).await.json();
    world.effects.plan_next(Plan { status: 500, ..Plan::default() });
    let failed = world.call(&write_call("run-00000003")).await.json();
    let fields = [
        "correlation_id",
        "error",
        "operation",
        "outcome",
        "output_artifacts",
        "response_hash_sha256",
        "run_id",
        "tool_name",
    ];
    for (answer, outcome) in [(&done, "success"), (&denied, "deny"), (&failed, "failure")] {
        let keys: Vec<_> = answer.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, fields, "{outcome}");
        assert_eq!((&answer["outcome"], &answer["correlation_id"]), (&json!(outcome), &json!("why-1")));
        assert_eq!(answer["error"].is_null(), outcome == "success");
    }
    assert_eq!(done["output_artifacts"].as_array().unwrap().len(), 1);
}

/// Parameters and results appear only in the artifacts of the case, never in an event, a run or an answer.
pub(super) async fn only_artifacts_contain_content(world: World) {
    const CANARY: &str = "canary-9917331842";
    let call = |run: &str| with(write_call(run), "parameters", json!({"note": CANARY}));
    let done = world.call(&call("run-00000001")).await;
    world.effects.plan_next(Plan { status: 500, ..Plan::default() });
    let failed = world.call(&call("run-00000002")).await;
    let denied = world.call(&with(call("run-00000003"), "operation", json!("effect.unheard"))).await;
    let wrong = with(call("run-00000004"), "parameters", json!({CANARY: CANARY}));
    let wrong = world.call(&wrong).await;
    assert_eq!([done.status, failed.status, denied.status, wrong.status], [200, 502, 403, 400]);
    for answer in [&done, &failed, &denied, &wrong] {
        assert!(!answer.text().contains(CANARY) && !answer.text().contains("\"count\""), "{}", answer.text());
    }
    for number in 1..=4 {
        let run = format!("run-0000000{number}");
        let kept = [world.run(&run).await.to_string(), json!(world.events(&run).await).to_string()];
        assert!(kept.iter().all(|text| !text.contains(CANARY) && !text.contains("\"count\"")), "{kept:?}");
    }
    let id = done.json()["output_artifacts"][0]["artifact_id"].as_str().unwrap().to_owned();
    let path = format!("/v1/artifacts/{id}/content?case_id=case-1");
    let content = world.gateway.get(&path).bearer(&world.token).send().await;
    assert!(content.text().contains("\"count\""), "{}", content.text());
}
