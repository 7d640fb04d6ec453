//! Credentials in URLs: a ticket opens one socket once, and no sandbox credential works there.

use std::time::Duration;

use axum::{Json, Router, routing};
use clock::Clock;
use futures_util::future::join_all;
use gateway::edge::auth::UrlCaller;
use proto::{Role, SessionId};
use serde_json::{Value, json};

use crate::call::Call;
use crate::harness::{Setup, TestGateway};
use crate::people::{
    Person, api_key, login_code, org, person, sandbox_token, service_token, session, some_uuid, user_token,
};

/// A gateway, a member and a session, and a route that takes a [`UrlCaller`].
struct World {
    gateway: TestGateway,
    ada: Person,
    session: SessionId,
    socket: Router,
}

async fn world(setup: Setup) -> World {
    let gateway = setup.start().await;
    let app = gateway.app.clone();
    let ada = person(&app, org(&app).await, Role::Member).await;
    let session = session(&app, ada.org).await;
    let handler = |caller: UrlCaller| async move { Json(caller.caller.me()) };
    let socket = Router::new().route("/proliferate/{id}", routing::get(handler)).with_state(app);
    World { gateway, ada, session, socket }
}

impl World {
    async fn ticket(&self, kind: &str) -> (String, String) {
        let body = json!({"sessionId": self.session, "kind": kind});
        let made = self.gateway.post("/v1/tickets", &body).bearer(&self.ada.token).send().await;
        assert_eq!(made.status, 201, "{}", made.text());
        let text = |name: &str| made.json()[name].as_str().unwrap().to_owned();
        (text("id"), text("ticket"))
    }

    fn open(&self, session: &impl ToString, token: &str) -> Call {
        let path = format!("/proliferate/{}?token={token}", session.to_string());
        Call::new(self.socket.clone(), "GET", &path)
    }
}

#[tokio::test]
async fn a_socket_ticket_is_valid_once() {
    for setup in [Setup::sqlite(), Setup::postgres().await] {
        let world = world(setup).await;
        let (_, ticket) = world.ticket("socket").await;
        let answers = join_all((0..8).map(|_| world.open(&world.session, &ticket).send())).await;
        let (let_in, refused): (Vec<_>, Vec<_>) =
            answers.into_iter().partition(|answer| answer.status == 200);
        assert_eq!((let_in.len(), refused.len()), (1, 7));
        assert_eq!(let_in[0].json()["userId"], json!(world.ada.id));
        assert!(refused.iter().all(|answer| answer.status == 401));
    }
}

#[tokio::test]
async fn a_ticket_ends_after_a_minute_and_when_it_is_revoked() {
    let clock = Clock::manual(Clock::system().now());
    for setup in [Setup::sqlite(), Setup::postgres().await] {
        let world = world(setup.clock(&clock)).await;
        let (early, late) = (world.ticket("socket").await.1, world.ticket("socket").await.1);
        clock.advance(Duration::from_secs(59));
        assert_eq!(world.open(&world.session, &early).status().await, 200);
        clock.advance(Duration::from_secs(1));
        assert_eq!(world.open(&world.session, &late).status().await, 401);

        let (id, ticket) = world.ticket("socket").await;
        let revoke =
            |token: &str| world.gateway.call("DELETE", &format!("/v1/tickets/{id}")).bearer(token).status();
        let bob = person(&world.gateway.app, world.ada.org, Role::Owner).await;
        assert_eq!(revoke(&bob.token).await, 404, "tickets are their owner's");
        assert_eq!(revoke(&world.ada.token).await, 200);
        assert_eq!(world.open(&world.session, &ticket).status().await, 401);
    }
}

#[tokio::test]
async fn a_ticket_used_for_another_session_is_invalid_afterwards() {
    for setup in [Setup::sqlite(), Setup::postgres().await] {
        let world = world(setup).await;
        let sibling = session(&world.gateway.app, world.ada.org).await.to_string();
        let mut bodies = Vec::new();
        for place in [sibling, some_uuid().to_string(), "x".to_owned()] {
            let (_, ticket) = world.ticket("socket").await;
            bodies.push(world.open(&place, &ticket).send().await.shown());
            assert_eq!(world.open(&world.session, &ticket).status().await, 401, "after {place}");
        }
        assert!(bodies[0].0 == 401 && bodies.iter().all(|body| *body == bodies[0]), "{bodies:?}");
    }
}

#[tokio::test]
async fn a_ticket_dies_with_the_membership() {
    for setup in [Setup::sqlite(), Setup::postgres().await] {
        let world = world(setup).await;
        let (_, ticket) = world.ticket("socket").await;
        world
            .gateway
            .app
            .store
            .change_member(world.ada.org, world.ada.id, None, world.gateway.app.clock.now())
            .await
            .unwrap();
        assert_eq!(world.open(&world.session, &ticket).status().await, 401);
    }
}

#[tokio::test]
async fn only_tickets_for_sockets_and_tokens_of_people_and_services_work_in_a_url() {
    let world = world(Setup::sqlite().set("SANDBOX_TOKEN_COMPAT", "1")).await;
    let app = &world.gateway.app;
    let stranger = person(app, org(app).await, Role::Owner).await;
    let plain =
        gateway::identity::compat_sandbox_token(&app.credentials.service_secret, &world.session.to_string());
    let cases = [
        ("a user's token", world.ada.token.clone(), 200),
        ("an API key", api_key(app, &world.ada).await.1, 200),
        ("a service's token", service_token(app, None), 200),
        ("a proxy ticket", world.ticket("proxy").await.1, 401),
        ("a sandbox token", sandbox_token(app, world.session).await, 401),
        ("a plain sandbox token", plain.clone(), 401),
        ("a login code", login_code(app, &world.ada).await, 401),
        ("a login cookie", crate::login::logged_in(&world.gateway, &world.ada).await, 401),
        ("a made-up ticket", "plt_00".to_owned(), 401),
        ("nothing", String::new(), 401),
        ("a stranger's token", stranger.token, 404),
        ("a token for an organization of others", user_token(app, world.ada.id, stranger.org), 401),
    ];
    for (what, token, expected) in cases {
        assert_eq!(world.open(&world.session, &token).status().await, expected, "{what}");
    }
    let header = |token: &str| {
        Call::new(world.socket.clone(), "GET", &format!("/proliferate/{}", world.session))
            .bearer(token)
            .status()
    };
    assert_eq!(header(&world.ada.token).await, 200);
    assert_eq!(header(&sandbox_token(app, world.session).await).await, 401);
    assert_eq!(header(&plain).await, 401);
    assert_eq!(header(&world.ticket("socket").await.1).await, 401, "a ticket is no bearer here either");
}

#[tokio::test]
async fn two_tokens_in_one_url_are_none() {
    let world = world(Setup::sqlite()).await;
    let two = format!("{}&token={}", world.ada.token, world.ada.token);
    assert_eq!(world.open(&world.session, &two).status().await, 401);
}

#[tokio::test]
async fn a_ticket_is_created_only_by_members_for_sessions_of_their_organization() {
    for setup in [Setup::sqlite(), Setup::postgres().await] {
        let world = world(setup).await;
        let app = &world.gateway.app;
        let foreign = session(app, org(app).await).await;
        let make = |body: Value, token: &str| world.gateway.post("/v1/tickets", &body).bearer(token).send();
        let absent = make(json!({"sessionId": some_uuid(), "kind": "socket"}), &world.ada.token).await;
        let other = make(json!({"sessionId": foreign, "kind": "socket"}), &world.ada.token).await;
        assert_eq!((absent.status, absent.shown()), (404, other.shown()));
        let own = json!({"sessionId": world.session, "kind": "socket"});
        assert_eq!(make(own.clone(), &service_token(app, None)).await.status, 403);
        assert_eq!(make(own, &sandbox_token(app, world.session).await).await.status, 403);
        assert_eq!(
            make(json!({"sessionId": world.session, "kind": "all"}), &world.ada.token).await.status,
            400
        );
    }
}
