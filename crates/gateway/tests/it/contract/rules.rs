//! The policy checks of a call, one at a time.

use proto::Role;
use serde_json::{Value, json};

use crate::harness::Setup;
use crate::people::{sandbox_token, session};
use crate::world::{DENIED_EVENTS, World, outcomes, with, write_call};

/// Sends a call that must be denied without an effect, and returns the rule id in its first event.
async fn denied_by(world: &World, token: &str, call: &Value) -> String {
    let before = world.effects();
    let answer = world.gateway.post("/v1/tool-calls", call).bearer(token).send().await;
    assert_eq!(answer.status, 403, "{call}: {}", answer.text());
    assert_eq!(world.effects(), before, "{call}");
    let events = world.events(call["run_id"].as_str().unwrap()).await;
    assert_eq!(outcomes(&events), DENIED_EVENTS, "{call}");
    events[0]["authz"]["rule_id"].as_str().unwrap().to_owned()
}

/// The credential determines the caller. A call that claims any other actor type or id is denied.
pub(super) async fn the_token_determines_the_caller(world: World) {
    let owner = world.team.id(Role::Owner).to_string();
    let actors =
        [("system", "somebody"), ("human", "worker"), ("agent", "worker"), ("human", owner.as_str())];
    for (number, (kind, id)) in actors.iter().enumerate() {
        let actor = json!({"actor_type": kind, "actor_id": id});
        let call = with(write_call(&format!("run-actor-{number}")), "actor", actor);
        assert_eq!(denied_by(&world, &world.token, &call).await, "gate:identity");
    }
    let anybody = world.gateway.post("/v1/tool-calls", &write_call("run-00000001")).send().await;
    assert_eq!(anybody.status, 401);
    let events = world.events("run-actor-0").await;
    assert!(
        events.iter().all(|event| event["actor"]["actor_id"] == "worker"),
        "the credential's name is told"
    );
}

pub(super) async fn the_lane_is_open_to_the_role(world: World) {
    let app = &world.gateway.app;
    let agent = session(app, world.team.org).await;
    let token = sandbox_token(app, agent).await;
    let member = world.team.id(Role::Member).to_string();
    let cases = [
        (world.token.clone(), "system", "worker".to_owned(), "platform.coding", "SERVICE"),
        (token, "agent", agent.to_string(), "platform.setup", "CODING_AGENT"),
        (world.team.token(Role::Member).to_owned(), "human", member, "export.case", "OPERATOR"),
    ];
    for (number, (token, kind, id, lane, role)) in cases.iter().enumerate() {
        let call = with(write_call(&format!("run-role-{number}")), "lane_id", json!(lane));
        let call = with(call, "actor", json!({"actor_type": kind, "actor_id": id}));
        let call = if *kind == "agent" { with(call, "case_id", Value::Null) } else { call };
        assert_eq!(denied_by(&world, token, &call).await, format!("lane:{lane}:role"));
        assert_eq!(world.run(call["run_id"].as_str().unwrap()).await["actor"]["role_id"], json!(role));
    }
}

pub(super) async fn the_lane_lists_the_tool(world: World) {
    let unlisted = with(write_call("run-00000001"), "lane_id", json!("artifacts.append"));
    assert_eq!(denied_by(&world, &world.token, &unlisted).await, "lane:artifacts.append:action");
    let risky = with(write_call("run-00000002"), "lane_id", json!("actions.read"));
    assert_eq!(denied_by(&world, &world.token, &risky).await, "lane:actions.read:risk");
    // The lane lists one half of the name, but policy compares the complete name.
    for (number, (tool, operation)) in [("effect", "unheard"), ("evil", "effect.write")].iter().enumerate() {
        let call = with(write_call(&format!("run-tool-{number}")), "tool_name", json!(tool));
        let call = with(with(call, "operation", json!(operation)), "lane_id", json!("artifacts.append"));
        assert!(denied_by(&world, &world.token, &call).await.starts_with("lane:artifacts.append:"));
    }
}

pub(super) async fn the_scope_is_there(world: World) {
    let export = |run: &str, scope: Value| {
        let actor = json!({"actor_type": "human", "actor_id": world.team.id(Role::Owner).to_string()});
        json!({"tool_name": "export.bundle", "operation": "export.bundle", "lane_id": "export.case", "actor": actor,
            "case_id": "case-1", "run_id": run, "scope": scope})
    };
    let owner = world.team.token(Role::Owner);
    for (number, scope) in
        [json!({}), json!({"export_reason": ""}), json!({"export_reason": null}), json!({"reason": "x"})]
            .into_iter()
            .enumerate()
    {
        let call = export(&format!("run-scope-{number}"), scope);
        assert_eq!(denied_by(&world, owner, &call).await, "lane:export.case:scope");
    }
    let mut nowhere = export("run-00000001", json!({"export_reason": "the court asks"}));
    nowhere["case_id"] = Value::Null;
    assert_eq!(denied_by(&world, owner, &nowhere).await, "lane:export.case:scope");
    let whole = export("run-00000002", json!({"export_reason": "the court asks"}));
    assert_eq!(world.gateway.post("/v1/tool-calls", &whole).bearer(owner).send().await.status, 200);
}

/// Flags that the lane prohibits, and prohibitions that apply in every lane.
pub(super) async fn prohibitions_hold(world: World) {
    let made = world.call(&write_call("run-00000001")).await.json()["output_artifacts"][0].clone();
    let stranger =
        with(with(write_call("run-00000002"), "input_artifacts", json!([made])), "case_id", json!("case-2"));
    assert_eq!(denied_by(&world, &world.token, &stranger).await, "lane:actions.write:flags");
    let answer = world.call(&stranger).await.json();
    assert_eq!(answer["error"]["message"], "lane prohibits cross_case_lookup");
    let export = with(write_call("run-00000003"), "tool_name", json!("export.bundle"));
    let export = with(with(export, "operation", json!("export.bundle")), "lane_id", json!("actions.danger"));
    let export = with(export, "parameters", json!({}));
    assert_eq!(denied_by(&world, &world.token, &export).await, "lane:actions.danger:flags");
    let answer = world.call(&export).await.json();
    assert_eq!(answer["error"]["message"], "lane prohibits external_export");
    // An organization's prohibition, which takes precedence over all lanes.
    let world = world
        .with_prohibition("{rule_id: no-effects, reason: nothing is written, tools: [effect.write]}")
        .await;
    assert_eq!(denied_by(&world, &world.token, &write_call("run-00000004")).await, "prohibition:no-effects");
    // Under another tool name the operation is not registered, so the prohibition cannot be bypassed by renaming.
    let renamed = with(write_call("run-00000005"), "tool_name", json!("evil"));
    assert_eq!(denied_by(&world, &world.token, &renamed).await, "lane:actions.write:registered");
}

/// Starts with a call that fails every check, and fixes the checks in order.
pub(super) async fn the_first_failing_check_is_reported(world: World) {
    let started = world.start_run(&json!({"run_kind": "orchestrator"})).await;
    let nothing =
        json!({"artifact_id": "art_0123456789", "artifact_kind": "x1", "hash_sha256": "0".repeat(64)});
    let mut call = json!({
        "tool_name": "effect", "operation": "effect.unheard", "lane_id": "platform.coding",
        "actor": {"actor_type": "system", "actor_id": "somebody"}, "parent_run_id": "run-never-was",
        "policy_versions": {"lanes": "0".repeat(40), "roles": "0".repeat(40)}, "input_artifacts": [nothing],
    });
    let steps = [
        ("gate:identity", "actor", json!({"actor_type": "system", "actor_id": "worker"})),
        ("gate:run", "parent_run_id", started["run_id"].clone()),
        ("gate:pins", "policy_versions", started["policy_versions"].clone()),
        ("lane:platform.coding:role", "lane_id", json!("artifacts.append")),
        ("lane:artifacts.append:registered", "operation", json!("effect.write")),
        ("lane:artifacts.append:action", "operation", json!("effect.note")),
        ("lane:artifacts.append:scope", "case_id", json!("case-1")),
        ("lane:artifacts.append:flags", "input_artifacts", json!([])),
    ];
    for (number, (rule, field, mended)) in steps.into_iter().enumerate() {
        call["run_id"] = json!(format!("run-step-{number}"));
        assert_eq!(denied_by(&world, &world.token, &call).await, rule);
        call[field] = mended;
    }
    call["run_id"] = json!("run-00000001");
    let answer = world.call(&call).await;
    assert_eq!((answer.status, world.effects()), (200, 1), "{}", answer.text());
}

/// A tool that writes to a table makes a run of kind `db_write`, and needs a lane that lists the table and the mode.
pub(super) async fn a_write_needs_a_lane_that_lists_it(world: World) {
    let parent = world.start_run(&json!({"run_kind": "agent", "case_id": "case-1"})).await;
    let call = |run: &str, operation: &str, lane: &str| {
        let call = with(with(write_call(run), "operation", json!(operation)), "lane_id", json!(lane));
        with(call, "parent_run_id", parent["run_id"].clone())
    };
    let answer = world.call(&call("run-00000001", "effect.note", "artifacts.append")).await;
    assert_eq!((answer.status, world.effects()), (200, 1), "{}", answer.text());
    let run = world.run("run-00000001").await;
    assert_eq!((&run["run_kind"], &run["parent_run_id"]), (&json!("db_write"), &parent["run_id"]));
    let events = world.events("run-00000001").await;
    assert_eq!(
        outcomes(&events),
        [("authz_decision", "allow"), ("tool_call", "success"), ("db_write", "success")]
    );
    let expected = json!({"name": "artifacts", "operation": "append", "target_type": "table"});
    assert_eq!(events[2]["target"], expected);
    // Denied: another table, and lanes that list the tool but not the table it writes, including the general write
    // lane.
    for (number, (operation, lane)) in [
        ("effect.rows", "artifacts.append"),
        ("effect.note", "actions.write"),
        ("effect.rows", "actions.write"),
    ]
    .iter()
    .enumerate()
    {
        let denied = call(&format!("run-write-{number}"), operation, lane);
        assert_eq!(denied_by(&world, &world.token, &denied).await, format!("lane:{lane}:action"));
        let answer = world.call(&denied).await.json();
        assert_eq!(answer["error"]["message"], "lane prohibits requested write");
        assert_eq!(world.run(&format!("run-write-{number}")).await["run_kind"], "db_write");
    }
}

pub(super) async fn the_safety_lock_stops_everything(world: World) {
    let world = world.locked(true).await;
    assert_eq!(denied_by(&world, &world.token, &write_call("run-00000001")).await, "gate:safety_lock");
    let world = world.locked(false).await;
    assert_eq!(world.call(&write_call("run-00000002")).await.status, 200);
    assert_eq!(world.call(&write_call("run-00000001")).await.status, 403, "what was denied stays so");
}

/// A lane that lists a role which does not list the lane, or the reverse: the gateway refuses to start.
pub(super) async fn files_that_disagree_are_refused(world: World) {
    let setup = world.gateway.stop().await;
    let lanes = include_str!("../../../../../policy/lanes.yaml");
    let roles = include_str!("../../../../../policy/roles.yaml");
    let without = |text: &str, what: &str| text.replacen(what, "", 1);
    for (lanes, roles, expected) in [
        (lanes.to_owned(), without(roles, ", export.case"), "roles.yaml"),
        (without(lanes, "SETUP_AGENT, "), roles.to_owned(), "lanes.yaml"),
        (lanes.replace("v1", "v2"), roles.to_owned(), "contract_version"),
        (lanes.replace("scope:", "skope:"), roles.to_owned(), "skope"),
    ] {
        write(&setup, &lanes, &roles);
        let error = setup.try_start().await.map(drop).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("PROLIFERATE_POLICY_DIR"), "{error}");
    }
    write(&setup, lanes, roles);
    setup.try_start().await.map(drop).unwrap();
}

fn write(setup: &Setup, lanes: &str, roles: &str) {
    let directory = setup.directory().join("policy");
    std::fs::write(directory.join("lanes.yaml"), lanes).unwrap();
    std::fs::write(directory.join("roles.yaml"), roles).unwrap();
}
