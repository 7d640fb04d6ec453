//! The stream of changes: ids of what has changed, for those who may read it, until their credential ends.

use proto::{Role, SessionId, SessionType};
use serde_json::{Value, json};
use store::NewSession;

use crate::actions::{agent, invoke};
use crate::harness::{Running, Setup, client, within};
use crate::inbox::{UNANSWERED, ask, run_after};
use crate::people::{OrgOf3, api_key, sandbox_token, service_token, some_uuid};
use crate::world::World;

/// An open stream.
struct Stream {
    answer: reqwest::Response,
    received: String,
}

impl Stream {
    async fn open(running: &Running, token: &str) -> Self {
        let request = client().get(running.url("/v1/changes")).bearer_auth(token);
        let answer = within(request.send()).await.unwrap();
        assert_eq!(answer.status().as_u16(), 200);
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        let mut stream = Self { answer, received: String::new() };
        assert_eq!(stream.next().await.unwrap().0, "ready");
        stream
    }

    /// The name and the data of the next event; `None` at the end.
    async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((event, rest)) = self.received.split_once("\n\n") {
                let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name));
                let parsed = field("event: ").zip(field("data: "));
                let parsed =
                    parsed.map(|(name, data)| (name.to_owned(), serde_json::from_str(data).unwrap()));
                let rest = rest.to_owned();
                self.received = rest;
                if parsed.is_some() {
                    return parsed;
                }
                continue;
            }
            let chunk = within(self.answer.chunk()).await.ok().flatten()?;
            self.received.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    /// Reads changes until one contains the text `named`.
    async fn until(&mut self, named: &str) -> Value {
        loop {
            let (name, data) = self.next().await.unwrap();
            assert_eq!(name, "change");
            assert!(!data.to_string().contains("canary"), "{data}");
            if data.to_string().contains(named) {
                return data;
            }
        }
    }
}

async fn new_session(app: &gateway::AppState, org: proto::OrgId) -> SessionId {
    let id = SessionId::from(some_uuid());
    let new = NewSession::new(id, org, SessionType::Coding, "local", app.clock.now());
    app.store.create_session(new).await.unwrap();
    id
}

/// Lets two people approve the action that the tests request.
async fn needs_two_people(world: &World) {
    let rule = json!({"else": "require_approval", "twoPerson": true});
    let change = json!({"key": "tools:effect.open", "mode": rule});
    let set = world.gateway.call("PUT", "/v1/action-modes").bearer(world.team.token(Role::Owner));
    assert_eq!(set.json(&change).status().await, 200);
}

/// Requests an action as the agent of a session. Returns the answer's body.
async fn request_action(url: &str, session: SessionId, token: &str) -> String {
    let call = json!({"integration": "tools", "action": "effect.open", "params": {"a": "canary"}});
    let request = client().post(format!("{url}/proliferate/{session}/actions/invoke")).bearer_auth(token);
    within(request.json(&call).send()).await.unwrap().text().await.unwrap()
}

#[tokio::test]
async fn changes_name_sessions_and_entries_to_those_who_may_read_them() {
    for setup in [Setup::sqlite(), Setup::postgres().await] {
        let world = World::on(setup).await;
        let (own, token) = agent(&world).await;
        needs_two_people(&world).await;
        let app = world.gateway.app.clone();
        let other = OrgOf3::new(&app).await;
        let waits = invoke(&world, &token, own, "effect.open", json!({})).await.1;
        let ((asking, _), (ended, _)) = (agent(&world).await, agent(&world).await);
        let run = run_after(&world, Some(ended), &UNANSWERED).await.to_string();
        let World { gateway, team, token: service, effects: _effects } = world;
        let running = gateway.serve();
        let mut member = Stream::open(&running, team.token(Role::Member)).await;
        let mut service = Stream::open(&running, &service).await;
        let mut elsewhere = Stream::open(&running, other.token(Role::Owner)).await;
        for stream in [&mut member, &mut service] {
            let made = new_session(&app, team.org).await;
            assert_eq!(stream.until(&made.to_string()).await["inbox"], json!([]));
        }
        let answer = request_action(&running.url(""), own, &token).await;
        let made: Value = serde_json::from_str(&answer).unwrap();
        let id = made["invocation"]["id"].as_str().unwrap();
        let entry = json!([{"type": "approval", "id": id, "sessionId": own}]);
        for stream in [&mut member, &mut service] {
            assert_eq!(stream.until(id).await["inbox"], entry);
        }
        // An approval that leaves its entry waiting changes it.
        let owner = team.token(Role::Owner);
        let approve = client().post(running.url(&format!("/v1/invocations/{id}/approve")));
        let edited = json!({"params": {"a": "other canary"}});
        let approved = within(approve.bearer_auth(owner).json(&edited).send()).await.unwrap();
        assert_eq!(approved.status().as_u16(), 202, "the first of two people");
        for stream in [&mut member, &mut service] {
            assert_eq!(stream.until(id).await["inbox"], entry);
        }
        // An entry that leaves is named too.
        let gone = waits["invocation"]["id"].as_str().unwrap();
        let deny = client().post(running.url(&format!("/v1/invocations/{gone}/deny")));
        let denied = within(deny.bearer_auth(team.token(Role::Owner)).send()).await.unwrap();
        assert_eq!(denied.status().as_u16(), 200);
        for stream in [&mut member, &mut service] {
            stream.until(gone).await;
        }
        ask(&app, asking).await;
        let entry = json!([{"type": "question", "id": "que.1", "sessionId": asking}]);
        for stream in [&mut member, &mut service] {
            assert_eq!(stream.until("que.1").await["inbox"], entry);
        }
        // A run that needs a human belongs to members only.
        let resolve = client().post(running.url(&format!("/v1/automation-runs/{run}/resolve")));
        let resolve = resolve.bearer_auth(team.token(Role::Member)).json(&json!({"outcome": "failed"}));
        assert_eq!(within(resolve.send()).await.unwrap().status().as_u16(), 200);
        let entry = json!([{"type": "run", "id": run, "sessionId": ended}]);
        assert_eq!(member.until(&run).await["inbox"], entry);
        let made = new_session(&app, team.org).await.to_string();
        loop {
            let (_, seen) = service.next().await.unwrap();
            assert!(!seen["inbox"].to_string().contains(&run), "{seen}");
            if seen.to_string().contains(&made) {
                break;
            }
        }

        // The other organization has seen nothing of this: its own change is the first.
        let theirs = new_session(&app, other.org).await;
        let (_, first) = elsewhere.next().await.unwrap();
        assert_eq!(first, json!({"sessions": [theirs], "inbox": []}));

        let session = new_session(&app, team.org).await;
        let sandbox = sandbox_token(&app, session).await;
        let refused = client().get(running.url("/v1/changes")).bearer_auth(&sandbox).send();
        assert_eq!(within(refused).await.unwrap().status().as_u16(), 403);
        let unbound = service_token(&app, None);
        let unnamed = client().get(running.url("/v1/changes")).bearer_auth(&unbound).send();
        assert_eq!(within(unnamed).await.unwrap().status().as_u16(), 401, "it names no organization");
        running.stop().await;
        // The stream ends with the gateway, after what it was sent before.
        while member.next().await.is_some() {}
    }
}

#[tokio::test]
async fn a_stream_of_changes_ends_with_its_credential_and_no_other_does() {
    for setup in [Setup::sqlite(), Setup::postgres().await] {
        let world = World::on(setup).await;
        let app = world.gateway.app.clone();
        let (id, key) = api_key(&app, world.team.person(Role::Member)).await;
        let World { gateway, team, .. } = world;
        let running = gateway.serve();
        let mut by_key = Stream::open(&running, &key).await;
        let mut by_token = Stream::open(&running, team.token(Role::Member)).await;
        app.store.revoke_key(team.org, id, None, app.clock.now()).await.unwrap();
        assert!(by_key.next().await.is_none());
        let made = new_session(&app, team.org).await;
        by_token.until(&made.to_string()).await;
        running.stop().await;
    }
}
