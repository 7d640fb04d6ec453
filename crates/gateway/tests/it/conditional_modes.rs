//! Modes with conditions on the arguments: set, listed, shown in the catalog, decided for every call and again for its
//! approval, and removed.

use proto::Role;
use serde_json::{Value, json};

use crate::actions::{agent, get, invoke, worlds};
use crate::harness::Setup;
use crate::world::World;

const MODE_KEY: &str = "tools:effect.write";

/// Allows the note `dev`, denies `all`, and asks for every other.
fn notes() -> Value {
    let note = |text: &str| json!({"properties": {"note": {"const": text}}, "required": ["note"]});
    json!({
        "rules": [{"when": note("dev"), "mode": "allow"}, {"when": note("all"), "mode": "deny"}],
        "else": "require_approval",
        "examples": [{"args": {"note": "dev"}, "mode": "allow"}, {"args": {}, "mode": "require_approval"}],
        "twoPerson": false,
    })
}

async fn set(world: &World, mode: &Value) -> (u16, Value) {
    let call = world.gateway.call("PUT", "/v1/action-modes").json(&json!({"key": MODE_KEY, "mode": mode}));
    let answer = call.bearer(world.team.token(Role::Admin)).send().await;
    (answer.status, answer.json())
}

#[tokio::test]
async fn a_mode_with_conditions_decides_by_the_arguments() {
    for world in worlds().await {
        let (own, token) = agent(&world).await;
        assert_eq!(set(&world, &notes()).await.0, 200);
        let (_, listed) = get(&world, world.team.token(Role::Member), "/v1/action-modes").await;
        assert_eq!(listed["modes"][0]["mode"], notes(), "listed as it was set");
        for (params, status, rule) in [
            (json!({"note": "dev"}), 200, "rule 1"),
            (json!({"note": "all"}), 403, "mode:deny:org_default:rule-2"),
            (json!({"note": "other"}), 202, "mode:require_approval:org_default:else"),
            (json!({}), 202, "mode:require_approval:org_default:else"),
        ] {
            let (answered, body) = invoke(&world, &token, own, "effect.write", params.clone()).await;
            assert_eq!(answered, status, "{params}: {body}");
            let run = format!("call_{}", body["invocation"]["id"].as_str().unwrap().replace('-', ""));
            let event = world.events(&run).await[0].to_string();
            assert!(event.contains(rule), "{rule}: {event}");
        }
        assert_eq!(world.effects(), 1);
        let (_, catalog) = get(&world, &token, &format!("/proliferate/{own}/actions/available")).await;
        let actions = catalog["integrations"][0]["actions"].as_array().unwrap().clone();
        let action = actions.iter().find(|action| action["name"] == "effect.write").unwrap();
        assert_eq!(
            (&action["mode"], &action["conditions"]),
            (&json!("require_approval"), &notes()["rules"]),
            "{action}"
        );
        gate::verify_database(&world.gateway.app.store, Vec::new(), None, &|_| ()).await.unwrap();
    }
}

#[tokio::test]
async fn conditions_that_contradict_their_examples_or_cannot_be_checked_are_refused() {
    for world in worlds().await {
        let mut wrong = notes();
        wrong["examples"][1]["mode"] = json!("allow");
        let (status, body) = set(&world, &wrong).await;
        let said = "mode: example 2 says allow, but else makes it require_approval: correct one of them";
        assert_eq!((status, &body["error"]), (400, &json!(said)), "{body}");
        for (mode, part) in [
            (json!({"else": "deny", "rules": [{"when": {"typ": "x"}, "mode": "allow"}]}), "typ"),
            (
                json!({"else": "deny", "rules": [{"when": {"unevaluatedProperties": false}, "mode": "allow"}]}),
                "unevaluatedProperties is not a keyword",
            ),
            (json!({"rules": []}), "else"),
            (json!("perhaps"), "a mode is allow"),
            (json!(7), "a mode is allow"),
        ] {
            let (status, body) = set(&world, &mode).await;
            assert!(status == 400 && body["error"].as_str().unwrap().contains(part), "{mode}: {body}");
        }
        let (_, listed) = get(&world, world.team.token(Role::Member), "/v1/action-modes").await;
        assert_eq!(listed["modes"], json!([]));
    }
}

#[tokio::test]
async fn conditions_decide_again_when_a_request_is_approved() {
    for world in worlds().await {
        let (own, token) = agent(&world).await;
        let (status, body) = invoke(&world, &token, own, "effect.write", json!({"note": "all"})).await;
        assert_eq!(status, 202, "{body}");
        let id = body["invocation"]["id"].as_str().unwrap();
        let approve = || async {
            let call = world.gateway.post(&format!("/v1/invocations/{id}/approve"), &json!({}));
            call.bearer(world.team.token(Role::Owner)).send().await
        };
        assert_eq!(set(&world, &notes()).await.0, 200);
        let answer = approve().await;
        assert_eq!((answer.status, world.effects()), (409, 0), "denied for these arguments by now");
        let mut others = notes();
        others["rules"][1]["when"]["properties"]["note"]["const"] = json!("others");
        assert_eq!(set(&world, &others).await.0, 200);
        assert_eq!((approve().await.status, world.effects()), (200, 1));
    }
}

#[tokio::test]
async fn a_removed_mode_follows_from_the_risk_again() {
    for world in worlds().await {
        let (own, token) = agent(&world).await;
        assert_eq!(set(&world, &json!("allow")).await.0, 200);
        let path = format!("/v1/action-modes/{MODE_KEY}");
        let unset = |token: String| {
            let call = world.gateway.call("DELETE", &path).bearer(&token);
            async move { call.status().await }
        };
        assert_eq!(unset(world.team.token(Role::Member).to_owned()).await, 403);
        assert_eq!(unset(world.team.token(Role::Admin).to_owned()).await, 200);
        assert_eq!(unset(world.team.token(Role::Admin).to_owned()).await, 404);
        let (status, body) = invoke(&world, &token, own, "effect.write", json!({})).await;
        assert_eq!((status, &body["invocation"]["modeSource"]), (202, &json!("inferred_default")), "{body}");
        gate::verify_database(&world.gateway.app.store, Vec::new(), None, &|_| ()).await.unwrap();
    }
}

#[tokio::test]
async fn conditions_of_an_automation_count_and_wrong_ones_deny() {
    // The test inserts rows, which the harness can do on PostgreSQL only.
    let world = World::on(Setup::postgres().await).await;
    let (own, token) = agent(&world).await;
    let automation = format!(
        "INSERT INTO automations (id, org_id, name, instructions, enabled, action_modes, created_at, updated_at)
        SELECT id, org_id, 'a', '', true, '{{}}', now(), now() FROM sessions WHERE id = '{own}';
        UPDATE sessions SET automation_id = id WHERE id = '{own}'"
    );
    world.gateway.sql(&automation).await;
    let path = format!("/v1/automations/{own}/action-modes");
    let put = async |who: Role, mode: Value| {
        let call = world.gateway.call("PUT", &path).json(&json!({"key": MODE_KEY, "mode": mode}));
        call.bearer(world.team.token(who)).status().await
    };
    let write = |note: &'static str| invoke(&world, &token, own, "effect.write", json!({"note": note}));
    assert_eq!(put(Role::Member, json!("allow")).await, 403);
    let mut contradiction = notes();
    contradiction["examples"][0]["mode"] = json!("deny");
    assert_eq!(put(Role::Admin, contradiction).await, 400);
    assert_eq!(put(Role::Admin, notes()).await, 200);
    let (_, listed) = get(&world, world.team.token(Role::Member), &path).await;
    assert_eq!(listed, json!({"modes": {MODE_KEY: notes()}}));
    let (_, found) = get(&world, world.team.token(Role::Owner), "/v1/audit/events?limit=100").await;
    let mut changes =
        found["events"].as_array().unwrap().iter().filter(|it| it["target"]["name"] == "automation");
    let said = changes.next_back().unwrap()["notes"].as_str().unwrap();
    let setting = policy::ModeSetting::parse(&notes()).unwrap();
    let hash = ledger::payload_hash(setting.conditions().unwrap()).unwrap();
    assert!(said.ends_with(&format!(", two_person false, conditions {hash}")), "{said}");
    assert_eq!([write("dev").await.0, write("all").await.0, write("x").await.0], [200, 403, 202]);
    assert_eq!(set(&world, &json!({"else": "allow", "rules": [notes()["rules"][1]]})).await.0, 200);
    assert_eq!(put(Role::Admin, json!("allow")).await, 200);
    assert_eq!([write("x").await.0, write("all").await.0], [200, 403], "the organization denies `all`");
    let wrong = json!({MODE_KEY: {"else": "allow", "rules": [{"when": {"typ": 1}, "mode": "allow"}]}});
    world.gateway.sql(&format!("UPDATE automations SET action_modes = '{wrong}'")).await;
    let (_, body) = write("dev").await;
    assert_eq!(body["invocation"]["deniedReason"], "unknown_mode:wrong_conditions", "{body}");
    let unset = format!("{path}/{MODE_KEY}");
    for status in [200, 404] {
        let call = world.gateway.call("DELETE", &unset).bearer(world.team.token(Role::Admin));
        assert_eq!(call.status().await, status);
    }
    assert_eq!(get(&world, &token, &path).await.0, 403, "not for sandboxes");
}
