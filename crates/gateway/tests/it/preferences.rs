//! Preferences: what a user disables for the sessions they create is neither listed nor invoked there.

use proto::{Role, SessionId, SessionType};
use serde_json::{Value, json};
use store::{DisabledAction, NewSession};

use crate::actions::{agent, get, invoke, worlds};
use crate::mcp::{call, decide, mcp_key, message, names, request, text, tool_of};
use crate::people::{sandbox_token, some_uuid};
use crate::world::World;

/// Creates a session as this member, and the token of its sandbox.
async fn agent_of(world: &World, role: Role) -> (SessionId, String) {
    let (app, id) = (&world.gateway.app, SessionId::from(some_uuid()));
    let new = NewSession::new(id, world.team.org, SessionType::Coding, "local", app.clock.now());
    app.store.create_session(NewSession { created_by: Some(world.team.id(role)), ..new }).await.unwrap();
    (id, sandbox_token(app, id).await)
}

async fn prefer(world: &World, role: Role, source: &str, action: Option<&str>, enabled: bool) -> u16 {
    let body = json!({"sourceId": source, "actionId": action, "enabled": enabled});
    world.gateway.call("PUT", "/v1/preferences").json(&body).bearer(world.team.token(role)).status().await
}

async fn listed(world: &World, token: &str, session: SessionId) -> Vec<String> {
    let (status, body) = get(world, token, &format!("/proliferate/{session}/actions/available")).await;
    assert_eq!(status, 200, "{body}");
    let sources = body["integrations"].as_array().unwrap().iter();
    let actions = sources.flat_map(|source| source["actions"].as_array().unwrap());
    actions.map(|action| action["name"].as_str().unwrap().to_owned()).collect()
}

async fn call_refused(world: &World, token: &str, session: SessionId) -> (u16, String) {
    let (status, body) = invoke(world, token, session, "effect.read", json!({})).await;
    (status, body["error"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn what_a_user_disables_is_neither_listed_nor_invoked_in_their_sessions() {
    for world in worlds().await {
        let (own, token) = agent_of(&world, Role::Member).await;
        let (others, other_token) = agent_of(&world, Role::Admin).await;
        let (nobodys, nobodys_token) = agent(&world).await;
        let all = listed(&world, &token, own).await;
        assert!(all.iter().any(|name| name == "effect.read"), "{all:?}");

        assert_eq!(prefer(&world, Role::Member, "tools", Some("effect.read"), false).await, 200);
        let left = listed(&world, &token, own).await;
        assert_eq!((left.len(), left.iter().any(|name| name == "effect.read")), (all.len() - 1, false));
        assert_eq!(
            call_refused(&world, &token, own).await,
            (403, "This action is disabled by user preferences".to_owned())
        );
        assert_eq!(world.effects(), 0);

        assert_eq!(prefer(&world, Role::Member, "tools", None, false).await, 200);
        assert_eq!(listed(&world, &token, own).await, [""; 0]);
        let guide = format!("/proliferate/{own}/actions/guide/tools");
        assert_eq!(get(&world, &token, &guide).await.0, 404);
        let expected = (403, "This integration is disabled by user preferences".to_owned());
        assert_eq!(call_refused(&world, &token, own).await, expected);
        assert_eq!(world.effects(), 0);
        assert_eq!(listed(&world, world.team.token(Role::Member), own).await, [""; 0], "as the agent");
        assert_eq!(
            listed(&world, world.team.token(Role::Admin), own).await,
            all,
            "a viewer's own preferences"
        );

        for (session, token) in [(others, &other_token), (nobodys, &nobodys_token)] {
            assert_eq!(listed(&world, token, session).await, all);
            assert_eq!(call_refused(&world, token, session).await.0, 200);
        }
        assert_eq!(prefer(&world, Role::Member, "tools", None, true).await, 200);
        assert_eq!(listed(&world, &token, own).await.len(), all.len() - 1, "the action is still disabled");
        assert_eq!(prefer(&world, Role::Member, "tools", Some("effect.read"), true).await, 200);
        assert_eq!(call_refused(&world, &token, own).await.0, 200);
        gate::verify_database(&world.gateway.app.store, Vec::new(), None, &|_| ()).await.unwrap();
    }
}

#[tokio::test]
async fn a_disabled_action_is_refused_at_every_entry_and_at_its_approval() {
    for world in worlds().await {
        let (own, token) = agent_of(&world, Role::Member).await;
        let (status, body) = invoke(&world, &token, own, "effect.write", json!({"note": "n"})).await;
        assert_eq!(status, 202, "{body}");
        let path = format!("/v1/invocations/{}/approve", body["invocation"]["id"].as_str().unwrap());
        assert_eq!(prefer(&world, Role::Member, "tools", None, false).await, 200);
        let owner = world.team.token(Role::Owner);
        assert_eq!(world.gateway.post(&path, &json!({})).bearer(owner).status().await, 409);

        let call = json!({
            "tool_name": "effect", "operation": "effect.read", "lane_id": "actions.read",
            "actor": {"actor_type": "agent", "actor_id": own}, "case_id": own.to_string(), "run_id": "run-direct-1",
            "parent_run_id": null, "correlation_id": "why", "parameters": {},
        });
        let answer = world.gateway.post("/v1/tool-calls", &call).bearer(&token).send().await;
        assert_eq!((answer.status, world.effects()), (403, 0), "{}", answer.text());

        assert_eq!(call_refused(&world, &token, own).await.0, 403);
        let events = get(&world, owner, "/v1/audit/events?limit=100").await.1;
        let denied = |event: &&Value| {
            event.to_string().contains("disabled by user preferences") && event["outcome"] == "deny"
        };
        let recorded = events["events"].as_array().unwrap().iter().filter(denied).count();
        assert_eq!(
            recorded, 3,
            "the refused approval, and the decision and the call of one attempt: {events}"
        );
    }
}

#[tokio::test]
async fn preferences_are_ones_own_and_bounded() {
    for world in worlds().await {
        assert_eq!(prefer(&world, Role::Member, "github", None, false).await, 200);
        assert_eq!(prefer(&world, Role::Member, "linear", Some("create_issue"), false).await, 200);
        let (_, body) = get(&world, world.team.token(Role::Member), "/v1/preferences").await;
        assert_eq!(
            body["preferences"],
            json!([
                {"sourceId": "github", "actionId": null, "enabled": false},
                {"sourceId": "linear", "actionId": "create_issue", "enabled": false},
            ])
        );
        let (_, body) = get(&world, world.team.token(Role::Admin), "/v1/preferences").await;
        assert_eq!(body, json!({"preferences": []}));
        let long = "x".repeat(301);
        for (source, action) in
            [("", None), (long.as_str(), None), ("a/b", None), ("a\nb", None), ("a", Some(""))]
        {
            assert_eq!(
                prefer(&world, Role::Member, source, action, false).await,
                400,
                "{source:?} {action:?}"
            );
        }
        // What was disabled once and is gone now still counts, and can be enabled.
        let (app, owner) = (&world.gateway.app, (world.team.org, world.team.id(Role::Member)));
        for number in 0..498 {
            let gone = DisabledAction { source: format!("s{number}"), action: None };
            app.store.set_action_enabled(owner, gone, false, app.clock.now()).await.unwrap();
        }
        assert_eq!(prefer(&world, Role::Member, "sentry", None, false).await, 409, "one too many");
        assert_eq!(prefer(&world, Role::Member, "github", None, false).await, 200, "again");
        assert_eq!(prefer(&world, Role::Member, "s0", None, true).await, 200);
        assert_eq!(prefer(&world, Role::Member, "sentry", None, false).await, 200);
    }
}

#[tokio::test]
async fn nobody_disables_what_does_not_exist() {
    for world in worlds().await {
        let connector = format!("connector:{}", some_uuid());
        let unknown = [
            ("nosuch", None),
            ("docs", Some("search")),
            ("connector:docs", None),
            (connector.as_str(), None),
            ("db:orders", None),
            ("tools", Some("effect.raed")),
            ("linear", Some("create_isue")),
        ];
        for (source, action) in unknown {
            let refused = prefer(&world, Role::Member, source, action, false).await;
            assert_eq!(refused, 400, "{source} {action:?}");
        }
        let (_, body) = get(&world, world.team.token(Role::Member), "/v1/preferences").await;
        assert_eq!(body, json!({"preferences": []}));
    }
}

#[tokio::test]
async fn an_mcp_key_has_only_what_its_owner_has_enabled() {
    for world in worlds().await {
        let (_, key) = mcp_key(&world, Role::Member).await;
        let (_, other) = mcp_key(&world, Role::Admin).await;
        let waiting = call(&world, &key, &tool_of("effect.write"), json!({"note": "n"})).await;
        let id = waiting["result"]["structuredContent"]["invocationId"].as_str().unwrap().to_owned();
        assert_eq!(prefer(&world, Role::Member, "tools", None, false).await, 200);
        let offers = async |token: &str| {
            let listed = request(&world, token, &message("tools/list", &json!({}))).send().await.json();
            names(&listed["result"]).contains(&tool_of("effect.read").as_str())
        };
        assert_eq!((offers(&key).await, offers(&other).await), (false, true));
        let refused = call(&world, &key, &tool_of("effect.read"), json!({})).await;
        assert_eq!(text(&refused["result"]), "This integration is disabled by user preferences", "{refused}");
        let (status, body) = decide(&world, &id, "approve", world.team.token(Role::Owner)).await;
        assert_eq!((status, world.effects()), (409, 0), "{body}");
        let done = call(&world, &other, &tool_of("effect.read"), json!({})).await;
        assert_eq!((&done["result"]["isError"], world.effects()), (&json!(false), 1), "{done}");
    }
}
