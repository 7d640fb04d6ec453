//! Modes: tools from `tools.yaml` that an agent calls are allowed, need approval, or are denied; other callers are
//! exempt.

use proto::{Role, SessionId};
use serde_json::{Value, json};

use crate::harness::Setup;
use crate::people::{sandbox_token, session};
use crate::world::{DENIED_EVENTS, World, outcomes, with, write_call};

async fn worlds() -> [World; 2] {
    [World::on(Setup::sqlite()).await, World::on(Setup::postgres().await).await]
}

/// Creates an agent session in the world's organization, and its token.
async fn agent(world: &World) -> (SessionId, String) {
    let session = session(&world.gateway.app, world.team.org).await;
    (session, sandbox_token(&world.gateway.app, session).await)
}

fn call(run: &str, operation: &str, lane: &str, actor: Value) -> Value {
    let mut call = write_call(run);
    for (field, value) in [
        ("operation", json!(operation)),
        ("lane_id", json!(lane)),
        ("actor", actor),
        ("case_id", Value::Null),
        ("parameters", json!({})),
    ] {
        call = with(call, field, value);
    }
    call
}

async fn send(world: &World, token: &str, call: &Value) -> (u16, Value) {
    let answer = world.gateway.post("/v1/tool-calls", call).bearer(token).send().await;
    (answer.status, answer.json())
}

async fn set(world: &World, who: Role, key: &str, mode: &str) -> u16 {
    let call = world.gateway.call("PUT", "/v1/action-modes").json(&json!({"key": key, "mode": mode}));
    call.bearer(world.team.token(who)).status().await
}

#[tokio::test]
async fn an_agent_needs_a_mode_that_allows_what_is_more_than_reading() {
    for world in worlds().await {
        let (own, token) = agent(&world).await;
        let actor = json!({"actor_type": "agent", "actor_id": own.to_string()});
        let tool = |run: &str, operation, lane| call(run, operation, lane, actor.clone());
        // The default mode of a read-only tool follows from its risk.
        let (status, body) = send(&world, &token, &tool("run-modes-1", "effect.read", "actions.read")).await;
        assert_eq!((status, world.effects()), (200, 1), "{body}");
        let events = world.events("run-modes-1").await;
        assert_eq!(
            events[0]["outcome_reason"],
            "all checks of the lane passed; mode allow (inferred_default)"
        );
        // A write needs approval by default.
        let (status, body) =
            send(&world, &token, &tool("run-modes-2", "effect.write", "actions.write")).await;
        assert_eq!((status, world.effects()), (202, 1), "{body}");
        let events = world.events("run-modes-2").await;
        let notes = events[0]["notes"].as_str().unwrap();
        assert!(notes.starts_with("mode:require_approval:inferred_default"), "{notes}");
        // A danger is denied by default, and goes through its own lane only.
        let danger = tool("run-danger-default", "effect.drop", "actions.danger");
        assert_eq!((send(&world, &token, &danger).await.0, world.effects()), (403, 1));
        assert_eq!(set(&world, Role::Admin, "tools:effect.drop", "allow").await, 200);
        for (number, lane) in ["actions.write", "actions.read"].into_iter().enumerate() {
            let danger = tool(&format!("run-danger-{number}"), "effect.drop", lane);
            let (status, body) = send(&world, &token, &danger).await;
            assert_eq!((status, world.effects()), (403, 1), "{lane}: {body}");
        }
        // With an explicit mode of `allow`, the lane decides.
        assert_eq!(set(&world, Role::Owner, "tools:effect.write", "allow").await, 200);
        let (status, body) =
            send(&world, &token, &tool("run-modes-3", "effect.write", "actions.write")).await;
        assert_eq!((status, world.effects()), (200, 2), "{body}");
        let events = world.events("run-modes-3").await;
        assert_eq!(events[0]["outcome_reason"], "all checks of the lane passed; mode allow (org_default)");
        assert_eq!(set(&world, Role::Owner, "tools:effect.read", "deny").await, 200);
        let (status, body) = send(&world, &token, &tool("run-set-0", "effect.read", "actions.read")).await;
        assert_eq!((status, world.effects()), (403, 2), "{body}");
        let events = world.events("run-set-0").await;
        assert_eq!(
            (outcomes(&events), &events[0]["authz"]["rule_id"]),
            (DENIED_EVENTS.into(), &json!("mode:deny:org_default"))
        );
        // Modes apply only to their own organization.
        let elsewhere = crate::people::OrgOf3::new(&world.gateway.app).await;
        let other = session_of(&world, elsewhere.org).await;
        let actor = json!({"actor_type": "agent", "actor_id": other.0.to_string()});
        let write = call("run-modes-3", "effect.write", "actions.write", actor);
        assert_eq!(send(&world, &other.1, &write).await.0, 202);
    }
}

#[tokio::test]
async fn a_call_of_an_agent_waits_and_is_executed_once_when_it_is_approved() {
    for world in worlds().await {
        let (own, token) = agent(&world).await;
        let actor = json!({"actor_type": "agent", "actor_id": own.to_string()});
        let write = call("run-waits-1", "effect.write", "actions.write", actor.clone());
        let (status, body) = send(&world, &token, &write).await;
        assert_eq!((status, &body["error"]["error_code"]), (202, &json!("POLICY_DENIED")), "{body}");
        let message = body["error"]["message"].as_str().unwrap();
        let path = message.split_whitespace().find(|word| word.starts_with("/proliferate/")).unwrap();
        let pending = world.gateway.get(path).bearer(&token).send().await.json();
        assert_eq!(pending["invocation"]["status"], "pending", "{pending}");
        assert_eq!(send(&world, &token, &write).await, (202, body.clone()), "the same request still waits");
        let other = with(write.clone(), "parameters", json!({"note": "other"}));
        assert_eq!(send(&world, &token, &other).await.0, 409, "another call under its id");
        let id = path.rsplit('/').next().unwrap();
        let approve = format!("/v1/invocations/{id}/approve");
        let decide = |token: String| {
            let (gateway, path) = (&world.gateway, approve.clone());
            async move { gateway.post(&path, &json!({})).bearer(&token).status().await }
        };
        assert_eq!(decide(world.team.token(Role::Member).to_owned()).await, 403);
        assert_eq!(world.effects(), 0);
        assert_eq!(decide(world.team.token(Role::Owner).to_owned()).await, 200);
        assert_eq!(decide(world.team.token(Role::Owner).to_owned()).await, 409);
        let (status, body) = send(&world, &token, &write).await;
        assert_eq!((status, &body["outcome"], world.effects()), (200, &json!("success"), 1), "{body}");
        gate::verify_database(&world.gateway.app.store, Vec::new(), None, &|_| ()).await.unwrap();
    }
}

#[tokio::test]
async fn a_call_that_is_repeated_while_its_approved_execution_runs_waits_for_it() {
    for world in worlds().await {
        let (own, token) = agent(&world).await;
        let actor = json!({"actor_type": "agent", "actor_id": own.to_string()});
        let write = call("run-waits-1", "effect.open", "actions.write", actor);
        assert_eq!(send(&world, &token, &write).await.0, 202);
        let owner = world.team.token(Role::Owner);
        let inbox = world.gateway.get("/v1/inbox").bearer(owner).send().await.json();
        let path = format!("/v1/invocations/{}", inbox["entries"][0]["invocationId"].as_str().unwrap());
        world.effects.hold();
        let approve = format!("{path}/approve");
        let approved = async { world.gateway.post(&approve, &json!({})).bearer(owner).status().await };
        let repeated = async {
            world.effects.wait_for_effects(1).await;
            send(&world, &token, &write).await
        };
        let watched = async {
            world.effects.wait_for_effects(1).await;
            for _ in 0..30 {
                let shown = world.gateway.get(&path).bearer(owner).send().await.json();
                assert_eq!(shown["invocation"]["status"], "executing", "{shown}");
            }
            world.effects.release();
        };
        let (approved, repeated, ()) = tokio::join!(approved, repeated, watched);
        assert_eq!(
            (approved, repeated.0, &repeated.1["outcome"]),
            (200, 200, &json!("success")),
            "{repeated:?}"
        );
        assert_eq!(world.effects(), 1);
        gate::verify_database(&world.gateway.app.store, Vec::new(), None, &|_| ()).await.unwrap();
    }
}

async fn session_of(world: &World, org: proto::OrgId) -> (SessionId, String) {
    let session = session(&world.gateway.app, org).await;
    (session, sandbox_token(&world.gateway.app, session).await)
}

#[tokio::test]
async fn a_persons_own_call_needs_no_approval_but_can_be_denied() {
    for world in worlds().await {
        let member = world.team.id(Role::Member);
        let human = json!({"actor_type": "human", "actor_id": member.to_string()});
        let service = json!({"actor_type": "system", "actor_id": "worker"});
        let (person, program) = (world.team.token(Role::Member).to_owned(), world.token.clone());
        let mut done = 0;
        for (name, token, actor) in [("member", &person, human), ("worker", &program, service)] {
            for (operation, lane) in [("effect.write", "actions.write"), ("effect.drop", "actions.danger")] {
                let key = format!("tools:{operation}");
                let tool =
                    |step: &str| call(&format!("{name}-{operation}-{step}"), operation, lane, actor.clone());
                done += 1;
                let (status, body) = send(&world, token, &tool("before")).await;
                assert_eq!((status, world.effects()), (200, done), "{name} {operation}: {body}");
                assert_eq!(set(&world, Role::Owner, &key, "deny").await, 200);
                let (status, body) = send(&world, token, &tool("denied")).await;
                assert_eq!((status, world.effects()), (403, done), "{name} {operation}: {body}");
                assert_eq!(set(&world, Role::Owner, &key, "require_approval").await, 200);
                done += 1;
                let (status, body) = send(&world, token, &tool("after")).await;
                assert_eq!((status, world.effects()), (200, done), "{name} {operation}: {body}");
            }
        }
    }
}

#[tokio::test]
async fn a_mode_of_an_action_that_cannot_exist_is_refused() {
    for world in worlds().await {
        let admin = world.team.token(Role::Admin);
        let new = json!({"name": "triage", "instructions": "Look at new issues."});
        let made = world.gateway.post("/v1/automations", &new).bearer(admin).send().await.json();
        let of_automation = format!("/v1/automations/{}/action-modes", made["id"].as_str().unwrap());
        let nobody = "0190f5d2-7c3e-7a11-8000-5b1f6c2d9e40";
        let (connector, database) = (format!("connector:{nobody}:search"), format!("db:{nobody}:query"));
        for path in ["/v1/action-modes", &of_automation] {
            let put = async |body: Value| {
                let answer = world.gateway.call("PUT", path).json(&body).bearer(admin).send().await;
                (answer.status, answer.text())
            };
            for (key, says) in [
                ("git:force_pusj", "did you mean git:force_push?"),
                ("git:push", "did you mean git:push_tag?"),
                ("tools:effect.wriet", "did you mean tools:effect.write?"),
                ("tools:effect.write ", "did you mean tools:effect.write?"),
                ("tools:nosuch", "did you mean tools:"),
                ("linear:create_isue", "did you mean linear:create_issue?"),
                ("linaer:create_issue", "the sources are linear, sentry,"),
                ("*:*", "no source of actions"),
                ("connector:docs:search", "expected connector:ID:TOOL"),
                (connector.as_str(), "has no connector"),
                (database.as_str(), "has no database"),
            ] {
                let (status, text) = put(json!({"key": key, "mode": "deny"})).await;
                assert!(status == 400 && text.contains("key: ") && text.contains(says), "{key}: {text}");
            }
            let (status, text) =
                put(json!({"key": "git:force_push", "mode": "require_approval", "twoPerson": true})).await;
            assert!(status == 400 && text.contains("twoPerson"), "beside the mode it has no effect: {text}");
            for key in [
                "git:force_push",
                "git:delete_ref",
                "git:push_tag",
                "tools:effect.write",
                "sentry:list_issues",
            ] {
                let (status, text) = put(json!({"key": key, "mode": "deny"})).await;
                assert_eq!((status, text.as_str()), (200, r#"{"ok":true}"#), "{key}");
            }
        }
    }
}

#[tokio::test]
async fn an_admin_sets_a_mode_and_the_ledger_names_the_admin() {
    for world in worlds().await {
        let key = "tools:effect.write";
        assert_eq!(set(&world, Role::Member, key, "allow").await, 403);
        assert_eq!(set(&world, Role::Admin, "no-colon", "allow").await, 400);
        assert_eq!(set(&world, Role::Admin, key, "perhaps").await, 400);
        assert_eq!(set(&world, Role::Admin, key, "deny").await, 200);
        assert_eq!(set(&world, Role::Admin, key, "allow").await, 200);
        let admin = world.team.id(Role::Admin).to_string();
        let listed =
            world.gateway.get("/v1/action-modes").bearer(world.team.token(Role::Member)).send().await;
        let listed = listed.json();
        let modes = listed["modes"].as_array().unwrap();
        assert_eq!(modes.len(), 1, "{listed}");
        assert_eq!((&modes[0]["key"], &modes[0]["mode"]), (&json!(key), &json!("allow")));
        assert_eq!(modes[0]["changedBy"], json!(admin));
        let all = world.gateway.get("/v1/audit/events?limit=100").bearer(world.team.token(Role::Owner));
        let all = all.send().await.json();
        let changes: Vec<_> = all["events"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|event| event["action_type"] == "policy_change")
            .map(|event| {
                assert_eq!(event["actor"]["actor_id"], json!(admin));
                assert_eq!(event["actor"]["actor_type"], "human");
                assert_eq!(event["target"]["name"], json!(key));
                event["target"]["operation"].as_str().unwrap().to_owned()
            })
            .collect();
        assert_eq!(changes, ["deny", "allow"]);
    }
}
