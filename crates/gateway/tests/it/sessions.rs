//! The access check between a caller and a session: a refusal reveals nothing about what exists.

use proto::Role;

use crate::call::Answer;
use crate::harness::TestGateway;
use crate::people::{Person, org, person, sandbox_token, service_token, session, signed, some_uuid};

/// Two organizations with a session each, and a member of the first.
struct World {
    gateway: TestGateway,
    ada: Person,
    own: String,
    foreign: String,
}

impl World {
    async fn of(gateway: TestGateway) -> Self {
        let app = &gateway.app;
        let (ours, theirs) = (org(app).await, org(app).await);
        let ada = person(app, ours, Role::Member).await;
        let (own, foreign) = (session(app, ours).await.to_string(), session(app, theirs).await.to_string());
        Self { gateway, ada, own, foreign }
    }

    async fn status(&self, id: &str, token: Option<&str>) -> Answer {
        let call = self.gateway.get(&format!("/proliferate/sessions/{id}/status"));
        if let Some(token) = token { call.bearer(token).send().await } else { call.send().await }
    }

    /// Ids that do not name a session of ours: foreign, nonexistent and malformed ones.
    fn strange(&self) -> Vec<String> {
        let upper = self.foreign.to_uppercase();
        let more = [
            "x",
            "00000000-0000-0000-0000-000000000000",
            "%00",
            "%ff%fe",
            "..%2f..",
            "a%20b",
            "%F0%9F%92%A9",
        ];
        let mut all = vec![some_uuid().to_string(), self.foreign.clone(), upper];
        all.push(self.foreign.replace('-', ""));
        all.push(format!("%7B{}%7D", self.own));
        all.extend(more.map(str::to_owned));
        all
    }
}

async fn worlds() -> [World; 2] {
    let [sqlite, postgres] = TestGateway::both().await;
    [World::of(sqlite).await, World::of(postgres).await]
}

#[tokio::test]
async fn absent_foreign_and_malformed_sessions_answer_alike() {
    for world in worlds().await {
        let own = world.status(&world.own, Some(&world.ada.token)).await;
        assert_eq!((own.status, &own.json()["state"]), (200, &serde_json::json!("running")));
        let expected = world.status(&some_uuid().to_string(), Some(&world.ada.token)).await.shown();
        assert_eq!(expected.0, 404);
        for id in world.strange() {
            assert_eq!(world.status(&id, Some(&world.ada.token)).await.shown(), expected, "{id}");
        }
        assert_eq!(expected.1, r#"{"error":"Session not found","code":"not_found"}"#);
    }
}

#[tokio::test]
async fn without_a_valid_token_every_session_is_the_same_401() {
    for world in worlds().await {
        let forged = signed("another secret that is long enough", &serde_json::json!({"sub": world.ada.id}));
        let bad = [None, Some("nonsense"), Some(forged.as_str())];
        for token in bad {
            let expected = world.status(&world.own, token).await.shown();
            assert_eq!(expected.0, 401);
            for id in world.strange() {
                assert_eq!(world.status(&id, token).await.shown(), expected, "{id}");
            }
        }
    }
}

#[tokio::test]
async fn a_sandbox_gets_one_refusal_for_every_session_but_its_own() {
    for world in worlds().await {
        let app = &world.gateway.app;
        let token = sandbox_token(app, world.own.parse().unwrap()).await;
        let expected = world.status(&world.foreign, Some(&token)).await.shown();
        assert_eq!(expected.0, 403);
        let sibling = session(app, world.ada.org).await.to_string();
        for id in world.strange().into_iter().chain([sibling]) {
            assert_eq!(world.status(&id, Some(&token)).await.shown(), expected, "{id}");
        }
        assert_eq!(world.status(&world.own, Some(&token)).await.status, 200, "it may read its own status");
    }
}

#[tokio::test]
async fn a_service_sees_all_sessions_unless_it_is_bound() {
    for world in worlds().await {
        let app = &world.gateway.app;
        let unbound = service_token(app, None);
        assert_eq!(world.status(&world.own, Some(&unbound)).await.status, 200);
        assert_eq!(world.status(&world.foreign, Some(&unbound)).await.status, 200);
        let bound = service_token(app, Some(world.ada.org));
        assert_eq!(world.status(&world.own, Some(&bound)).await.status, 200);
        let foreign = world.status(&world.foreign, Some(&bound)).await.shown();
        assert_eq!(foreign.0, 404);
        assert_eq!(world.status(&some_uuid().to_string(), Some(&bound)).await.shown(), foreign);
    }
}

#[tokio::test]
async fn the_status_of_an_ended_session_is_terminated() {
    let gateway = TestGateway::postgres().await;
    let world = World::of(gateway).await;
    let end = "ended_at = '2026-01-02T03:04:05Z', status = 'stopped', stop_reason = 'done', sandbox_id = 'b'";
    world.gateway.sql(&format!("UPDATE sessions SET {end} WHERE id = '{}'", world.own)).await;
    let reply = world.status(&world.own, Some(&world.ada.token)).await.json();
    let expected = serde_json::json!({"state": "terminated", "status": "stopped", "reason": "done",
        "terminatedAt": "2026-01-02T03:04:05.000Z", "sandboxId": "b"});
    assert_eq!(reply, expected);
}

#[tokio::test]
async fn a_service_that_names_a_foreign_organization_finds_nothing() {
    for world in worlds().await {
        let app = &world.gateway.app;
        let (own, unknown, elsewhere) = (world.ada.org, some_uuid(), org(app).await);
        let (bound, unbound) = (service_token(app, Some(own)), service_token(app, None));
        let status = format!("/proliferate/sessions/{}/status", world.own);
        let ask = async |token: &str, path: &str, org: &str| {
            let path = format!("{path}?{org}");
            world.gateway.get(&path).bearer(token).send().await.status
        };
        for path in ["/proliferate/sessions", "/v1/repos", "/v1/configurations"] {
            assert_eq!(ask(&bound, path, &format!("organizationId={own}")).await, 200, "{path}");
            assert_eq!(ask(&unbound, path, &format!("organizationId={own}")).await, 200, "{path}");
            assert_eq!(ask(&bound, path, "").await, 200, "{path}");
            assert_eq!(ask(&unbound, path, "").await, 401, "{path} needs an organization");
            for (token, foreign) in [
                (&bound, elsewhere.to_string()),
                (&bound, unknown.to_string()),
                (&unbound, unknown.to_string()),
                (&unbound, "x".to_owned()),
            ] {
                assert_eq!(ask(token, path, &format!("organizationId={foreign}")).await, 404, "{path}");
            }
        }
        for path in ["/v1/runs", "/v1/audit/events"] {
            assert_eq!(ask(&bound, path, &format!("organization_id={elsewhere}")).await, 404, "{path}");
            assert_eq!(ask(&bound, path, &format!("organization_id={own}")).await, 200, "{path}");
        }
        assert_eq!(ask(&bound, &status, &format!("organizationId={own}")).await, 200);
        for token in [&bound, &unbound] {
            assert_eq!(ask(token, &status, &format!("organizationId={elsewhere}")).await, 404);
        }
        assert_eq!(
            ask(&world.ada.token, &status, &format!("organizationId={elsewhere}")).await,
            200,
            "a user's own organization counts"
        );
    }
}
