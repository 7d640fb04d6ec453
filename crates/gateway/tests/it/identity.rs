//! Authentication: which caller a credential identifies, and what revokes it immediately.

use std::time::Duration;

use clock::Clock;
use proto::{OrgId, Role};
use serde_json::{Value, json};

use crate::harness::{JWT_SECRET, SERVICE_SECRET, Setup, TestGateway};
use crate::people::{
    api_key, join, login_code, now, org, person, sandbox_token, service_token, session, signed, some_uuid,
    user_token,
};

async fn me(gateway: &TestGateway, token: &str) -> Value {
    let answer = gateway.get("/v1/me").bearer(token).send().await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

async fn assert_refused(gateway: &TestGateway, token: &str, why: &str) {
    let answer = gateway.get("/v1/me").bearer(token).send().await;
    assert_eq!((answer.status, answer.json()["error"].as_str()), (401, Some("Invalid token")), "{why}");
}

#[tokio::test]
async fn each_credential_is_taken_for_its_owner() {
    for gateway in TestGateway::both().await {
        let app = &gateway.app;
        let org = org(app).await;
        for role in [Role::Member, Role::Admin, Role::Owner] {
            let person = person(app, org, role).await;
            let expected =
                |source| json!({"userId": person.id, "orgId": org, "role": role, "source": source});
            assert_eq!(me(&gateway, &person.token).await, expected("user"));
            assert_eq!(me(&gateway, &api_key(app, &person).await.1).await, expected("cli"));
        }
        let nobody = |org: Option<OrgId>, source| json!({"userId": null, "orgId": org, "role": null, "source": source});
        assert_eq!(me(&gateway, &service_token(app, None)).await, nobody(None, "service"));
        assert_eq!(me(&gateway, &service_token(app, Some(org))).await, nobody(Some(org), "service"));
        let token = sandbox_token(app, session(app, org).await).await;
        assert_eq!(me(&gateway, &token).await, nobody(Some(org), "sandbox"));
    }
}

#[tokio::test]
async fn a_user_token_without_organization_counts_for_the_oldest_membership() {
    let clock = Clock::manual(Clock::system().now());
    for setup in [Setup::sqlite(), Setup::postgres().await] {
        oldest_membership(setup.clock(&clock).start().await, &clock).await;
    }
}

async fn oldest_membership(gateway: TestGateway, clock: &Clock) {
    let (a, b) = (org(&gateway.app).await, org(&gateway.app).await);
    let user = join(&gateway.app, a, Role::Member, "two@test.example").await;
    let token = signed(JWT_SECRET, &json!({"sub": user, "exp": now() + 60}));
    assert_eq!(me(&gateway, &token).await["orgId"], json!(a));
    clock.advance(Duration::from_secs(1));
    assert_eq!(join(&gateway.app, b, Role::Admin, "Two@test.example").await, user, "one address, one user");
    assert_eq!(
        me(&gateway, &token).await["orgId"],
        json!(a),
        "nobody is locked out by being added elsewhere"
    );
    assert_eq!(me(&gateway, &user_token(&gateway.app, user, b)).await["role"], json!("admin"));
    gateway.app.store.change_member(a, user, None, gateway.app.clock.now()).await.unwrap();
    assert_eq!(me(&gateway, &token).await["orgId"], json!(b));
    gateway.app.store.change_member(b, user, None, gateway.app.clock.now()).await.unwrap();
    assert_refused(&gateway, &token, "no membership is left").await;
}

#[tokio::test]
async fn a_token_ends_by_our_own_clock() {
    let clock = Clock::manual(Clock::system().now());
    let gateway = Setup::sqlite().clock(&clock).start().await;
    let person = person(&gateway.app, org(&gateway.app).await, Role::Member).await;
    clock.advance(Duration::from_mins(59));
    me(&gateway, &person.token).await;
    clock.advance(Duration::from_mins(2));
    assert_refused(&gateway, &person.token, "its hour is over").await;
}

#[tokio::test]
async fn a_valid_signature_does_not_authenticate_a_wrong_claim() {
    let gateway = TestGateway::sqlite().await;
    let app = &gateway.app;
    let (a, b) = (org(app).await, org(app).await);
    let person = person(app, a, Role::Owner).await;
    let claim = |claims: Value| {
        let mut all = json!({"sub": person.id, "orgId": a, "exp": now() + 60});
        all.as_object_mut().unwrap().extend(claims.as_object().unwrap().clone());
        all
    };
    let user = |claims: Value| signed(JWT_SECRET, &claim(claims));
    assert_eq!(me(&gateway, &user(json!({}))).await["userId"], json!(person.id));
    for (why, claims) in [
        ("an unknown user", json!({"sub": some_uuid()})),
        ("an organization of others", json!({"orgId": b})),
        ("an unknown organization", json!({"orgId": some_uuid()})),
        ("an organization that is no id", json!({"orgId": "org_1"})),
        ("an empty organization", json!({"orgId": ""})),
        ("an organization that is a number", json!({"orgId": 7})),
        ("a user that is no id", json!({"sub": "' OR 1=1 --"})),
        ("a user id in braces", json!({"sub": format!("{{{}}}", person.id)})),
        ("a user that is a list", json!({"sub": [person.id]})),
        ("an expired token", json!({"exp": now() - 60})),
        ("a token for another instance", json!({"aud": "internal"})),
    ] {
        assert_refused(&gateway, &user(claims), why).await;
    }
    let expired = gateway.get("/v1/me").bearer(&user(json!({"exp": 1_600_000_000}))).send().await;
    let reason = expired.json()["details"]["reason"].as_str().unwrap().to_owned();
    assert!(reason.contains("it expired at 2020-09-13T12:26:40"), "{reason}");
    assert_refused(
        &gateway,
        &signed(SERVICE_SECRET, &claim(json!({}))),
        "a user claim under the service secret",
    )
    .await;
    assert_refused(
        &gateway,
        &signed(SERVICE_SECRET, &claim(json!({"service": true, "orgId": "x"}))),
        "no id",
    )
    .await;
}

#[tokio::test]
async fn a_revoked_credential_fails_at_once() {
    for gateway in TestGateway::both().await {
        let app = &gateway.app;
        let org = org(app).await;
        let person = person(app, org, Role::Member).await;
        let (id, key) = api_key(app, &person).await;
        let (_, other) = api_key(app, &person).await;
        me(&gateway, &key).await;
        app.store.revoke_key(org, id, None, app.clock.now()).await.unwrap();
        assert_refused(&gateway, &key, "the key is revoked").await;
        me(&gateway, &other).await;
        app.store.change_member(org, person.id, None, app.clock.now()).await.unwrap();
        assert_refused(&gateway, &person.token, "the membership ended").await;
        assert_refused(&gateway, &other, "the key of a membership that ended").await;
        join(app, org, Role::Owner, &format!("{}@test.example", some_uuid())).await;
        assert_refused(&gateway, &other, "somebody else joined").await;
    }
}

#[tokio::test]
async fn a_sandbox_token_dies_with_its_sandbox_and_with_its_session() {
    let gateway = TestGateway::postgres().await;
    let app = &gateway.app;
    let session = session(app, org(app).await).await;
    let first = sandbox_token(app, session).await;
    me(&gateway, &first).await;
    let owner = app.store.own_session(session, "test").await.unwrap().owner;
    app.store.new_sandbox_generation(&owner, None).await.unwrap();
    assert_refused(&gateway, &first, "the sandbox was replaced").await;
    let second = sandbox_token(app, session).await;
    me(&gateway, &second).await;
    gateway
        .sql(&format!("UPDATE sessions SET ended_at = now(), status = 'stopped' WHERE id = '{session}'"))
        .await;
    assert_refused(&gateway, &second, "the session ended").await;
    assert_refused(&gateway, &first, "and the first stays dead").await;
}

#[tokio::test]
async fn the_plain_sandbox_token_needs_the_switch_and_its_own_path() {
    for on in [false, true] {
        let setup = Setup::postgres().await.set("SANDBOX_TOKEN_COMPAT", if on { "1" } else { "0" });
        let gateway = setup.start().await;
        let app = &gateway.app;
        let org = org(app).await;
        let (own, other) = (session(app, org).await.to_string(), session(app, org).await.to_string());
        let plain = |id: &str| gateway::identity::compat_sandbox_token(&app.credentials.service_secret, id);
        let ask = async |path: &str, token: &str| {
            gateway.get(&format!("/proliferate/sessions/{path}/status")).bearer(token).status().await
        };
        let upper = own.to_uppercase();
        assert_eq!(ask(&own, &plain(&own)).await, if on { 200 } else { 401 });
        assert_eq!(ask(&other, &plain(&own)).await, 401, "the path of another session");
        assert_eq!(ask(&upper, &plain(&own)).await, 401, "the id is written otherwise");
        assert_eq!(ask(&upper, &plain(&upper)).await, if on { 200 } else { 401 });
        assert_eq!(ask(&own, &plain(&upper)).await, 401, "upper case gives another token");
        assert_eq!(ask(&own, &plain(&own).to_uppercase()).await, 401, "the digits are lower case");
        let unknown = some_uuid().to_string();
        assert_eq!(ask(&unknown, &plain(&unknown)).await, 401, "there is no such session");
        assert_refused(&gateway, &plain(&own), "no session in this path").await;
        gateway.sql(&format!("UPDATE sessions SET ended_at = now() WHERE id = '{own}'")).await;
        assert_eq!(ask(&own, &plain(&own)).await, 401, "the session ended");
    }
}

#[tokio::test]
async fn login_codes_and_tickets_are_no_bearer_tokens() {
    let gateway = TestGateway::sqlite().await;
    let app = &gateway.app;
    let person = person(app, org(app).await, Role::Owner).await;
    let session = session(app, person.org).await;
    assert_refused(&gateway, &login_code(app, &person).await, "a login code").await;
    assert_refused(&gateway, &crate::login::logged_in(&gateway, &person).await, "a login cookie").await;
    for kind in ["socket", "proxy"] {
        let made = gateway.post("/v1/tickets", &json!({"sessionId": session, "kind": kind}));
        let made = made.bearer(&person.token).send().await;
        assert_eq!(made.status, 201, "{}", made.text());
        assert_refused(&gateway, made.json()["ticket"].as_str().unwrap(), kind).await;
    }
    for shape in ["plk_", "pls_", "plk_00", "pls_; DROP TABLE users", "plk_\t"] {
        assert_refused(&gateway, shape, "a prefix alone").await;
    }
}
