//! The approval of invocations beyond a single yes: two people, edited arguments, and modes that are set with an
//! approval.

use std::task::Poll;
use std::time::Duration;

use proto::{Role, SessionId};
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};

use crate::actions::{agent, get, invoke, worlds};
use crate::harness::{Setup, within};
use crate::people::{OrgOf3, api_key, person, service_token};
use crate::world::World;

const MODE_KEY: &str = "tools:effect.write";

async fn set(world: &World, mode: &Value, invocation: Option<&str>) -> (u16, Value) {
    let mut body = json!({"key": MODE_KEY, "mode": mode});
    if let Some(id) = invocation {
        body["invocationId"] = json!(id);
    }
    let call = world.gateway.call("PUT", "/v1/action-modes").json(&body);
    let answer = call.bearer(world.team.token(Role::Admin)).send().await;
    (answer.status, answer.json())
}

async fn two_person(world: &World) {
    let mode = json!({"else": "require_approval", "twoPerson": true});
    assert_eq!(set(world, &mode, None).await.0, 200);
}

/// Requests a write, which waits, and returns the id of its invocation.
async fn request(world: &World, token: &str, session: SessionId) -> String {
    let (status, body) = invoke(world, token, session, "effect.write", json!({"note": "hello"})).await;
    assert_eq!(status, 202, "{body}");
    body["invocation"]["id"].as_str().unwrap().to_owned()
}

async fn approve(world: &World, token: &str, id: &str, body: &Value) -> (u16, Value) {
    let path = format!("/v1/invocations/{id}/approve");
    let answer = world.gateway.post(&path, body).bearer(token).send().await;
    (answer.status, answer.json())
}

async fn run_events(world: &World, id: &str) -> Vec<Value> {
    world.events(&format!("call_{}", id.replace('-', ""))).await
}

async fn verify(world: &World) {
    gate::verify_database(&world.gateway.app.store, Vec::new(), None, &|_| ()).await.unwrap();
}

#[tokio::test]
async fn two_different_people_approve_an_action_with_the_rule() {
    for world in worlds().await {
        let (own, token) = agent(&world).await;
        two_person(&world).await;
        let id = request(&world, &token, own).await;
        let (owner, admin) = (world.team.token(Role::Owner), world.team.token(Role::Admin));
        let (status, body) = approve(&world, owner, &id, &json!({})).await;
        assert_eq!((status, world.effects()), (202, 0), "{body}");
        assert!(body["message"].as_str().unwrap().contains("another owner or admin must approve"), "{body}");
        let (_, body) = get(&world, owner, &format!("/v1/invocations/{id}")).await;
        let waiting = &body["invocation"];
        assert_eq!((&waiting["status"], &waiting["twoPerson"]), (&json!("pending"), &json!(true)), "{body}");
        assert_eq!(waiting["firstApprovedBy"], json!(world.team.id(Role::Owner)), "{body}");
        for (who, can) in [(owner, false), (admin, true)] {
            let (_, inbox) = get(&world, who, "/v1/inbox").await;
            let entry = &inbox["entries"][0];
            assert_eq!((&entry["canDecide"], &entry["canApprove"]), (&json!(true), &json!(can)), "{inbox}");
        }
        let (status, body) = approve(&world, owner, &id, &json!({})).await;
        assert_eq!((status, world.effects()), (409, 0), "the same person");
        assert!(body["error"].as_str().unwrap().starts_with("You have approved it already"), "{body}");
        let lanes = include_str!("../../../../policy/lanes.yaml");
        let world = world.with_files(lanes, include_str!("../../../../policy/roles.yaml")).await;
        let (status, body) = approve(&world, world.team.token(Role::Admin), &id, &json!({})).await;
        assert_eq!((status, world.effects()), (200, 1), "after a restart: {body}");
        assert_eq!(body["invocation"]["approvedBy"], json!(world.team.id(Role::Admin)));
        let (_, found) = get(&world, world.team.token(Role::Owner), "/v1/audit/events?limit=100").await;
        let all = found["events"].as_array().unwrap();
        let first =
            all.iter().find(|it| it["outcome_reason"] == "approved by the first of two people").unwrap();
        assert_eq!(first["actor"]["actor_id"], json!(world.team.id(Role::Owner)), "{first}");
        let decisions = run_events(&world, &id).await;
        let decision = decisions.iter().find(|event| event["action_type"] == "authz_decision").unwrap();
        let notes = decision["notes"].as_str().unwrap();
        assert!(notes.contains(&format!("first approved by {}", world.team.id(Role::Owner))), "{notes}");
        verify(&world).await;
    }
}

#[tokio::test]
async fn of_racing_approvers_two_different_people_execute_the_action_once() {
    for world in worlds().await {
        let (own, token) = agent(&world).await;
        two_person(&world).await;
        let id = request(&world, &token, own).await;
        let approvers = [Role::Owner, Role::Admin].map(|role| world.team.token(role));
        let all = (0..40).map(|number| {
            let (world, id) = (&world, &id);
            async move { approve(world, approvers[number % 2], id, &json!({})).await.0 }
        });
        let answers = futures_util::future::join_all(all).await;
        let count = |wanted: u16| answers.iter().filter(|status| **status == wanted).count();
        assert_eq!((count(202), count(200), count(409)), (1, 1, 38), "{answers:?}");
        assert_eq!(world.effects(), 1);
        // One person alone never does it.
        let id = request(&world, &token, own).await;
        let alone = (0..20).map(|_| async { approve(&world, approvers[0], &id, &json!({})).await });
        let answers = futures_util::future::join_all(alone).await;
        assert!(answers.iter().all(|(status, _)| *status != 200), "{answers:?}");
        assert_eq!(world.effects(), 1);
        verify(&world).await;
    }
}

/// Drives a request until it was polled this many times, and drops it then as if its client had disconnected. Returns
/// whether it ended before.
async fn disconnect_after(mut polls: usize, request: impl Future<Output = u16>) -> bool {
    let mut request = std::pin::pin!(request);
    std::future::poll_fn(|cx| {
        if polls == 0 {
            return Poll::Ready(false);
        }
        polls -= 1;
        request.as_mut().poll(cx).map(|_| true)
    })
    .await
}

#[tokio::test]
async fn an_approval_goes_on_when_its_approver_disconnects() {
    for world in worlds().await {
        let (own, token) = agent(&world).await;
        let owner = world.team.token(Role::Owner);
        for polls in 0.. {
            let id = request(&world, &token, own).await;
            let path = format!("/v1/invocations/{id}/approve");
            let call = world.gateway.post(&path, &json!({})).bearer(owner).status();
            let ended = disconnect_after(polls, call).await;
            // Whoever approves it again does so first, or learns that somebody has decided.
            let (status, body) = approve(&world, owner, &id, &json!({})).await;
            assert!(matches!(status, 200 | 409), "{polls}: {body}");
            let completed = async {
                while get(&world, owner, &format!("/v1/invocations/{id}")).await.1["invocation"]["status"]
                    != "completed"
                {
                    tokio::task::yield_now().await;
                }
            };
            within(completed).await;
            assert_eq!(world.effects(), polls + 1, "each is executed once");
            if ended {
                break;
            }
        }
        verify(&world).await;
    }
}

#[tokio::test]
async fn neither_the_sessions_creator_nor_a_demoted_person_counts_as_one_of_two() {
    // The test changes rows, which the harness can do on PostgreSQL only.
    let world = World::on(Setup::postgres().await).await;
    let (own, token) = agent(&world).await;
    two_person(&world).await;
    let (owner, admin) = (world.team.token(Role::Owner), world.team.token(Role::Admin));
    let creator = world.team.id(Role::Admin);
    world.gateway.sql(&format!("UPDATE sessions SET created_by = '{creator}' WHERE id = '{own}'")).await;
    let id = request(&world, &token, own).await;
    let (status, body) = approve(&world, admin, &id, &json!({})).await;
    assert_eq!(status, 403, "{body}");
    assert!(body["error"].as_str().unwrap().contains("requested on your behalf"), "{body}");
    let second = person(&world.gateway.app, world.team.org, Role::Admin).await;
    assert_eq!(approve(&world, &second.token, &id, &json!({})).await.0, 202);
    let demote = format!("UPDATE members SET role = 'member' WHERE user_id = '{}'", second.id);
    world.gateway.sql(&demote).await;
    assert_eq!(approve(&world, owner, &id, &json!({})).await.0, 202, "the owner is the first one now");
    assert_eq!(approve(&world, owner, &id, &json!({})).await.0, 409);
    assert_eq!(approve(&world, admin, &id, &json!({})).await.0, 403);
    assert_eq!(world.effects(), 0);
    // Without the rule the creator approves as any admin. A request that was made under it keeps it.
    assert_eq!(set(&world, &json!("require_approval"), None).await.0, 200);
    assert_eq!(approve(&world, admin, &id, &json!({})).await.0, 403);
    let id = request(&world, &token, own).await;
    assert_eq!((approve(&world, admin, &id, &json!({})).await.0, world.effects()), (200, 1));
    // The rule counts from the moment it is set.
    let id = request(&world, &token, own).await;
    two_person(&world).await;
    assert_eq!((approve(&world, owner, &id, &json!({})).await.0, world.effects()), (202, 1));
}

#[tokio::test]
async fn no_api_key_decides_about_a_request_that_was_made_with_an_api_key() {
    // The test changes rows, which the harness can do on PostgreSQL only.
    let world = World::on(Setup::postgres().await).await;
    let (own, token) = agent(&world).await;
    let owner = person(&world.gateway.app, world.team.org, Role::Owner).await;
    let (_, key) = api_key(&world.gateway.app, &owner).await;
    let id = request(&world, &token, own).await;
    world.gateway.sql("UPDATE invocations SET key_id = id").await;
    for act in ["approve", "deny"] {
        for path in ["/v1/invocations", &format!("/proliferate/{own}/actions/invocations")] {
            let call = world.gateway.post(&format!("{path}/{id}/{act}"), &json!({}));
            assert_eq!(call.bearer(&key).status().await, 403, "{act} {path}");
        }
    }
    world.gateway.sql("UPDATE invocations SET key_id = NULL").await;
    assert_eq!(approve(&world, &key, &id, &json!({})).await.0, 200, "a request of a session");
}

#[tokio::test]
async fn services_and_sandboxes_look_up_an_invocation_of_theirs_by_its_id() {
    for world in worlds().await {
        let ((own, token), (_, other)) = (agent(&world).await, agent(&world).await);
        let id = request(&world, &token, own).await;
        let (org, elsewhere) = (world.team.org, OrgOf3::new(&world.gateway.app).await);
        let unbound = service_token(&world.gateway.app, None);
        let named = format!("?organizationId={org}");
        for (who, query, expected) in [
            (world.token.as_str(), "", 200),
            (&service_token(&world.gateway.app, Some(elsewhere.org)), "", 404),
            (&unbound, &named, 200),
            (&unbound, "", 401),
            (&token, "", 200),
            (&other, "", 404),
        ] {
            let (status, body) = get(&world, who, &format!("/v1/invocations/{id}{query}")).await;
            assert_eq!(status, expected, "{query} {body}");
        }
    }
}

#[tokio::test]
async fn an_approval_needs_no_body() {
    for world in worlds().await {
        let (own, token) = agent(&world).await;
        let (owner, id) = (world.team.token(Role::Owner), request(&world, &token, own).await);
        let call = world.gateway.call("POST", &format!("/v1/invocations/{id}/approve"));
        let answer = call.bearer(owner).send().await;
        assert_eq!((answer.status, world.effects()), (200, 1), "{}", answer.text());
    }
}

/// With the unknown field ignored, the request would be executed as nobody wanted it.
#[tokio::test]
async fn a_misspelled_approval_or_denial_decides_nothing() {
    for world in worlds().await {
        let (own, token) = agent(&world).await;
        let (owner, id) = (world.team.token(Role::Owner), request(&world, &token, own).await);
        let edit = json!({"note": "edited"});
        for path in ["/v1".to_owned(), format!("/proliferate/{own}/actions")] {
            let decide = async |act: &str, body: &Value| {
                let call = world.gateway.post(&format!("{path}/invocations/{id}/{act}"), body);
                let answer = call.bearer(owner).send().await;
                (answer.status, answer.text())
            };
            for (act, misspelled, field) in [
                ("approve", json!({"request_hash": "sha256:wrong", "params": edit}), "request_hash"),
                ("approve", json!({"parameters": edit}), "parameters"),
                ("deny", json!({"why": "no"}), "why"),
            ] {
                let (status, said) = decide(act, &misspelled).await;
                assert!(status == 400 && said.contains(field), "{path} {act}: {status} {said}");
            }
            let (_, shown) = get(&world, owner, &format!("/v1/invocations/{id}")).await;
            assert_eq!((&shown["invocation"]["status"], world.effects()), (&json!("pending"), 0));
        }
        // What older web clients send beside is for one call too.
        let older = json!({"mode": "grant", "grant": {"scope": "session", "maxCalls": 5}});
        let call =
            world.gateway.post(&format!("/proliferate/{own}/actions/invocations/{id}/approve"), &older);
        let answer = call.bearer(owner).send().await;
        assert_eq!((answer.status, world.effects()), (200, 1), "{}", answer.text());
    }
}

#[tokio::test]
async fn edited_arguments_are_checked_recorded_and_executed() {
    for world in worlds().await {
        let (own, token) = agent(&world).await;
        let (owner, id) = (world.team.token(Role::Owner), request(&world, &token, own).await);
        let (status, body) = approve(&world, owner, &id, &json!({"params": {"note": 7, "more": 1}})).await;
        let said = body["error"].as_str().unwrap();
        assert!(
            status == 400 && said.contains("note must be a text") && said.contains("other fields"),
            "{said}"
        );
        let rule = json!({"when": {"properties": {"note": {"const": "all"}}}, "mode": "deny"});
        let mode = json!({"else": "require_approval", "rules": [rule]});
        assert_eq!(set(&world, &mode, None).await.0, 200);
        let (status, body) = approve(&world, owner, &id, &json!({"params": {"note": "all"}})).await;
        assert_eq!((status, world.effects()), (409, 0), "judged with the new arguments: {body}");
        assert_eq!(approve(&world, owner, &id, &json!({"params": [1]})).await.0, 400);
        let (status, body) = approve(&world, owner, &id, &json!({"params": {"note": "edited"}})).await;
        assert_eq!((status, world.effects()), (200, 1), "{body}");
        let done = &body["invocation"];
        assert_eq!((&done["params"], &done["edited"]), (&json!({"note": "edited"}), &json!(true)), "{done}");
        let sent = world.effects.all()[0].clone();
        assert!(format!("{sent:?}").contains("edited"), "{sent:?}");
        let events = run_events(&world, &id).await;
        let decision = events.iter().find(|event| event["action_type"] == "authz_decision").unwrap();
        let (notes, hash) =
            (decision["notes"].as_str().unwrap(), decision["request_hash_sha256"].as_str().unwrap());
        assert!(notes.contains(&format!("request sha256 {hash} is now ")), "{notes}");
        verify(&world).await;
    }
}

#[tokio::test]
async fn an_edit_needs_the_approval_of_two_people_for_the_new_arguments() {
    for world in worlds().await {
        let (own, token) = agent(&world).await;
        two_person(&world).await;
        let (owner, admin) = (world.team.token(Role::Owner), world.team.token(Role::Admin));
        let id = request(&world, &token, own).await;
        assert_eq!(approve(&world, owner, &id, &json!({})).await.0, 202);
        let (status, body) = approve(&world, admin, &id, &json!({"params": {"note": "edited"}})).await;
        assert_eq!((status, world.effects()), (202, 0), "the owner has not seen them: {body}");
        let waiting = &body["invocation"];
        assert_eq!(waiting["firstApprovedBy"], json!(world.team.id(Role::Admin)), "{body}");
        assert_eq!(waiting["params"], json!({"note": "edited"}), "{body}");
        let edited = json!({"requestHash": waiting["requestHash"]});
        assert_eq!(approve(&world, admin, &id, &edited).await.0, 409);
        let (_, inbox) = get(&world, owner, "/v1/inbox").await;
        assert_eq!(inbox["entries"][0]["requestHash"], edited["requestHash"], "{inbox}");
        let (status, body) = approve(&world, owner, &id, &edited).await;
        assert_eq!((status, world.effects()), (200, 1), "{body}");
        assert_eq!(body["invocation"]["params"], json!({"note": "edited"}));
        assert_eq!(body["invocation"]["requestHash"], Value::Null, "it waits no more");
        verify(&world).await;
    }
}

#[tokio::test]
async fn an_approval_counts_only_for_the_parameters_that_its_approver_has_seen() {
    for world in worlds().await {
        let (own, token) = agent(&world).await;
        two_person(&world).await;
        let (owner, admin) = (world.team.token(Role::Owner), world.team.token(Role::Admin));
        let id = request(&world, &token, own).await;
        let (_, shown) = get(&world, owner, &format!("/v1/invocations/{id}")).await;
        let seen = json!({"requestHash": shown["invocation"]["requestHash"]});
        assert_eq!(seen["requestHash"].as_str().unwrap().len(), 64, "{shown}");
        let unknown = json!({"requestHash": "a".repeat(64)});
        assert_eq!(approve(&world, owner, &id, &unknown).await.0, 409);
        let edit = json!({"params": {"note": "edited"}, "requestHash": seen["requestHash"]});
        assert_eq!(approve(&world, admin, &id, &edit).await.0, 202);
        let overwrite = json!({"params": {"note": "again"}, "requestHash": seen["requestHash"]});
        for outdated in [&json!({}), &seen, &overwrite, &json!({"params": {"note": "again"}})] {
            let (status, body) = approve(&world, owner, &id, outdated).await;
            assert_eq!((status, world.effects()), (409, 0), "{outdated}: {body}");
            assert!(body["error"].as_str().unwrap().contains("look at them"), "{body}");
        }
        let (_, shown) = get(&world, owner, &format!("/v1/invocations/{id}")).await;
        assert_eq!(shown["invocation"]["params"], json!({"note": "edited"}), "{shown}");
        let seen = json!({"requestHash": shown["invocation"]["requestHash"]});
        assert_eq!((approve(&world, owner, &id, &seen).await.0, world.effects()), (200, 1));
    }
}

#[tokio::test]
async fn an_edited_request_is_bound_to_its_new_arguments() {
    // The test changes rows, which the harness can do on PostgreSQL only.
    let world = World::on(Setup::postgres().await).await;
    let (own, token) = agent(&world).await;
    two_person(&world).await;
    let (owner, admin) = (world.team.token(Role::Owner), world.team.token(Role::Admin));
    let id = request(&world, &token, own).await;
    let (status, body) = approve(&world, admin, &id, &json!({"params": {"note": "edited"}})).await;
    assert_eq!(status, 202, "{body}");
    let seen = json!({"requestHash": body["invocation"]["requestHash"]});
    let (app, org, named) = (&world.gateway.app, world.team.org, id.parse().unwrap());
    let sealed = app.store.invocation(org, named).await.unwrap().unwrap().request.unwrap();
    let recorded = app.vault.unseal_request(org, named, &sealed).unwrap();
    let stored = |request: &Value| format!("UPDATE invocations SET request = '{request}'::jsonb");
    for (was, is) in [("edited", "forged"), ("\"actions.write\"", "\"actions.read\""), ("case_id", "case_xx")]
    {
        // As somebody could who has the vault's key.
        let changed = recorded.expose_secret().replace(was, is);
        assert_ne!(changed, recorded.expose_secret(), "{was}");
        world.gateway.sql(&stored(&app.vault.seal_request(org, named, &changed).unwrap())).await;
        let (status, body) = approve(&world, owner, &id, &seen).await;
        assert_eq!((status, world.effects()), (409, 0), "{was}: {body}");
    }
    world.gateway.sql(&stored(&sealed)).await;
    world.gateway.sql("CREATE TABLE kept AS SELECT edited_hash FROM invocations").await;
    for hash in ["NULL".to_owned(), format!("'{}'", "a".repeat(64))] {
        world.gateway.sql(&format!("UPDATE invocations SET edited_hash = {hash}")).await;
        assert_eq!((approve(&world, owner, &id, &seen).await.0, world.effects()), (409, 0), "{hash}");
    }
    world.gateway.sql("UPDATE invocations SET edited_hash = (SELECT edited_hash FROM kept)").await;
    assert_eq!((approve(&world, owner, &id, &seen).await.0, world.effects()), (200, 1));
}

#[tokio::test]
async fn a_mode_names_the_approval_that_it_was_set_with() {
    for world in worlds().await {
        let (own, token) = agent(&world).await;
        let (owner, id) = (world.team.token(Role::Owner), request(&world, &token, own).await);
        let other = request(&world, &token, own).await;
        let allow = json!("allow");
        assert_eq!(set(&world, &allow, Some(&id)).await.0, 409, "it is not approved yet");
        assert_eq!(approve(&world, owner, &id, &json!({})).await.0, 200);
        assert_eq!(set(&world, &allow, Some(&uuid::Uuid::nil().to_string())).await.0, 404);
        let body = json!({"key": "tools:effect.drop", "mode": "allow", "invocationId": id});
        let call = world.gateway.call("PUT", "/v1/action-modes").json(&body);
        assert_eq!(call.bearer(world.team.token(Role::Admin)).status().await, 409, "another action");
        assert_eq!(set(&world, &allow, Some(&id)).await.0, 200);
        let (_, listed) = get(&world, world.team.token(Role::Member), "/v1/action-modes").await;
        let entry = &listed["modes"][0];
        assert_eq!((&entry["invocationId"], &entry["mode"]), (&json!(id), &allow), "{listed}");
        assert_eq!(entry["changedBy"], json!(world.team.id(Role::Admin)));
        assert_eq!(invoke(&world, &token, own, "effect.write", json!({})).await.0, 200);
        let deny = format!("/v1/invocations/{other}/deny");
        assert_eq!(world.gateway.post(&deny, &json!({})).bearer(owner).status().await, 200);
        assert_eq!(set(&world, &allow, Some(&other)).await.0, 409, "it was denied");
        verify(&world).await;
    }
}

#[tokio::test]
async fn a_request_can_be_denied_without_a_reason_while_secrets_cannot_be_read() {
    let clock = clock::Clock::manual(clock::Clock::system().now());
    let world = World::on(Setup::postgres().await.clock(&clock)).await;
    let (own, token) = agent(&world).await;
    let (status, body) = invoke(&world, &token, own, "effect.write", json!({})).await;
    assert_eq!(status, 202, "{body}");
    let path = format!("/v1/invocations/{}/deny", body["invocation"]["id"].as_str().unwrap());
    let deny = async |body: Value| {
        let call = world.gateway.post(&path, &body).bearer(world.team.token(Role::Owner));
        call.status().await
    };
    world.gateway.sql("ALTER TABLE secrets RENAME TO secrets_away").await;
    // What was read before is used for a second.
    clock.advance(Duration::from_secs(2));
    assert_eq!(deny(json!({"reason": "it may contain a secret"})).await, 503);
    assert_eq!(deny(json!({})).await, 200);
}

#[tokio::test]
async fn a_session_invokes_sixty_actions_a_minute_at_most() {
    let clock = clock::Clock::manual(clock::Clock::system().now());
    for setup in [Setup::sqlite(), Setup::postgres().await] {
        let world = World::on(setup.clock(&clock)).await;
        let ((own, token), (other, others)) = (agent(&world).await, agent(&world).await);
        let read = async || {
            let body = json!({"integration": "tools", "action": "effect.read", "params": {}});
            let path = format!("/proliferate/{own}/actions/invoke");
            world.gateway.post(&path, &body).bearer(&token).send().await
        };
        for _ in 0..60 {
            assert_eq!(read().await.status, 200);
        }
        clock.advance(Duration::from_secs(59));
        let refused = read().await;
        assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")), "{}", refused.text());
        let body = refused.json();
        assert_eq!(body["error"], "Too many action invocations. Try again later.", "{body}");
        let reason = "This session has used its share of action invocations; try again in 1 s";
        assert_eq!((&body["code"], &body["details"]["reason"]), (&json!("rate_limited"), &json!(reason)));
        assert_eq!(world.effects(), 60);
        assert_eq!(invoke(&world, &others, other, "effect.read", json!({})).await.0, 200, "another session");
        clock.advance(Duration::from_secs(1));
        for _ in 0..60 {
            assert_eq!(read().await.status, 200, "of the next minute");
        }
        assert_eq!(read().await.status, 429);
    }
}
