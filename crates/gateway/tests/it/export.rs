//! An export contains the complete case or is refused: a partial export must never look complete.

use proto::Role;
use serde_json::json;
use store::{Change, GateWrite, JsonText, NewArtifact};

use crate::call::Answer;
use crate::harness::Setup;
use crate::world::World;

async fn store_artifacts(world: &World, numbers: std::ops::Range<usize>) {
    let artifact = |number: usize| NewArtifact {
        org_id: world.team.org,
        artifact_id: format!("art_{number:08}"),
        kind: "tool_output".to_owned(),
        hash: ledger::sha256(b"{}").to_string(),
        case_id: Some("case-1".to_owned()),
        content_type: "application/json".to_owned(),
        lineage: JsonText::of(&json!({"derived_from": []})),
        at: world.gateway.app.clock.now(),
        content: b"{}".to_vec(),
    };
    let numbers: Vec<_> = numbers.collect();
    for chunk in numbers.chunks(500) {
        let artifacts = chunk.iter().map(|number| artifact(*number)).collect();
        let write = GateWrite { artifacts, ..GateWrite::new(Change::Nothing, Vec::new()) };
        world.gateway.app.store.gate_write(write).await.unwrap();
    }
}

async fn export(world: &World, run: &str) -> Answer {
    let body = json!({
        "tool_name": "export.bundle", "operation": "export.bundle", "lane_id": "export.case",
        "actor": {"actor_type": "human", "actor_id": world.team.id(Role::Owner).to_string()},
        "case_id": "case-1", "run_id": run, "scope": {"export_reason": "the court asks"},
    });
    world.gateway.post("/v1/tool-calls", &body).bearer(world.team.token(Role::Owner)).send().await
}

#[tokio::test]
async fn an_export_below_a_run_is_of_the_case_of_that_run() {
    let world = World::on(Setup::sqlite()).await;
    store_artifacts(&world, 0..3).await;
    let parent = world.start_run(&json!({"run_kind": "agent", "case_id": "case-1"})).await;
    let body = json!({
        "tool_name": "export.bundle", "operation": "export.bundle", "lane_id": "export.case",
        "actor": {"actor_type": "human", "actor_id": world.team.id(Role::Owner).to_string()},
        "parent_run_id": parent["run_id"], "run_id": "run-export-child",
        "scope": {"export_reason": "the court asks"},
    });
    let done = world.gateway.post("/v1/tool-calls", &body).bearer(world.team.token(Role::Owner)).send().await;
    assert_eq!(done.status, 200, "{}", done.text());
    assert_eq!(world.run("run-export-child").await["case_id"], "case-1");
}

#[tokio::test]
async fn an_export_names_every_artifact_or_says_that_there_are_too_many() {
    let world = World::on(Setup::sqlite()).await;
    store_artifacts(&world, 0..1001).await;
    let done = export(&world, "run-export-1").await;
    assert_eq!(done.status, 200, "{}", done.text());
    let id = done.json()["output_artifacts"][0]["artifact_id"].as_str().unwrap().to_owned();
    let path = format!("/v1/artifacts/{id}/content?case_id=case-1");
    let bundle = world.gateway.get(&path).bearer(world.team.token(Role::Owner)).send().await.json();
    assert_eq!(bundle["data"]["artifacts"].as_array().unwrap().len(), 1001);
    store_artifacts(&world, 1001..10_001).await;
    let refused = export(&world, "run-export-2").await;
    assert_eq!(refused.status, 502, "{}", refused.text());
    assert!(refused.text().contains("more than 10000 artifacts"), "{}", refused.text());
}
