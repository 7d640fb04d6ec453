//! Actions: the catalog and the guides of a session.

use proto::{Role, SessionId};
use serde_json::{Value, json};

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
