//! Runs: their kinds, their states, and their fields.

use serde_json::{Value, json};

use crate::world::{World, outcomes, with, write_call};

pub(super) async fn a_call_is_a_child_run(world: World) {
    for kind in ["agent", "orchestrator"] {
        let parent = world.start_run(&json!({"run_kind": kind, "case_id": "case-1"})).await["run_id"].clone();
        let run = format!("run-of-{kind}");
        assert_eq!(world.call(&with(write_call(&run), "parent_run_id", parent.clone())).await.status, 200);
        let child = world.run(&run).await;
        assert_eq!(
            (&child["run_kind"], &child["parent_run_id"], &child["root_run_id"]),
            (&json!("tool_gateway"), &parent, &parent)
        );
        assert!(world.events(&run).await.iter().all(|event| event["parent_run_id"] == parent));
    }
    assert_eq!(world.effects(), 2);
}

/// created → running → completed, failed, denied or cancelled. An ended run stays ended and accepts no new children.
pub(super) async fn a_run_ends_once_with_its_status(world: World) {
    for status in ["completed", "failed", "denied", "cancelled"] {
        let started = world.start_run(&json!({"run_kind": "agent", "case_id": "case-1"})).await;
        let id = started["run_id"].as_str().unwrap().to_owned();
        assert_eq!(started["status"], "running");
        let path = format!("/v1/runs/{id}/finish");
        let finish =
            |status: &str| world.gateway.post(&path, &json!({"status": status})).bearer(&world.token).send();
        for early in ["created", "running", "done"] {
            assert!([400, 409].contains(&finish(early).await.status), "{early}");
        }
        assert_eq!(finish(status).await.status, 200);
        let ended = world.run(&id).await;
        assert_eq!(ended["status"], json!(status));
        for other in ["completed", "failed", "denied", "cancelled", "running"] {
            assert_eq!(finish(other).await.status, 409, "{status} to {other}");
        }
        assert_eq!(world.run(&id).await, ended);
        let below = with(write_call(&format!("run-below-{status}")), "parent_run_id", json!(id));
        assert_eq!(world.call(&below).await.status, 403);
        let last = world.events(&id).await;
        assert_eq!(outcomes(&last).len(), 3, "allowed, running, ended");
        assert!(last[2]["outcome_reason"].is_string());
    }
    // The run of a call belongs to the gate: no caller can finish or restart it.
    assert_eq!(world.call(&write_call("run-00000001")).await.status, 200);
    let path = "/v1/runs/run-00000001/finish";
    let finish = world.gateway.post(path, &json!({"status": "failed"})).bearer(&world.token).send().await;
    assert_eq!(finish.status, 409);
    assert_eq!(world.run("run-00000001").await["status"], "completed");
    assert_eq!(world.effects(), 1);
}

pub(super) async fn a_run_record_is_complete(world: World) {
    assert_eq!(world.call(&write_call("run-00000001")).await.status, 200);
    world.effects.plan_next(testkit::Plan { status: 500, ..testkit::Plan::default() });
    assert_eq!(world.call(&write_call("run-00000002")).await.status, 502);
    for run in ["run-00000001", "run-00000002"] {
        let record = world.run(run).await;
        let text = |field: &str| record[field].as_str().unwrap_or_default().to_owned();
        assert!(text("run_id").len() >= 8 && text("contract_version") == "v1");
        for pin in ["lanes", "roles"] {
            assert!(record["policy_versions"][pin].as_str().unwrap().len() >= 6);
        }
        for time in ["created_at_utc", "started_at_utc", "completed_at_utc"] {
            assert!(text(time).ends_with('Z') && text(time).contains('T'), "{time}: {record}");
        }
        assert!(record["duration_ms"].as_i64().unwrap() >= 0);
        assert!((1..=200).contains(&text("outcome").chars().count()));
        let actor =
            ["actor_type", "actor_id", "role_id", "lane_id"].map(|field| record["actor"][field].clone());
        assert_eq!(json!(actor), json!(["system", "worker", "SERVICE", "actions.write"]));
        let parameters = record["inputs"]["parameters_hash_sha256"].as_str().unwrap();
        assert_eq!(parameters.len(), 64);
    }
    let under_way = world.start_run(&json!({"run_kind": "agent"})).await;
    assert_eq!(
        (&under_way["inputs"], &under_way["outputs"]),
        (&json!({"artifact_refs": []}), &json!({"artifact_refs": []}))
    );
    let (done, failed) = (world.run("run-00000001").await, world.run("run-00000002").await);
    assert_eq!(done["outputs"]["artifact_refs"].as_array().unwrap().len(), 1);
    assert_eq!((&done["error"], &failed["error"]["error_code"]), (&Value::Null, &json!("TOOL_ERROR")));
    assert!(failed["error"]["message"].as_str().unwrap().len() <= 2000);
    assert_eq!(failed["error"]["retryable"], false);
}

/// The run kinds of the schema, and those that the lifecycle adds.
pub(super) async fn every_kind_of_run_is_known(world: World) {
    for kind in ["orchestrator", "agent", "tool_gateway", "write_broker", "db_write", "db_read"] {
        let started = world.start_run(&json!({"run_kind": kind})).await;
        assert_eq!((&started["run_kind"], &started["status"]), (&json!(kind), &json!("running")));
    }
    // Valid kinds that only the gate may create.
    for kind in ["policy_change", "promotion", "export", "override", "system"] {
        let answer =
            world.gateway.post("/v1/runs", &json!({"run_kind": kind})).bearer(&world.token).send().await;
        assert_eq!(answer.status, 403, "{kind}");
    }
    for wrong in [json!("other"), json!("AGENT"), Value::Null, json!(1)] {
        let answer =
            world.gateway.post("/v1/runs", &json!({"run_kind": wrong})).bearer(&world.token).send().await;
        assert_eq!(answer.status, 400);
    }
}
