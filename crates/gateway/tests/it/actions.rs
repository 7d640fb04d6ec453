//! Actions: the catalog and the guides of a session, invocations and their approval.

use std::time::Duration;

use clock::Clock;
use proto::{Role, SessionId};
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};
use testkit::Plan;

use crate::harness::Setup;
use crate::people::{sandbox_token, session};
use crate::world::World;

pub(crate) async fn worlds() -> [World; 2] {
    [World::on(Setup::sqlite()).await, World::on(Setup::postgres().await).await]
}

/// Creates an agent session in the world's organization, and its token.
pub(crate) async fn agent(world: &World) -> (SessionId, String) {
    let session = session(&world.gateway.app, world.team.org).await;
    (session, sandbox_token(&world.gateway.app, session).await)
}

pub(crate) async fn get(world: &World, token: &str, path: &str) -> (u16, Value) {
    let answer = world.gateway.get(path).bearer(token).send().await;
    (answer.status, answer.json())
}

pub(crate) async fn set_mode(world: &World, key: &str, mode: &str) {
    let call = world.gateway.call("PUT", "/v1/action-modes").json(&json!({"key": key, "mode": mode}));
    assert_eq!(call.bearer(world.team.token(Role::Admin)).status().await, 200);
}

#[tokio::test]
async fn the_catalog_shows_each_action_with_its_schema_risk_and_mode() {
    for world in worlds().await {
        let (own, token) = agent(&world).await;
        set_mode(&world, "tools:effect.drop", "require_approval").await;
        let path = format!("/proliferate/{own}/actions/available");
        let (status, body) = get(&world, &token, &path).await;
        assert_eq!(status, 200, "{body}");
        let source = &body["integrations"][0];
        assert_eq!((&source["integration"], &source["integrationId"]), (&json!("tools"), &Value::Null));
        let mode_of = |name: &str| {
            let actions = source["actions"].as_array().unwrap();
            let action = actions.iter().find(|action| action["name"] == name).unwrap();
            assert!(action["params"].is_object(), "{action}");
            [&action["riskLevel"], &action["mode"], &action["modeSource"]].map(|it| it.as_str().unwrap())
        };
        assert_eq!(mode_of("effect.read"), ["read", "allow", "inferred_default"]);
        assert_eq!(mode_of("effect.write"), ["write", "require_approval", "inferred_default"]);
        assert_eq!(mode_of("effect.drop"), ["danger", "require_approval", "org_default"]);
        let member = get(&world, world.team.token(Role::Member), &path).await;
        assert_eq!(member, (200, body), "people see the same catalog");
        let guide = |name: &str| format!("/proliferate/{own}/actions/guide/{name}");
        let (status, body) = get(&world, &token, &guide("tools")).await;
        assert!(status == 200 && body["guide"].as_str().unwrap().contains("## effect.read (read)"), "{body}");
        assert_eq!(get(&world, &token, &guide("nothing")).await.0, 404);
    }
}

#[tokio::test]
async fn what_lanes_prohibit_is_in_no_catalog_and_a_call_of_it_says_why() {
    for world in worlds().await {
        let rule =
            "{rule_id: nothing, reason: nothing is written, lanes: [\"actions.*\"], tools: [effect.write]}";
        let world = world.with_prohibition(rule).await;
        let (own, token) = agent(&world).await;
        // No mode opens what lanes prohibit.
        set_mode(&world, "tools:effect.write", "allow").await;
        let (_, key) = crate::mcp::mcp_key(&world, Role::Owner).await;
        let available = format!("/proliferate/{own}/actions/available");
        for who in [token.as_str(), world.team.token(Role::Member), world.team.token(Role::Owner)] {
            let (_, body) = get(&world, who, &available).await;
            let actions = body["integrations"][0]["actions"].as_array().unwrap();
            let names: Vec<_> = actions.iter().map(|action| action["name"].as_str().unwrap()).collect();
            assert!(names.contains(&"effect.read") && !names.contains(&"effect.write"), "{names:?}");
            let (_, guide) = get(&world, who, &format!("/proliferate/{own}/actions/guide/tools")).await;
            let guide = guide["guide"].as_str().unwrap();
            assert!(guide.contains("## effect.read") && !guide.contains("effect.write"), "{guide}");
            let told = body["unavailable"][0]["problem"].as_str();
            assert_eq!(
                told.is_some_and(|told| told.contains("effect.write")),
                who == world.team.token(Role::Owner)
            );
        }
        let tool = crate::mcp::tool_of("effect.write");
        for caller in [&token, &key] {
            let list = crate::mcp::message("tools/list", &json!({}));
            let listed = crate::mcp::request(&world, caller, &list).send().await.json();
            let names = crate::mcp::names(&listed["result"]);
            assert!(names.contains(&crate::mcp::tool_of("effect.read").as_str()), "{names:?}");
            assert!(!names.contains(&tool.as_str()), "{names:?}");
            let refused = crate::mcp::call(&world, caller, &tool, json!({"note": "hello"})).await;
            assert_eq!(
                crate::mcp::text(&refused["result"]),
                "Action denied: nothing is written",
                "{refused}"
            );
        }
        let (status, body) = invoke(&world, &token, own, "effect.write", json!({"note": "hello"})).await;
        assert_eq!((status, &body["error"]), (403, &json!("Action denied: nothing is written")));
        assert_eq!(world.effects(), 0);
    }
}

pub(crate) async fn invoke(
    world: &World,
    token: &str,
    session: SessionId,
    action: &str,
    params: Value,
) -> (u16, Value) {
    let body = json!({"integration": "tools", "action": action, "params": params});
    let path = format!("/proliferate/{session}/actions/invoke");
    let answer = world.gateway.post(&path, &body).bearer(token).send().await;
    (answer.status, answer.json())
}

async fn decide(world: &World, token: &str, path: &str) -> (u16, Value) {
    let answer = world.gateway.post(path, &json!({})).bearer(token).send().await;
    (answer.status, answer.json())
}

/// Requests a write, which waits, and returns its path.
async fn request(world: &World, token: &str, session: SessionId) -> String {
    let (status, body) = invoke(world, token, session, "effect.write", json!({"note": "hello"})).await;
    assert_eq!((status, &body["message"]), (202, &json!("Action requires approval")), "{body}");
    format!("/proliferate/{session}/actions/invocations/{}", body["invocation"]["id"].as_str().unwrap())
}

async fn verify(world: &World) {
    gate::verify_database(&world.gateway.app.store, Vec::new(), None, &|_| ()).await.unwrap();
}

#[tokio::test]
async fn an_action_is_executed_denied_or_waits_by_its_mode() {
    for world in worlds().await {
        let (own, token) = agent(&world).await;
        let (status, body) = invoke(&world, &token, own, "effect.read", json!({"password": "hunter2"})).await;
        assert_eq!((status, world.effects()), (200, 1), "{body}");
        let done = &body["invocation"];
        assert_eq!((&done["status"], &done["mode"]), (&json!("completed"), &json!("allow")), "{done}");
        assert_eq!(done["params"], json!({"password": "[REDACTED]"}), "shown as people may see it");
        let (status, body) = invoke(&world, &token, own, "effect.drop", json!({})).await;
        assert_eq!((status, &body["invocation"]["deniedReason"]), (403, &json!("policy")), "{body}");
        let said = "Action denied: the mode of the tool is deny (inferred_default); an admin can change it";
        assert!(body["error"].as_str().unwrap().starts_with(said), "{body}");
        let (status, body) = invoke(&world, &token, own, "effect.write", json!({"note": 7, "more": 1})).await;
        let said = body["error"].as_str().unwrap();
        assert!(
            status == 400 && said.contains("note must be a text") && said.contains("must not have other"),
            "{said}"
        );
        let path = request(&world, &token, own).await;
        assert_eq!(world.effects(), 1, "nothing but the allowed action was executed");
        let (_, body) = get(&world, &token, &path).await;
        assert_eq!(body["invocation"]["status"], "pending", "{body}");
        let (status, body) = get(&world, &token, &format!("/proliferate/{own}/actions/invocations")).await;
        assert_eq!((status, body["invocations"].as_array().unwrap().len()), (200, 4), "{body}");
        let list = json!(["tools", "effect.read", {}]);
        let path = format!("/proliferate/{own}/actions/invoke");
        let listed = world.gateway.post(&path, &list).bearer(&token).send().await;
        assert!(listed.status == 400 && listed.text().contains("must be an object"), "{}", listed.text());
        for (integration, action) in [("tools", "effect.none"), ("linear", "list_issues"), ("git", "push")] {
            let body = json!({"integration": integration, "action": action});
            let path = format!("/proliferate/{own}/actions/invoke");
            assert_eq!(world.gateway.post(&path, &body).bearer(&token).status().await, 404, "{integration}");
        }
        let (status, body) =
            invoke(&world, world.team.token(Role::Owner), own, "effect.read", json!({})).await;
        assert_eq!((status, &body["error"]), (403, &json!("Only sandbox agents can invoke actions")));
        verify(&world).await;
    }
}

#[tokio::test]
async fn of_a_hundred_approvers_one_executes_the_action() {
    for world in worlds().await {
        let (own, token) = agent(&world).await;
        let path = request(&world, &token, own).await;
        let (owner, approve) = (world.team.token(Role::Owner), format!("{path}/approve"));
        let all = (0..100).map(|_| decide(&world, owner, &approve));
        let answers = futures_util::future::join_all(all).await;
        let count = |wanted: u16| answers.iter().filter(|(status, _)| *status == wanted).count();
        assert_eq!((count(200), count(409), world.effects()), (1, 99, 1), "{answers:?}");
        let (_, body) = get(&world, &token, &path).await;
        let done = &body["invocation"];
        assert_eq!(
            (&done["status"], &done["approvedBy"]),
            (&json!("completed"), &json!(world.team.id(Role::Owner)))
        );
        let run = format!("call_{}", done["id"].as_str().unwrap().replace('-', ""));
        let events = world.events(&run).await;
        let kinds: Vec<_> = events.iter().map(|event| event["action_type"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["system", "authz_decision", "tool_call"]);
        assert_eq!(decide(&world, owner, &format!("{path}/deny")).await.0, 409);
        verify(&world).await;
    }
}

#[tokio::test]
async fn only_admins_decide_and_only_about_their_own_session() {
    for world in worlds().await {
        let ((own, token), (other, foreign)) = (agent(&world).await, agent(&world).await);
        let path = request(&world, &token, own).await;
        for refused in [world.team.token(Role::Member), token.as_str(), world.token.as_str()] {
            let (status, body) = decide(&world, refused, &format!("{path}/approve")).await;
            let said = "Admin or owner role required for action approvals";
            assert_eq!((status, &body["error"]), (403, &json!(said)));
        }
        let elsewhere = path.replace(&own.to_string(), &other.to_string());
        assert_eq!(get(&world, &foreign, &elsewhere).await.0, 404);
        assert_eq!(
            decide(&world, world.team.token(Role::Owner), &format!("{elsewhere}/approve")).await.0,
            404
        );
        let (status, body) = decide(&world, world.team.token(Role::Admin), &format!("{path}/deny")).await;
        assert_eq!((status, &body["invocation"]["status"]), (200, &json!("denied")), "{body}");
        assert_eq!(decide(&world, world.team.token(Role::Admin), &format!("{path}/approve")).await.0, 409);
        assert_eq!(world.effects(), 0);
        verify(&world).await;
    }
}

#[tokio::test]
async fn a_request_that_is_overdue_or_stricter_by_now_is_not_executed() {
    // The test changes rows, which the harness can do on PostgreSQL only.
    let world = World::on(Setup::postgres().await).await;
    let (own, token) = agent(&world).await;
    let owner = world.team.token(Role::Owner);
    let path = request(&world, &token, own).await;
    set_mode(&world, "tools:effect.write", "deny").await;
    let (status, body) = decide(&world, owner, &format!("{path}/approve")).await;
    assert!(status == 409 && body["error"].as_str().unwrap().contains("deny"), "{body}");
    set_mode(&world, "tools:effect.write", "require_approval").await;
    world.gateway.sql("UPDATE invocations SET expires_at = created_at").await;
    assert_eq!(get(&world, &token, &path).await.1["invocation"]["status"], "expired");
    for act in ["approve", "deny"] {
        let (status, body) = decide(&world, owner, &format!("{path}/{act}")).await;
        assert_eq!((status, &body["error"]), (410, &json!("Invocation has expired")));
    }
    assert_eq!(world.effects(), 0);
}

#[tokio::test]
async fn an_action_that_fails_or_answers_too_late_says_so_and_is_not_repeated() {
    for world in worlds().await {
        let (own, token) = agent(&world).await;
        world.effects.plan_next(Plan { delay: Duration::from_secs(5), ..Plan::default() });
        let (status, body) = invoke(&world, &token, own, "effect.read", json!({})).await;
        assert_eq!((status, &body["code"]), (502, &json!("action_failed")), "{body}");
        let late = "Action failed: the tool did not answer in time: whether it took effect is unknown";
        assert_eq!(body["error"], late);
        world.effects.plan_next(Plan { status: 500, ..Plan::default() });
        let path = request(&world, &token, own).await;
        let (status, body) = decide(&world, world.team.token(Role::Owner), &format!("{path}/approve")).await;
        assert_eq!((status, &body["code"]), (502, &json!("action_failed")), "{body}");
        assert_eq!(body["error"], "Action failed: the tool answered 500");
        let failed = get(&world, &token, &path).await.1["invocation"].clone();
        let shown = [&failed["status"], &failed["error"], &failed["result"], &failed["deniedReason"]];
        assert_eq!(shown, [&json!("failed"), &json!("the tool answered 500"), &Value::Null, &Value::Null]);
        assert_eq!(failed["approvedBy"], json!(world.team.id(Role::Owner)));
        let again = decide(&world, world.team.token(Role::Owner), &format!("{path}/approve")).await;
        let expected = json!("Cannot approve invocation in status: failed");
        assert_eq!((again.0, &again.1["error"], world.effects()), (409, &expected, 2));
        verify(&world).await;
    }
}

#[tokio::test]
async fn a_denied_request_names_who_denied_it_and_an_expired_one_nobody() {
    for setup in [Setup::sqlite(), Setup::postgres().await] {
        let clock = Clock::manual(Clock::system().now());
        let world = World::on(setup.clock(&clock)).await;
        let (own, token) = agent(&world).await;
        let owner = world.team.token(Role::Owner);
        let (denied, expired) = (request(&world, &token, own).await, request(&world, &token, own).await);
        assert_eq!(decide(&world, owner, &format!("{denied}/deny")).await.0, 200);
        clock.advance(Duration::from_mins(5));
        for (path, status, reason, by, answer) in [
            (
                &denied,
                "denied",
                json!("denied"),
                json!(world.team.id(Role::Owner)),
                (409, "conflict", "Cannot approve invocation in status: denied"),
            ),
            (&expired, "expired", Value::Null, Value::Null, (410, "expired", "Invocation has expired")),
        ] {
            let found = get(&world, &token, path).await.1["invocation"].clone();
            let shown = [&found["status"], &found["deniedReason"], &found["approvedBy"], &found["error"]];
            assert_eq!(shown, [&json!(status), &reason, &by, &Value::Null], "{found}");
            let (status, body) = decide(&world, owner, &format!("{path}/approve")).await;
            let (code, error) = (body["code"].as_str().unwrap(), body["error"].as_str().unwrap());
            assert_eq!((status, code, error), answer);
        }
        assert_eq!(world.effects(), 0);
    }
}

#[tokio::test]
async fn a_session_has_ten_requests_waiting_at_most() {
    // The test changes rows, which the harness can do on PostgreSQL only.
    let world = World::on(Setup::postgres().await).await;
    let (own, token) = agent(&world).await;
    for _ in 0..gate::MAX_WAITING {
        request(&world, &token, own).await;
    }
    let body = json!({"integration": "tools", "action": "effect.write"});
    let path = format!("/proliferate/{own}/actions/invoke");
    let many = world.gateway.post(&path, &body).bearer(&token).send().await;
    assert_eq!((many.status, many.header("retry-after")), (429, Some("300")), "{}", many.text());
    let said = json!("Too many pending approvals. Resolve existing ones first.");
    assert_eq!((&many.json()["error"], &many.json()["code"]), (&said, &json!("too_many_pending")));
    world.gateway.sql("UPDATE invocations SET expires_at = created_at").await;
    request(&world, &token, own).await;
}

/// What policy judges again, or what only describes the call.
const UNBOUND_FIELDS: [&str; 9] = [
    "/agent_name",
    "/break_glass/reason",
    "/break_glass/ticket",
    "/claimed",
    "/demanded",
    "/entry_point",
    "/run/correlation",
    "/run/parent",
    "/run/retry_of",
];

/// The JSON pointers of everything in a value that has no parts.
fn leaves(value: &Value, at: String) -> Vec<String> {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            fields.iter().flat_map(|(name, field)| leaves(field, format!("{at}/{name}"))).collect()
        }
        Value::Array(items) if !items.is_empty() => {
            items.iter().enumerate().flat_map(|(index, item)| leaves(item, format!("{at}/{index}"))).collect()
        }
        _ => vec![at],
    }
}

/// Another value that a request may have in the same place.
fn other_leaf(leaf: &Value) -> Value {
    let uuid = json!(uuid::Uuid::from_u128(7));
    let artifact =
        json!({"artifact_id": "artifact-1", "artifact_kind": "output", "hash_sha256": "a".repeat(64)});
    match leaf {
        Value::Null => uuid,
        Value::Array(_) => json!([artifact]),
        Value::String(text) if text.parse::<uuid::Uuid>().is_ok() => uuid,
        Value::String(text) if text.len() == 64 => json!("a".repeat(64)),
        Value::String(text) if text == "agent" => json!("human"),
        Value::String(text) => json!(format!("{text}.more")),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn an_approval_is_bound_to_every_part_of_the_request() {
    // The test changes rows, which the harness can do on PostgreSQL only.
    let world = World::on(Setup::postgres().await).await;
    let (own, token) = agent(&world).await;
    let path = request(&world, &token, own).await;
    let id = path.rsplit('/').next().unwrap().parse().unwrap();
    let (app, org) = (&world.gateway.app, world.team.org);
    let sealed = app.store.invocation(org, id).await.unwrap().unwrap().request.unwrap();
    let recorded = app.vault.unseal_request(org, id, &sealed).unwrap();
    let recorded: Value = serde_json::from_str(recorded.expose_secret()).unwrap();
    let mut leaves = leaves(&recorded, String::new());
    leaves.retain(|pointer| !UNBOUND_FIELDS.contains(&pointer.as_str()));
    assert_eq!(leaves.len(), 19, "{leaves:?}");
    for pointer in leaves {
        // As somebody could who has the vault's key. Without it nothing can be changed.
        let mut changed = recorded.clone();
        let leaf = changed.pointer_mut(&pointer).unwrap();
        *leaf = other_leaf(leaf);
        let changed = changed.to_string();
        serde_json::from_str::<gate::CallRequest>(&changed)
            .unwrap_or_else(|error| panic!("{pointer}: {error}"));
        let stored = |request: &Value| format!("UPDATE invocations SET request = '{request}'::jsonb");
        world.gateway.sql(&stored(&app.vault.seal_request(org, id, &changed).unwrap())).await;
        let (status, body) = decide(&world, world.team.token(Role::Owner), &format!("{path}/approve")).await;
        assert_eq!((status, world.effects()), (409, 0), "{pointer}: {body}");
        assert_eq!(body["error"], "The request has changed since it was recorded", "{pointer}");
        let mut damaged = sealed.clone();
        damaged["ciphertext"] = json!(damaged["ciphertext"].as_str().unwrap().replacen('A', "B", 1));
        damaged["nonce"] = json!("00".repeat(12));
        world.gateway.sql(&stored(&damaged)).await;
        assert_eq!(decide(&world, world.team.token(Role::Owner), &format!("{path}/approve")).await.0, 409);
        world.gateway.sql(&stored(&sealed)).await;
    }
    let definition = |hash: &str| format!("UPDATE invocations SET definition_hash = {hash}");
    world.gateway.sql("CREATE TABLE kept AS SELECT definition_hash FROM invocations").await;
    world.gateway.sql(&definition(&format!("'{}'", "a".repeat(64)))).await;
    assert_eq!(decide(&world, world.team.token(Role::Owner), &format!("{path}/approve")).await.0, 409);
    world.gateway.sql(&definition("(SELECT definition_hash FROM kept)")).await;
    let (status, body) = decide(&world, world.team.token(Role::Owner), &format!("{path}/approve")).await;
    assert_eq!((status, world.effects()), (200, 1), "unchanged, it is executed: {body}");
}

#[tokio::test]
async fn a_request_still_waits_after_a_restart_and_is_executed_once() {
    for world in worlds().await {
        let (own, token) = agent(&world).await;
        let path = request(&world, &token, own).await;
        let lanes = include_str!("../../../../policy/lanes.yaml");
        let world = world.with_files(lanes, include_str!("../../../../policy/roles.yaml")).await;
        let owner = world.team.token(Role::Owner);
        let (_, body) = get(&world, owner, &path).await;
        assert_eq!((&body["invocation"]["status"], world.effects()), (&json!("pending"), 0), "{body}");
        let id = path.rsplit('/').next().unwrap();
        assert_eq!(decide(&world, owner, &format!("/v1/invocations/{id}/approve")).await.0, 200);
        assert_eq!(decide(&world, owner, &format!("{path}/approve")).await.0, 409);
        assert_eq!(world.effects(), 1);
        verify(&world).await;
    }
}
