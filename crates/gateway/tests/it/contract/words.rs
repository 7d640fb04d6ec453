//! Claims of a caller about itself do not count: tool names, cases, pins and references are verified or refused.

use gate::{Governance, Grant};
use proto::Role;
use serde_json::{Value, json};

use crate::people::{sandbox_token, session};
use crate::world::{World, outcomes, with, write_call};

/// Policy decides about exactly the tool that is executed, however a call spells its name.
pub(super) async fn a_tool_has_the_one_name_that_policy_decides_about(world: World) {
    for (number, (tool, operation)) in [
        ("save_service_commands", "q"),
        ("save_service_commands", "save_service_commands.evil"),
        ("save_snapshot", "x"),
        ("export.bundle", "foo"),
        ("effect.write", "q"),
        ("effect.write", "effect.write.q"),
        ("git.push", "git.push.q"),
    ]
    .into_iter()
    .enumerate()
    {
        let mut call = with(write_call(&format!("run-name-{number}")), "tool_name", json!(tool));
        call["operation"] = json!(operation);
        for lane in ["actions.write", "export.case"] {
            call["lane_id"] = json!(lane);
            call["run_id"] = json!(format!("run-name-{number}-{lane}"));
            call["scope"] = json!({"export_reason": "a test"});
            let answer = world.call(&call).await;
            assert_eq!(answer.status, 403, "{tool} {operation} {lane}: {}", answer.text());
        }
    }
    assert_eq!(world.effects(), 0);
    let mut call = with(write_call("run-00000001"), "operation", json!("write"));
    assert_eq!(world.call(&call).await.status, 200, "a tool and its operation are its whole name");
    call["tool_name"] = json!("effect.write");
    call["operation"] = json!("effect.write");
    assert_eq!(world.call(&with(call, "run_id", json!("run-00000002"))).await.status, 200);
}

/// A `case_id` in the scope is the case of the call; it must not contradict the `case_id` field.
pub(super) async fn a_case_in_the_scope_is_the_case(world: World) {
    let mut call = with(write_call("run-00000001"), "scope", json!({"case_id": "case-2"}));
    assert_eq!(
        world.call(&with(call.clone(), "run_id", json!("run-00000002"))).await.status,
        400,
        "two cases"
    );
    call.as_object_mut().unwrap().remove("case_id");
    let answer = world.call(&call).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let made = &answer.json()["output_artifacts"][0];
    assert_eq!((&made["case_id"], &made["scope"]), (&json!("case-2"), &json!("case")));
    assert_eq!(world.run("run-00000001").await["case_id"], "case-2");
    assert!(world.events("run-00000001").await.iter().all(|event| event["case_id"] == "case-2"));
    let app = &world.gateway.app;
    let token = sandbox_token(app, session(app, world.team.org).await).await;
    let content = format!("/v1/artifacts/{}/content", made["artifact_id"].as_str().unwrap());
    assert_eq!(world.gateway.get(&content).bearer(&token).send().await.status, 404, "of another case");
}

/// Runs and events describe an artifact as the database knows it, not as the caller describes it.
pub(super) async fn claims_of_a_caller_about_an_artifact_are_not_repeated(world: World) {
    let made = world.call(&write_call("run-00000001")).await.json()["output_artifacts"][0].clone();
    let mut said = made.clone();
    said["storage_locator"] = json!("PRIVATE words");
    said["artifact_kind"] = json!("PRIVATE kind");
    said["case_id"] = json!("PRIVATE case");
    said["confidentiality"] =
        json!({"contains_phi": true, "contains_pii": true, "contains_privileged": true, "notes": "PRIVATE"});
    said["lineage"] = json!({"derived_from": vec!["PRIVATE"; 60_000]});
    let call = with(write_call("run-00000002"), "input_artifacts", json!([said]));
    let answer = world.call(&call).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let mut never = said.clone();
    never["artifact_id"] = json!("art_0123456789");
    let unknown = with(write_call("run-00000003"), "input_artifacts", json!([never]));
    assert_eq!(world.call(&unknown).await.status, 403);
    // The gate detects a reused run id with other content before it looks up any artifact.
    let other = with(write_call("run-00000002"), "input_artifacts", json!([never]));
    assert_eq!(world.call(&other).await.status, 409);
    for run in ["run-00000002", "run-00000003"] {
        let (told, events) = (world.run(run).await, world.events(run).await);
        assert!(!told.to_string().contains("PRIVATE") && !json!(events).to_string().contains("PRIVATE"));
        assert_eq!(events[0]["input_artifacts"][0]["hash_sha256"], made["hash_sha256"]);
    }
    assert_eq!(world.events("run-00000002").await[0]["input_artifacts"][0], made);
}

/// A child run inherits the case and the pins of its parent, even if it names neither.
pub(super) async fn a_child_is_of_its_parents_case_and_pins(world: World) {
    let parent = world.start_run(&json!({"run_kind": "agent", "case_id": "case-1"})).await["run_id"].clone();
    let mut child = with(write_call("run-00000001"), "parent_run_id", parent.clone());
    child.as_object_mut().unwrap().remove("case_id");
    let answer = world.call(&child).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["output_artifacts"][0]["case_id"], "case-1");
    assert_eq!(world.run("run-00000001").await["case_id"], "case-1");
    let mut retry = with(write_call("run-00000002"), "retry_of", json!("run-00000001"));
    retry.as_object_mut().unwrap().remove("case_id");
    assert_eq!(world.call(&retry).await.status, 200);
    assert_eq!(world.run("run-00000002").await["case_id"], "case-1");
    let world = world.with_next_policy().await;
    let below = world.start_run(&json!({"run_kind": "agent", "parent_run_id": parent})).await;
    assert_eq!(below["case_id"], "case-1");
    let washed = with(write_call("run-00000003"), "parent_run_id", below["run_id"].clone());
    assert_eq!(world.call(&washed).await.status, 403, "pinned to a policy of before, as its parent is");
}

/// Text in a run or an event is a single line, and a timestamp is one that both databases can store.
pub(super) async fn outcomes_of_runs_are_single_lines(world: World) {
    let run = world.start_run(&json!({"run_kind": "agent"})).await["run_id"].as_str().unwrap().to_owned();
    let finish = format!("/v1/runs/{run}/finish");
    for outcome in ["a\u{0}b", "two\nlines", "\u{1b}[31m", &"x".repeat(201)] {
        let body = json!({"status": "completed", "outcome": outcome});
        let answer = world.gateway.post(&finish, &body).bearer(&world.token).send().await;
        assert_eq!(answer.status, 400, "{outcome:?}: {}", answer.text());
    }
    for before in ["-8000000000000000000_x", "-1_x", "9000000000000000000_x", "x", "_"] {
        let path = format!("/v1/runs?before={before}");
        let answer = world.gateway.get(&path).bearer(&world.token).send().await;
        assert_eq!(answer.status, 400, "{before}: {}", answer.text());
    }
    let body = json!({"status": "completed", "outcome": "done"});
    assert_eq!(world.gateway.post(&finish, &body).bearer(&world.token).send().await.status, 200);
}

/// The ledger records the ticket and the reason of a break-glass override. The reason must contain words.
pub(super) async fn a_break_glass_event_has_ticket_and_reason(world: World) {
    let (app, owner) = (&world.gateway.app, world.team.person(Role::Owner));
    let config = world.gateway.setup.config();
    let governance = Governance {
        settings: config.gate_settings(),
        store: &app.store,
        clock: &app.clock,
        rng: &app.rng,
        operator: "host:tester",
    };
    for ticket in ["INC-1", "INC-2"] {
        let grant = Grant { org: world.team.org, user: owner.id, ticket, reason: "an outage", minutes: 10 };
        governance.grant(&grant).await.unwrap();
    }
    let call = |run: &str, scope: Value| {
        let mut call = with(write_call(run), "lane_id", json!("override.system"));
        call["actor"] = json!({"actor_type": "human", "actor_id": owner.id.to_string()});
        with(call, "scope", scope)
    };
    let ask = |call: Value| {
        world.gateway.post("/v1/tool-calls", &call).bearer(world.team.token(Role::Owner)).send()
    };
    for (number, reason) in
        [json!(false), json!({}), json!("  "), json!(0), json!("")].into_iter().enumerate()
    {
        let scope = json!({"override_ticket_id": "INC-2", "override_reason": reason});
        let answer = ask(call(&format!("run-reason-{number}"), scope)).await;
        assert!([400, 403].contains(&answer.status), "{reason}: {}", answer.text());
    }
    assert_eq!(world.effects(), 0);
    let scope = json!({"override_ticket_id": "INC-2", "override_reason": "the database is down"});
    let answer = ask(call("run-00000001", scope)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let events = world.events("run-00000001").await;
    assert_eq!(
        outcomes(&events),
        [("authz_decision", "allow"), ("tool_call", "success"), ("override", "success")]
    );
    assert_eq!(events[2]["notes"], "ticket INC-2: the database is down");
}

/// An agent can only group its own calls into runs, and reads only its own case.
pub(super) async fn a_sandbox_starts_and_reads_only_runs_of_its_own_case(world: World) {
    let app = &world.gateway.app;
    let (own, other) = (session(app, world.team.org).await, session(app, world.team.org).await);
    let token = sandbox_token(app, own).await;
    for (kind, status) in
        [("agent", 201), ("orchestrator", 201), ("override", 403), ("export", 403), ("system", 403)]
    {
        let answer = world.gateway.post("/v1/runs", &json!({"run_kind": kind})).bearer(&token).send().await;
        assert_eq!(answer.status, status, "{kind}: {}", answer.text());
    }
    let made = world.call(&with(write_call("run-00000001"), "case_id", json!(own.to_string()))).await.json();
    let id = made["output_artifacts"][0]["artifact_id"].as_str().unwrap();
    for query in [format!("?case_id={other}"), String::new()] {
        let path = format!("/v1/artifacts/{id}/content{query}");
        assert_eq!(world.gateway.get(&path).bearer(&token).send().await.status, 200);
    }
    let events =
        world.gateway.get("/v1/audit/events?limit=1000").bearer(world.team.token(Role::Owner)).send().await;
    let events = events.json()["events"].as_array().unwrap().clone();
    let readings: Vec<_> = events.iter().filter(|event| event["action_type"] == "db_read").collect();
    assert_eq!(readings.len(), 2);
    assert!(readings.iter().all(|event| event["case_id"] == own.to_string()));
}
