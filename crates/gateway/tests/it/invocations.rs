//! What an invocation says about a denial, and the ledger events of attempts that never became invocations.

use proto::Role;
use proto::http::KeyScope;
use serde_json::{Value, json};

use crate::actions::{agent, invoke, worlds};
use crate::connectors::World as ConnectorWorld;
use crate::harness::{Setup, TestGateway};
use crate::mcp::{message, request, tool_of};
use crate::people::{api_key, key_with_scope, sandbox_token, session, some_uuid};

/// The last event of each attempt at this target: who, outcome, reason and correlation id.
async fn attempts(gateway: &TestGateway, owner: &str, target: &str) -> Vec<[String; 4]> {
    let found = gateway.get("/v1/audit/events?limit=1000").bearer(owner).send().await.json();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let of_target = |event: &&Value| event["target"]["name"] == target && event["action_type"] == "tool_call";
    let events = found["events"].as_array().unwrap().iter().filter(of_target);
    let shown = events.map(|event| {
        let actor = &event["actor"]["actor_id"];
        [actor, &event["outcome"], &event["outcome_reason"], &event["correlation_id"]].map(text)
    });
    shown.collect()
}

#[tokio::test]
async fn a_denial_says_whether_a_person_or_policy_denied() {
    let prohibited = |setup: Setup| {
        let directory = setup.directory().join("policy");
        std::fs::create_dir_all(&directory).unwrap();
        let rule = "  - {rule_id: none, reason: nothing outside, lanes: [\"actions.*\"], tools: [\"connector:*\"]}\n";
        let lanes = [include_str!("../../../../policy/lanes.yaml"), rule].concat();
        for (name, text) in
            [("lanes.yaml", lanes.as_str()), ("roles.yaml", include_str!("../../../../policy/roles.yaml"))]
        {
            std::fs::write(directory.join(name), text).unwrap();
        }
        setup.set("PROLIFERATE_POLICY_DIR", directory.to_str().unwrap())
    };
    let denied_reason = async |setup: Setup| {
        let world = ConnectorWorld::on(setup).await;
        let connector = world.add("docs").await.rsplit('/').next().unwrap().to_owned();
        let own = session(&world.gateway.app, world.team.org).await;
        let token = sandbox_token(&world.gateway.app, own).await;
        let call = json!({"integration": format!("connector:{connector}"), "action": "echo", "params": {"text": "x"}});
        let path = format!("/proliferate/{own}/actions/invoke");
        let answer = world.gateway.post(&path, &call).bearer(&token).send().await;
        if answer.status != 202 {
            return (answer.status, answer.json()["invocation"]["deniedReason"].clone());
        }
        let id = answer.json()["invocation"]["id"].as_str().unwrap().to_owned();
        let denied = world.ask("POST", &format!("/v1/invocations/{id}/deny"), &json!({})).await;
        (denied.status, denied.json()["invocation"]["deniedReason"].clone())
    };
    // Nobody has reviewed the definition, so a person is asked whatever the mode is.
    for setup in [Setup::sqlite(), Setup::postgres().await] {
        assert_eq!(denied_reason(setup).await, (200, json!("denied")));
    }
    assert_eq!(denied_reason(prohibited(Setup::sqlite())).await, (403, json!("policy")));
}

#[tokio::test]
async fn an_attempt_at_a_connector_that_is_down_is_recorded() {
    for setup in [Setup::sqlite(), Setup::postgres().await] {
        let world = ConnectorWorld::on(setup).await;
        let (path, owner) = (world.add("docs").await, world.team.token(Role::Owner));
        let source = format!("connector:{}", path.rsplit('/').next().unwrap());
        let own = session(&world.gateway.app, world.team.org).await;
        let token = sandbox_token(&world.gateway.app, own).await;
        let mcp = async |message: Value| {
            let call = world.gateway.post("/mcp", &message).bearer(&token);
            call.header("accept", "application/json, text/event-stream").send().await.json()
        };
        let listed = mcp(message("tools/list", &json!({}))).await;
        let names = listed["result"]["tools"].as_array().unwrap().iter();
        let name = names.map(|tool| tool["name"].clone()).find(|name| name != "get_invocation").unwrap();

        world.script.lock().down = true;
        // Another address, so that the tools are listed again.
        let elsewhere = json!({"url": format!("{}?v=2", world.url)});
        assert_eq!(world.ask("PATCH", &path, &elsewhere).await.status, 200);
        let call = json!({"integration": source, "action": "echo", "params": {"text": "x"}});
        let invoke = format!("/proliferate/{own}/actions/invoke");
        let refused = world.gateway.post(&invoke, &call).bearer(&token).send().await;
        assert_eq!(refused.status, 503, "{}", refused.text());
        let refused = attempts(&world.gateway, owner, "actions.invoke").await;
        let expected =
            [own.to_string(), "failure".into(), "The integration is not available".into(), String::new()];
        assert_eq!(refused, [expected]);

        let call = message("tools/call", &json!({"name": name, "arguments": {"text": "x"}}));
        let refused = mcp(call).await;
        assert_eq!(refused["result"]["isError"], true, "{refused}");
        let refused = attempts(&world.gateway, owner, "mcp").await;
        let problem = "The integration cannot be reached now; nothing was executed";
        assert_eq!(refused, [[own.to_string(), "failure".into(), problem.into(), String::new()]]);
    }
}

#[tokio::test]
async fn refused_approvals_and_denials_are_recorded_with_who_attempted_them() {
    for world in worlds().await {
        let (own, token) = agent(&world).await;
        let (status, body) = invoke(&world, &token, own, "effect.write", json!({"note": "hello"})).await;
        assert_eq!(status, 202, "{body}");
        let id = body["invocation"]["id"].as_str().unwrap();
        let (owner, member) = (world.team.token(Role::Owner), world.team.token(Role::Member));
        let of_session = format!("/proliferate/{own}/actions/invocations/{id}");
        let of_org = format!("/v1/invocations/{id}");
        let unknown = some_uuid().to_string();
        let needs_role = "Admin or owner role required for action approvals";
        let id_of = |role: Role| world.team.id(role).to_string();
        let mut expected = Vec::new();
        for (path, token, body, status, actor, reason) in [
            (of_session.as_str(), member, "", 403, id_of(Role::Member), needs_role),
            (&of_session, &world.token, "", 403, "worker".to_owned(), needs_role),
            (&of_session, &token, "", 403, own.to_string(), needs_role),
            (&of_org, member, "", 403, id_of(Role::Member), needs_role),
            (&of_org, &world.token, "", 403, "worker".to_owned(), needs_role),
            (&of_org, owner, "{\"params\":", 400, id_of(Role::Owner), "The body is not valid JSON"),
            (&of_org, owner, "{\"params\":{\"note\":7}}", 400, id_of(Role::Owner), "note must be a text"),
        ] {
            let call =
                world.gateway.call("POST", &format!("{path}/approve")).bearer(token).body(body.to_owned());
            let answer = call.send().await;
            assert_eq!(answer.status, status, "{path} {body}: {}", answer.text());
            let outcome = if status == 403 { "deny" } else { "failure" };
            expected.push([actor, outcome.to_owned(), reason.to_owned(), id.to_owned()]);
        }
        let nowhere = format!("/v1/invocations/{unknown}/approve");
        assert_eq!(world.gateway.post(&nowhere, &json!({})).bearer(owner).status().await, 404);
        expected.push([id_of(Role::Owner), "failure".into(), "Invocation not found".into(), unknown]);
        assert_eq!(world.effects(), 0);
        assert_eq!(
            world.gateway.post(&format!("{of_org}/deny"), &json!({})).bearer(owner).status().await,
            200
        );
        assert_eq!(
            world.gateway.post(&format!("{of_org}/approve"), &json!({})).bearer(owner).status().await,
            409
        );
        let decided = "Cannot approve invocation in status: denied".to_owned();
        expected.push([id_of(Role::Owner), "failure".into(), decided, id.to_owned()]);
        let found = attempts(&world.gateway, owner, "actions.approve").await;
        assert_eq!(found.len(), expected.len(), "{found:#?}");
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!((&found[1], &found[3]), (&expected[1], &expected[3]), "{found:?}");
            assert!(found[2].contains(&expected[2]), "{found:?}");
            assert_eq!(found[0], expected[0], "{found:?}");
        }
        assert!(attempts(&world.gateway, owner, "actions.deny").await.is_empty(), "that one was no refusal");
        for path in [&of_session, &of_org] {
            assert_eq!(
                world.gateway.post(&format!("{path}/deny"), &json!({})).bearer(owner).status().await,
                409
            );
        }
        assert_eq!(attempts(&world.gateway, owner, "actions.deny").await.len(), 2);
    }
}

#[tokio::test]
async fn a_key_that_tries_to_decide_about_a_keys_request_is_recorded() {
    for world in worlds().await {
        let (app, person) = (&world.gateway.app, world.team.person(Role::Owner));
        let (_, requester) = key_with_scope(app, person, KeyScope::Mcp).await;
        let (_, full) = api_key(app, person).await;
        let call = json!({"name": tool_of("effect.write"), "arguments": {"note": "hello"}});
        let waiting = request(&world, &requester, &message("tools/call", &call)).send().await.json();
        let id = waiting["result"]["structuredContent"]["invocationId"].as_str().unwrap();
        let path = format!("/v1/invocations/{id}/approve");
        assert_eq!(world.gateway.post(&path, &json!({})).bearer(&full).status().await, 403);
        let [refused] = &attempts(&world.gateway, &person.token, "actions.approve").await[..] else {
            panic!()
        };
        let reason = "A request that was made with an API key needs a person's own login";
        assert_eq!(*refused, [person.id.to_string(), "deny".to_owned(), reason.to_owned(), id.to_owned()]);
    }
}

#[tokio::test]
async fn malformed_messages_of_mcp_clients_are_recorded() {
    for world in worlds().await {
        let owner = world.team.token(Role::Owner);
        let (key, token) =
            key_with_scope(&world.gateway.app, world.team.person(Role::Member), KeyScope::Mcp).await;
        let well_formed = [
            message("ping", &json!({})),
            message("tools/list", &json!({})),
            message("tools/call", &json!({"name": tool_of("effect.read"), "arguments": {}})),
            json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        ];
        for message in well_formed {
            let answer = request(&world, &token, &message).send().await;
            assert!(answer.status < 300, "{message}: {}", answer.text());
        }
        assert_eq!(attempts(&world.gateway, owner, "mcp").await, Vec::<[String; 4]>::new());
        let malformed = [
            "x".to_owned(),
            "[]".to_owned(),
            "{}".to_owned(),
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"id\":2,\"method\":\"ping\"}".to_owned(),
            message("tools/call", &json!({"name": 7})).to_string(),
            message("tools/call", &json!({})).to_string(),
            message("tools/call", &json!({"name": tool_of("effect.read"), "arguments": [1]})).to_string(),
        ];
        for (number, body) in malformed.into_iter().enumerate() {
            request(&world, &token, &Value::Null).body(body.clone()).send().await;
            let recorded = attempts(&world.gateway, owner, "mcp").await;
            assert_eq!(recorded.len(), number + 1, "{body}: {recorded:?}");
            let [actor, outcome, ..] = &recorded[number];
            assert!(actor.contains(&key.to_string()) && outcome == "failure", "{body}: {actor} {outcome}");
        }
        assert_eq!(world.effects(), 1, "the well-formed call");
    }
}

#[tokio::test]
async fn callers_who_may_not_act_on_actions_are_recorded_wherever_they_try() {
    for world in worlds().await {
        let (own, sandbox) = agent(&world).await;
        let app = &world.gateway.app;
        let (key, mcp_key) = key_with_scope(app, world.team.person(Role::Owner), KeyScope::Mcp).await;
        let (_, full_key) = api_key(app, world.team.person(Role::Admin)).await;
        let (member, admin) = (world.team.token(Role::Member), world.team.token(Role::Admin));
        let id_of = |role: Role| world.team.id(role).to_string();
        let owner = world.team.token(Role::Owner);
        let denied =
            |actor: String, reason: &str| [actor, "deny".to_owned(), reason.to_owned(), String::new()];

        let scope = "This API key has the scope mcp, which opens POST /mcp only";
        let id = some_uuid();
        let routes = [
            ("POST", format!("/v1/invocations/{id}/approve"), "/v1/invocations/{invocationId}/approve"),
            ("POST", format!("/v1/invocations/{id}/deny"), "/v1/invocations/{invocationId}/deny"),
            ("POST", format!("/proliferate/{own}/actions/invoke"), "/proliferate/{id}/actions/invoke"),
            ("PUT", "/v1/action-modes".to_owned(), "/v1/action-modes"),
            ("GET", "/v1/secrets".to_owned(), "/v1/secrets"),
        ];
        for (method, path, _) in &routes {
            let call = world.gateway.call(method, path).bearer(&mcp_key);
            let call = if *method == "GET" { call } else { call.json(&json!({})) };
            assert_eq!(call.status().await, 403, "{path}");
        }
        let found = world.gateway.get("/v1/audit/events?limit=1000").bearer(owner).send().await.json();
        let events = found["events"].as_array().unwrap().iter();
        let tried =
            events.filter(|event| event["target"]["name"] == "api" && event["action_type"] == "tool_call");
        let tried: Vec<_> = tried.map(|event| event["target"]["operation"].as_str().unwrap()).collect();
        assert_eq!(tried, routes.each_ref().map(|(_, _, route)| *route));
        let expected = denied(format!("key:{key}"), scope);
        assert_eq!(attempts(&world.gateway, owner, "api").await, vec![expected; routes.len()]);

        let needs = "MCP clients need an API key with the scope mcp: `proliferate keys create --name NAME --scope mcp`";
        let list = message("tools/list", &json!({}));
        let mut expected = Vec::new();
        for (token, actor) in [
            (member, id_of(Role::Member)),
            (full_key.as_str(), id_of(Role::Admin)),
            (&world.token, "worker".to_owned()),
        ] {
            assert_eq!(request(&world, token, &list).status().await, 403, "{actor}");
            expected.push(denied(actor, needs));
        }
        for (token, actor) in [(&sandbox, own.to_string()), (&mcp_key, format!("key:{key}"))] {
            let call = request(&world, token, &list).header("origin", "https://elsewhere.test");
            assert_eq!(call.status().await, 403, "{actor}");
            expected.push(denied(actor, "This origin may not call the gateway"));
        }
        assert_eq!(attempts(&world.gateway, owner, "mcp").await, expected);

        let admins = "Only admins and owners may do this";
        let automation = format!("/v1/automations/{id}/action-modes");
        let mut expected = Vec::new();
        for (method, path, token, actor) in [
            ("PUT", "/v1/action-modes", member, id_of(Role::Member)),
            ("DELETE", "/v1/action-modes/tools:effect.write", member, id_of(Role::Member)),
            ("PUT", &automation, member, id_of(Role::Member)),
            ("DELETE", &format!("{automation}/tools:effect.write"), member, id_of(Role::Member)),
            ("PUT", "/v1/action-modes", &sandbox, own.to_string()),
            ("PUT", "/v1/action-modes", &world.token, "worker".to_owned()),
        ] {
            let call = world.gateway.call(method, path).bearer(token).json(&json!({}));
            assert_eq!(call.status().await, 403, "{path}");
            expected.push(denied(actor, admins));
        }
        assert_eq!(attempts(&world.gateway, owner, "actions.modes").await, expected);
        // A request that only looks is no attempt, and neither is a mistake of somebody who may set modes.
        assert_eq!(world.gateway.get("/v1/action-modes").bearer(member).status().await, 200);
        assert_eq!(world.gateway.get(&automation).bearer(&sandbox).status().await, 403);
        let call = world.gateway.call("PUT", "/v1/action-modes").bearer(admin).json(&json!({}));
        assert_eq!(call.status().await, 400);
        assert_eq!(attempts(&world.gateway, owner, "actions.modes").await, expected);
    }
}
