//! The processing of a call in the gate: checks that `contract` runs on both databases.

use proto::Role;
use serde_json::{Value, json};

use crate::harness::Setup;
use crate::people::{OrgOf3, sandbox_token, service_token, session, some_uuid};
use crate::world::{DENIED_EVENTS, World, outcomes, with, write_call};

pub(crate) async fn a_call_that_is_allowed_has_one_effect_two_events_and_a_run(world: World) {
    let answer = world.call(&write_call("run-00000001")).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let body = answer.json();
    assert_eq!(world.effects(), 1);
    let fields = ["outcome", "tool_name", "operation", "run_id", "correlation_id"];
    assert_eq!(
        fields.map(|f| body[f].as_str().unwrap()),
        ["success", "effect", "effect.write", "run-00000001", "why-1"]
    );
    assert!(body["error"].is_null());
    // Section 1.5 of the tool gateway contract: hashes of the request and the response.
    let mut without = body.clone();
    without["response_hash_sha256"] = Value::Null;
    let hash = ledger::payload_hash(&without).unwrap().to_string();
    assert_eq!(body["response_hash_sha256"], json!(hash));
    let events = world.events("run-00000001").await;
    let expected = [("authz_decision", "allow"), ("tool_call", "success")];
    assert_eq!(outcomes(&events), expected);
    let asked = ledger::payload_hash(&write_call("run-00000001")).unwrap().to_string();
    assert!(events.iter().all(|event| event["request_hash_sha256"] == json!(asked)));
    assert_eq!(events[1]["response_hash_sha256"], json!(hash));
    assert_eq!(events[0]["authz"]["decision"], "allow");
    // Contract 1.4: the policy pins.
    let run = world.run("run-00000001").await;
    assert_eq!((run["run_kind"].as_str(), run["status"].as_str()), (Some("tool_gateway"), Some("completed")));
    assert_eq!(run["contract_version"], "v1");
    assert!(events.iter().all(|event| event["policy_versions"] == run["policy_versions"]));
    assert_eq!(run["policy_versions"]["lanes"].as_str().unwrap().len(), 40);
    // Contract 1.6 and 8: content is in artifacts of the case, never in an event.
    assert!(!events.iter().any(|event| event.to_string().contains("hello")));
    let artifact = &body["output_artifacts"][0];
    assert_eq!(artifact["case_id"], "case-1");
    let path = format!("/v1/artifacts/{}/content?case_id=case-1", artifact["artifact_id"].as_str().unwrap());
    let content = world.gateway.get(&path).bearer(&world.token).send().await;
    assert_eq!(content.status, 200);
    assert_eq!(json!(ledger::sha256(&content.body).to_string()), artifact["hash_sha256"]);
}

pub(crate) async fn the_same_id_is_the_same_call_and_other_content_is_refused(world: World) {
    let first = world.call(&write_call("run-00000001")).await;
    let again = world.call(&write_call("run-00000001")).await;
    assert_eq!((first.status, first.json()), (again.status, again.json()));
    let other = with(write_call("run-00000001"), "parameters", json!({"note": "other"}));
    let other = world.call(&other).await;
    assert_eq!(other.status, 409, "{}", other.text());
    assert_eq!(world.effects(), 1);
    // The refusal is recorded; the run with this id is unchanged.
    assert_eq!(world.events("run-00000001").await.len(), 4);
    assert_eq!(world.run("run-00000001").await["status"], "completed");
    // The same body from another caller is another call: only the first caller gets the answer.
    let body = write_call("run-00000001");
    for person in [Role::Owner, Role::Member] {
        let answer =
            world.gateway.post("/v1/tool-calls", &body).bearer(world.team.token(person)).send().await;
        assert_eq!((answer.status, world.effects()), (409, 1), "{}", answer.text());
        assert_eq!(answer.json()["output_artifacts"], json!([]));
    }
    // The same id in another organization is another run.
    let elsewhere = OrgOf3::new(&world.gateway.app).await;
    let token = service_token(&world.gateway.app, Some(elsewhere.org));
    let answer =
        world.gateway.post("/v1/tool-calls", &write_call("run-00000001")).bearer(&token).send().await;
    assert_eq!((answer.status, world.effects()), (200, 2));
    let counted = world.gateway.get("/metrics").send().await.text();
    assert!(counted.contains("proliferate_gate_verdicts_total{verdict=\"allow\"}"), "{counted}");
}

pub(crate) async fn duplicates_in_flight_wait_for_the_one_execution(world: World) {
    world.effects.plan_always(testkit::Plan {
        delay: std::time::Duration::from_millis(300),
        ..testkit::Plan::default()
    });
    let calls = (0..10).map(|_| async { world.call(&write_call("run-00000001")).await });
    let answers = futures_util::future::join_all(calls).await;
    assert!(answers.iter().all(|answer| answer.status == 200 && answer.json() == answers[0].json()));
    assert_eq!(world.effects(), 1);
    assert_eq!(world.events("run-00000001").await.len(), 2);
}

/// Every kind of denial: nothing is executed, the run is denied, and both events say so.
pub(crate) async fn calls_that_policy_does_not_allow_are_denied_recorded_and_not_executed(world: World) {
    let cases: [(&str, &str, Value); 9] = [
        ("lane unknown", "lane_id", json!("no.such.lane")),
        ("lane of another role", "lane_id", json!("platform.coding")),
        ("lane that does not list the tool", "lane_id", json!("artifacts.append")),
        ("lane for another risk", "lane_id", json!("actions.read")),
        ("tool unknown", "operation", json!("effect.unheard")),
        ("actor is not the token's", "actor", json!({"actor_type": "system", "actor_id": "somebody"})),
        ("actor of another kind", "actor", json!({"actor_type": "human", "actor_id": "worker"})),
        ("parent that is not there", "parent_run_id", json!("run-never-was")),
        ("other pins demanded", "policy_versions", json!({"lanes": "0".repeat(40), "roles": "0".repeat(40)})),
    ];
    for (number, (name, field, value)) in cases.iter().enumerate() {
        let run = format!("run-denied-{number}");
        let answer = world.call(&with(write_call(&run), field, value.clone())).await;
        assert_eq!(answer.status, 403, "{name}: {}", answer.text());
        let body = answer.json();
        assert_eq!(body["outcome"], "deny", "{name}");
        assert_eq!(body["error"]["error_code"], "POLICY_DENIED", "{name}");
        assert_eq!(body["error"]["retryable"], false, "{name}");
        let events = world.events(&run).await;
        assert_eq!(outcomes(&events), DENIED_EVENTS, "{name}");
        assert!(events[0]["authz"]["rule_id"].is_string(), "{name}");
        assert_eq!(world.run(&run).await["status"], "denied", "{name}");
    }
    assert_eq!(world.effects(), 0);
}

/// The pins must be those of the active policy. A call that demands others, or whose parent run has others, is denied.
pub(crate) async fn a_call_under_other_pins_is_denied(world: World) {
    let started = world.start_run(&json!({"run_kind": "orchestrator", "case_id": "case-1"})).await;
    let child = |run: &str| with(write_call(run), "parent_run_id", started["run_id"].clone());
    let demanding = |run: &str, pins: Value| with(write_call(run), "policy_versions", pins);
    let pins = started["policy_versions"].clone();
    assert_eq!(world.call(&demanding("run-00000001", pins.clone())).await.status, 200);
    assert_eq!(world.call(&child("run-00000002")).await.status, 200);
    let other = with(pins.clone(), "roles", json!("0".repeat(40)));
    let none = with(pins.clone(), "lanes", json!(""));
    let world = world.with_next_policy().await;
    for (call, why) in [
        (demanding("run-00000003", other), "other pins are demanded"),
        (demanding("run-00000004", none), "no pin is demanded"),
        (demanding("run-00000005", pins), "pins of before are demanded"),
        (child("run-00000006"), "the run is pinned to a policy of before"),
    ] {
        let answer = world.call(&call).await;
        // `make mutants` looks for these words.
        assert_eq!(answer.status, 403, "a call under other pins must be denied: {why}: {}", answer.text());
        let events = world.events(call["run_id"].as_str().unwrap()).await;
        assert_eq!(outcomes(&events), DENIED_EVENTS, "{why}");
        assert_eq!(events[0]["authz"]["rule_id"], "gate:pins", "{why}");
    }
    assert_eq!(world.effects(), 2);
    assert_eq!(
        world.call(&write_call("run-00000007")).await.status,
        200,
        "who demands nothing gets the new pins"
    );
}

/// Malformed calls: `INVALID_REQUEST`, recorded, never executed, never a 5xx.
pub(crate) async fn unparseable_calls_are_invalid_and_recorded(world: World) {
    let long = "x".repeat(300);
    let deep = [r#"{"a":"#.repeat(200), "1".to_owned(), "}".repeat(200)].concat();
    let no_call = [
        "not json".to_owned(),
        "{}".to_owned(),
        r#"{"tool_name":"a","tool_name":"b"}"#.to_owned(),
        with(write_call("run-00000001"), "parameters", json!({"n": 1}))
            .to_string()
            .replace("\"n\":1", "\"n\":9007199254740993"),
        with(write_call("run-00000001"), "parameters", json!({"deep": 1}))
            .to_string()
            .replace("\"deep\":1", &format!("\"deep\":{deep}")),
        with(write_call("run-00000001"), "run_id", json!(long)).to_string(),
        with(write_call("run-00000001"), "run_id", json!("short")).to_string(),
        with(write_call("run-00000001"), "run_id", json!("call_0123456789")).to_string(),
    ];
    let mut wrong_call = Vec::new();
    for (field, value) in [
        ("surprise", json!(1)),
        ("parameters", json!("no object")),
        ("actor", Value::Null),
        ("case_id", json!(long)),
        ("request_hash_sha256", json!("0".repeat(64))),
        ("contract_version", json!("v2")),
        ("input_artifacts", json!([{"artifact_id": "x"}])),
        ("actor", json!({"actor_type": "god", "actor_id": "worker"})),
        ("scope", json!({"case_id": "case-2"})),
        ("scope", json!({"case_id": 7})),
        ("scope", json!({"override_ticket_id": "a\u{0}b"})),
        ("scope", json!({"override_reason": false})),
    ] {
        wrong_call.push(with(write_call("run-00000001"), field, value).to_string());
    }
    for (bodies, told) in [(no_call.as_slice(), Value::Null), (&wrong_call, json!("run-00000001"))] {
        for body in bodies {
            let before = world.gateway.app.store.ledger_size().await.unwrap();
            let call = world.gateway.call("POST", "/v1/tool-calls").bearer(&world.token).body(body.clone());
            let answer = call.send().await;
            assert_eq!(answer.status, 400, "{body}: {}", answer.text());
            let reply = answer.json();
            assert_eq!(reply["error"]["error_code"], "INVALID_REQUEST", "{body}");
            assert_eq!(reply["run_id"], told, "{body}");
            if !told.is_null() {
                assert_eq!(reply["correlation_id"], "why-1", "{body}");
            }
            let after = world.gateway.app.store.ledger_size().await.unwrap();
            assert_eq!(after - before, 2, "{body}");
        }
    }
    // If the body has the form of a call, the events repeat its fields.
    let events = world.events("run-00000001").await;
    assert_eq!(events.len(), 2 * wrong_call.len());
    for event in events {
        let said = (&event["lane_id"], &event["target"]["name"], &event["correlation_id"], &event["role_id"]);
        assert_eq!(said, (&json!("actions.write"), &json!("effect"), &json!("why-1"), &json!("SERVICE")));
        assert_eq!(event["request_hash_sha256"].as_str().unwrap().len(), 64);
    }
    assert!(world.run("run-00000001").await["run_id"].is_null(), "it made no run");
    // The form is valid but the tool's own schema rejects the parameters: there is a run, and it failed.
    let wrong = with(write_call("run-00000002"), "parameters", json!({"note": "far too long for this tool"}));
    let answer = world.call(&wrong).await;
    assert_eq!(
        (answer.status, answer.json()["error"]["error_code"].as_str()),
        (400, Some("INVALID_REQUEST"))
    );
    assert!(!answer.text().contains("far too long"), "{}", answer.text());
    assert_eq!(world.run("run-00000002").await["status"], "failed");
    assert_eq!(world.effects(), 0);
}

pub(crate) async fn failing_hanging_and_unreachable_tools_have_different_errors(world: World) {
    let plan = testkit::Plan::default();
    let hangs = testkit::Plan { delay: std::time::Duration::from_secs(5), ..plan };
    let cut = testkit::Plan { hang_up: true, ..plan };
    let of = |status: u16| testkit::Plan { status, ..plan };
    // A call that may have had an effect is not retryable; only `effect.peek` is read-only and can be retried.
    for (number, (tool, plan, status, code, retryable)) in [
        ("effect.write", of(500), 502, "TOOL_ERROR", false),
        ("effect.write", of(503), 503, "DEPENDENCY_DOWN", true),
        ("effect.write", of(504), 502, "TOOL_ERROR", false),
        ("effect.write", cut, 502, "TOOL_ERROR", false),
        ("effect.write", hangs, 504, "TOOL_TIMEOUT", false),
        ("effect.peek", of(504), 503, "DEPENDENCY_DOWN", true),
        ("effect.peek", cut, 503, "DEPENDENCY_DOWN", true),
        ("effect.peek", hangs, 504, "TOOL_TIMEOUT", true),
    ]
    .into_iter()
    .enumerate()
    {
        world.effects.plan_always(plan);
        let run = format!("run-0000000{number}");
        let lane = if tool == "effect.write" { "actions.write" } else { "actions.read" };
        let call = with(with(write_call(&run), "operation", json!(tool)), "lane_id", json!(lane));
        let answer = world.call(&call).await;
        let error = &answer.json()["error"];
        assert_eq!(
            (answer.status, error["error_code"].as_str().unwrap()),
            (status, code),
            "{tool} {plan:?}: {}",
            answer.text()
        );
        assert_eq!(error["retryable"], retryable, "{tool} {plan:?}");
        let unknown = !retryable && plan.status != 500;
        assert_eq!(answer.text().contains("unknown"), unknown, "{tool} {plan:?}: {}", answer.text());
        let last = world.events(&run).await.pop().unwrap();
        assert_eq!(
            (last["action_type"].as_str(), last["outcome"].as_str()),
            (Some("tool_call"), Some("failure"))
        );
        assert_eq!(world.run(&run).await["status"], "failed");
    }
    let private = with(
        with(write_call("run-00000009"), "operation", json!("effect.private")),
        "lane_id",
        json!("actions.read"),
    );
    let answer = world.call(&with(private, "parameters", json!({}))).await;
    assert_eq!(answer.status, 503, "{}", answer.text());
    assert!(answer.text().contains("CONNECTOR_ALLOWED_HOSTS"));
}

pub(crate) async fn a_child_needs_an_active_parent_and_inherits_from_it(world: World) {
    let start = json!({"run_kind": "orchestrator", "case_id": "case-1", "run_name": "A plan"});
    let parent = world.start_run(&start).await["run_id"].as_str().unwrap().to_owned();
    let child = |run: &str| with(write_call(run), "parent_run_id", json!(parent));
    assert_eq!(world.call(&child("run-00000001")).await.status, 200);
    let run = world.run("run-00000001").await;
    assert_eq!((&run["parent_run_id"], &run["root_run_id"]), (&json!(parent), &json!(parent)));
    // A child of another case than its parent is refused as if the parent did not exist.
    let stray = with(child("run-00000002"), "case_id", json!("case-2"));
    assert_eq!(world.call(&stray).await.status, 403);
    assert!(world.events("run-00000002").await.iter().all(|event| event["parent_run_id"].is_null()));
    let finish = format!("/v1/runs/{parent}/finish");
    let finish = || world.gateway.post(&finish, &json!({"status": "completed"})).bearer(&world.token).send();
    assert_eq!(finish().await.status, 200);
    assert_eq!(finish().await.status, 409, "what has ended stays as it ended");
    assert_eq!(world.call(&child("run-00000003")).await.status, 403);
    assert_eq!(world.effects(), 1);
    let events = world.events(&parent).await;
    assert_eq!(
        outcomes(&events),
        [("authz_decision", "allow"), ("system", "success"), ("system", "success")]
    );
}

pub(crate) async fn a_retry_is_a_new_run_below_the_first(world: World) {
    world.effects.plan_next(testkit::Plan { status: 500, ..testkit::Plan::default() });
    assert_eq!(world.call(&write_call("run-00000001")).await.status, 502);
    let retry = with(
        with(write_call("run-00000002"), "retry_of", json!("run-00000001")),
        "retry_reason",
        json!("it failed"),
    );
    assert_eq!(world.call(&retry).await.status, 200);
    let run = world.run("run-00000002").await;
    assert_eq!((run["parent_run_id"].as_str(), run["retry_count"].as_i64()), (Some("run-00000001"), Some(1)));
    assert_eq!(run["retry_reason"], "it failed");
    let events = world.events("run-00000002").await;
    assert!(events.iter().all(|event| event["parent_run_id"] == "run-00000001"), "{events:?}");
    let notes = events[0]["notes"].as_str().unwrap();
    assert!(notes.starts_with("tried again: it failed\nbegun_run_sha256 "), "{notes}");
    assert_eq!(world.run("run-00000001").await["status"], "failed", "the first stays as it ended");
    let stray = with(write_call("run-00000003"), "retry_of", json!("run-never-was"));
    assert_eq!(world.call(&stray).await.status, 403);
}

pub(crate) async fn artifacts_of_another_case_and_missing_ones_are_refused_alike(world: World) {
    let made = world.call(&write_call("run-00000001")).await.json()["output_artifacts"][0].clone();
    let own = with(write_call("run-00000002"), "input_artifacts", json!([made]));
    assert_eq!(world.call(&own).await.status, 200);
    let mut never = made.clone();
    never["artifact_id"] = json!("art_0123456789");
    let of_other_case = with(write_call("run-00000003"), "input_artifacts", json!([made]));
    let of_other_case = with(of_other_case, "case_id", json!("case-2"));
    let of_none =
        with(with(write_call("run-00000004"), "input_artifacts", json!([never])), "case_id", json!("case-2"));
    let (one, two) = (world.call(&of_other_case).await, world.call(&of_none).await);
    assert_eq!((one.status, &one.json()["error"]), (403, &two.json()["error"]));
    let id = made["artifact_id"].as_str().unwrap();
    let paths = [
        format!("/v1/artifacts/{id}?case_id=case-2"),
        "/v1/artifacts/art_0123456789?case_id=case-2".to_owned(),
        format!("/v1/artifacts/{id}"),
    ];
    let mut shown = Vec::new();
    for path in paths {
        shown.push(world.gateway.get(&path).bearer(&world.token).send().await.shown());
    }
    assert_eq!(shown[0].0, 404);
    assert!(shown.iter().all(|answer| *answer == shown[0]), "{shown:?}");
    assert_eq!(world.effects(), 2);
}

pub(crate) async fn a_service_of_no_organization_names_one_and_an_export_needs_its_lane(world: World) {
    let token = service_token(&world.gateway.app, None);
    let ask = |body: Value| world.gateway.post("/v1/tool-calls", &body).bearer(&token).send();
    assert_eq!(ask(write_call("run-00000001")).await.status, 400);
    let named =
        with(write_call("run-00000001"), "scope", json!({"organization_id": world.team.org.to_string()}));
    assert_eq!(ask(named).await.status, 200);
    let unknown =
        with(write_call("run-00000002"), "scope", json!({"organization_id": some_uuid().to_string()}));
    assert_eq!(ask(unknown).await.status, 400);

    let export = |run: &str, scope: Value| {
        let owner = world.team.id(Role::Owner).to_string();
        json!({
            "tool_name": "export.bundle", "operation": "export.bundle", "lane_id": "export.case",
            "actor": {"actor_type": "human", "actor_id": owner}, "case_id": "case-1", "run_id": run,
            "scope": scope,
        })
    };
    let owner = world.team.token(Role::Owner);
    let ask = |body: Value| world.gateway.post("/v1/tool-calls", &body).bearer(owner).send();
    assert_eq!(ask(export("run-00000003", json!({}))).await.status, 403, "a reason is required");
    let done = ask(export("run-00000004", json!({"export_reason": "the court asks"}))).await;
    assert_eq!(done.status, 200, "{}", done.text());
    assert_eq!(world.run("run-00000004").await["run_kind"], "export");
    let events = world.events("run-00000004").await;
    assert_eq!(outcomes(&events).last(), Some(&("export", "success")));
    // An export counts as an export, whatever its tool name and ticket say.
    let mut renamed =
        export("run-00000005", json!({"export_reason": "again", "override_ticket_id": "INC-1"}));
    (renamed["tool_name"], renamed["operation"]) = (json!("export"), json!("bundle"));
    let done = ask(renamed).await;
    assert_eq!(done.status, 200, "{}", done.text());
    assert_eq!(world.run("run-00000005").await["run_kind"], "export");
    // A ticket has no effect on a call that needs no override.
    let call = with(write_call("run-00000006"), "scope", json!({"override_ticket_id": "INC-1"}));
    assert_eq!(world.call(&call).await.status, 200);
    assert_eq!(world.run("run-00000006").await["run_kind"], "tool_gateway");
}

#[tokio::test]
async fn without_a_ledger_nothing_is_executed() {
    let world = World::on(Setup::postgres().await).await;
    world.gateway.sql("ALTER TABLE ledger_events RENAME TO ledger_events_gone").await;
    let answer = world.call(&write_call("run-00000001")).await;
    // `make mutants` looks for these words.
    assert_eq!(answer.status, 503, "a call that is not recorded must not be answered: {}", answer.text());
    assert_eq!(answer.json()["error"]["error_code"], "DEPENDENCY_DOWN");
    assert_eq!(answer.json()["error"]["retryable"], true);
    assert_eq!(world.effects(), 0, "a call that is not recorded must not be executed");
    world.gateway.sql("ALTER TABLE ledger_events_gone RENAME TO ledger_events").await;
    assert_eq!(world.call(&write_call("run-00000001")).await.status, 200);
    assert_eq!(world.effects(), 1);
}

pub(crate) async fn a_sandbox_may_act_only_for_its_own_session(world: World) {
    let app = &world.gateway.app;
    let (own, other) = (session(app, world.team.org).await, session(app, world.team.org).await);
    let token = sandbox_token(app, own).await;
    let actor = json!({"actor_type": "agent", "actor_id": own.to_string()});
    let ask = |body: Value| world.gateway.post("/v1/tool-calls", &body).bearer(&token).send();
    let call = with(write_call("run-00000001"), "actor", actor);
    let call = with(with(call, "operation", json!("effect.read")), "lane_id", json!("actions.read"));
    let call = with(call, "case_id", Value::Null);
    assert_eq!(ask(call.clone()).await.status, 200);
    assert_eq!(world.run("run-00000001").await["case_id"], json!(own.to_string()));
    let path = |session: proto::SessionId| format!("/proliferate/{session}/tools/save_snapshot");
    let body = json!({"tool_call_id": "toolu_1", "args": {}});
    let stray = world.gateway.post(&path(other), &body).bearer(&token).send().await;
    assert_eq!(stray.status, 403);
    let person = world.gateway.post(&path(own), &body).bearer(world.team.token(Role::Owner)).send().await;
    assert_eq!(person.status, 403, "{}", person.text());
    assert_eq!(world.gateway.get("/v1/audit/events").bearer(&token).send().await.status, 403);
}

pub(crate) async fn a_callback_is_executed_once_per_id_and_answers_200_for_every_result(world: World) {
    let app = &world.gateway.app;
    let own = session(app, world.team.org).await;
    let token = sandbox_token(app, own).await;
    let ask = |tool: &str, body: Value| {
        let path = format!("/proliferate/{own}/tools/{tool}");
        world.gateway.post(&path, &body).bearer(&token).send()
    };
    // A coding session does not have this tool, whatever the arguments are.
    let body = json!({"tool_call_id": "toolu_1", "args": {"commands": [{"name": "web", "command": "run"}]}});
    let answer = ask("save_service_commands", body).await;
    let expected =
        json!({"success": false, "result": "save_service_commands is only available in setup sessions."});
    assert_eq!((answer.status, answer.json()), (200, expected));
    let wrong = ask("save_snapshot", json!({"tool_call_id": "toolu_2", "args": {"message": 42}})).await;
    assert_eq!((wrong.status, wrong.json()["success"].as_bool()), (200, Some(false)));
    assert!(wrong.text().contains("message must be a text"), "{}", wrong.text());
    let again = ask("save_snapshot", json!({"tool_call_id": "toolu_2", "args": {"message": 42}})).await;
    assert_eq!(again.json(), wrong.json());
    let other = ask("save_snapshot", json!({"tool_call_id": "toolu_2", "args": {}})).await;
    assert_eq!(other.status, 409, "{}", other.text());
    assert_eq!(ask("unheard_of", json!({"tool_call_id": "toolu_3"})).await.status, 404);
    assert_eq!(ask("save_snapshot", json!({"tool_call_id": ""})).await.status, 400);
    assert_eq!(ask("save_snapshot", json!({"args": {}})).await.status, 400);
}

/// Issue 3: if the provider lacks a capability, tools answer 200 and name the capability.
#[tokio::test]
async fn a_tool_that_the_provider_cannot_serve_says_which_capability_is_missing() {
    let setup = Setup::sqlite()
        .set("SANDBOX_PROVIDER", "attach")
        .set("SANDBOX_ATTACH_URL", "http://127.0.0.1:1/s/{sessionId}");
    let world = World::on(setup).await;
    let own = session(&world.gateway.app, world.team.org).await;
    let token = sandbox_token(&world.gateway.app, own).await;
    let path = format!("/proliferate/{own}/tools/save_snapshot");
    let body = json!({"tool_call_id": "toolu_1", "args": {}});
    let answer = world.gateway.post(&path, &body).bearer(&token).send().await;
    assert_eq!((answer.status, &answer.json()["success"]), (200, &json!(false)), "{}", answer.text());
    assert!(answer.text().contains("snapshot"), "{}", answer.text());
    let runs = world.gateway.get("/v1/runs").bearer(world.team.token(Role::Owner)).send().await.json();
    assert_eq!(runs["runs"][0]["status"], "failed");
}

pub(crate) async fn a_call_continues_when_its_caller_disconnects(world: World) {
    let slow = std::time::Duration::from_millis(300);
    world.effects.plan_always(testkit::Plan { delay: slow, ..testkit::Plan::default() });
    let call = write_call("run-00000001");
    tokio::select! {
        _ = world.call(&call) => panic!("it was to be slow"),
        () = world.effects.wait_for_effects(1) => {}
    }
    let answer = world.call(&write_call("run-00000001")).await;
    assert_eq!((answer.status, world.effects()), (200, 1), "{}", answer.text());
    assert_eq!(world.run("run-00000001").await["status"], "completed");
}
