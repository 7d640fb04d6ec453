//! Test fixtures: organizations, members of each role, sessions, and every kind of credential.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as B64;
use clock::{Clock, Rng};
use gateway::AppState;
use gateway::identity::{self, Credential, CredentialKind, USER_TOKEN_LIFETIME};
use hmac::{Hmac, KeyInit as _, Mac as _};
use proto::http::KeyScope;
use proto::{ApiKeyId, OrgId, Role, SessionId, SessionType, UserId};
use secrecy::ExposeSecret as _;
use serde_json::Value;
use sha2::Sha256;
use store::{NewApiKey, NewMember, NewOrg, NewSandboxToken, NewSession};

/// A member and a token to act as one.
pub(crate) struct Person {
    pub(crate) id: UserId,
    pub(crate) org: OrgId,
    pub(crate) token: String,
}

pub(crate) fn some_uuid() -> uuid::Uuid {
    Rng::system().uuid(Clock::system().now())
}

/// The current Unix time in seconds, for tokens that are signed by hand.
pub(crate) fn now() -> i64 {
    Clock::system().now().timestamp()
}

pub(crate) async fn org(app: &AppState) -> OrgId {
    let id = OrgId::from(some_uuid());
    app.store.create_org(NewOrg { id, name: "Test".to_owned(), at: app.clock.now() }).await.unwrap();
    id
}

pub(crate) async fn person(app: &AppState, org: OrgId, role: Role) -> Person {
    let email = format!("{}@test.example", some_uuid());
    let id = join(app, org, role, &email).await;
    Person { id, org, token: user_token(app, id, org) }
}

/// Adds the user with this address to the organization.
pub(crate) async fn join(app: &AppState, org: OrgId, role: Role, email: &str) -> UserId {
    let (user_id, name, email) = (UserId::from(some_uuid()), "Somebody".to_owned(), email.to_owned());
    let new = NewMember { user_id, email, name, org_id: org, role, at: app.clock.now() };
    app.store.add_member(new).await.unwrap()
}

pub(crate) fn user_token(app: &AppState, user: UserId, org: OrgId) -> String {
    let now = app.clock.now();
    app.credentials
        .issuer
        .user(user, org, "a@test.example", now, USER_TOKEN_LIFETIME)
        .expose_secret()
        .to_owned()
}

pub(crate) fn service_token(app: &AppState, org: Option<OrgId>) -> String {
    let now = app.clock.now();
    app.credentials.issuer.service("worker", org, now, USER_TOKEN_LIFETIME).expose_secret().to_owned()
}

pub(crate) async fn api_key(app: &AppState, person: &Person) -> (ApiKeyId, String) {
    key_with_scope(app, person, KeyScope::Full).await
}

pub(crate) async fn key_with_scope(app: &AppState, person: &Person, scope: KeyScope) -> (ApiKeyId, String) {
    let key = Credential::new(CredentialKind::ApiKey, &Rng::system());
    let id = ApiKeyId::from(some_uuid());
    let new = NewApiKey {
        id,
        org_id: person.org,
        user_id: person.id,
        name: "test".to_owned(),
        scope,
        hint: key.hint,
        key_hash: key.hash,
        at: app.clock.now(),
    };
    app.store.create_key(new).await.unwrap();
    (id, key.text.expose_secret().to_owned())
}

pub(crate) async fn session(app: &AppState, org: OrgId) -> SessionId {
    let id = SessionId::from(some_uuid());
    let new = NewSession::new(id, org, SessionType::Coding, "local", app.clock.now());
    app.store.create_session(new).await.unwrap();
    id
}

pub(crate) async fn sandbox_token(app: &AppState, session: SessionId) -> String {
    let token = Credential::new(CredentialKind::Sandbox, &Rng::system());
    let new = NewSandboxToken { token_hash: token.hash, session_id: session };
    app.store.create_sandbox_token(new).await.unwrap();
    token.text.expose_secret().to_owned()
}

/// The code of a new login link.
pub(crate) async fn login_code(app: &AppState, person: &Person) -> String {
    let member = app.store.member(person.org, person.id).await.unwrap().unwrap();
    let link = identity::login_link(&app.store, &member, &app.site.url, &app.clock, &app.rng).await.unwrap();
    link.expose_secret().split_once("code=").unwrap().1.to_owned()
}

/// Signs a token by hand, so that it may claim anything.
pub(crate) fn signed(secret: &str, claims: &Value) -> String {
    let body = format!("{}.{}", B64.encode(r#"{"alg":"HS256"}"#), B64.encode(claims.to_string()));
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    mac.update(body.as_bytes());
    format!("{body}.{}", B64.encode(mac.finalize().into_bytes()))
}

/// An organization with one member of each role.
pub(crate) struct OrgOf3 {
    pub(crate) org: OrgId,
    people: Vec<(Role, Person)>,
}

impl OrgOf3 {
    pub(crate) async fn new(app: &AppState) -> Self {
        let org = org(app).await;
        let mut people = Vec::new();
        for role in [Role::Member, Role::Admin, Role::Owner] {
            people.push((role, person(app, org, role).await));
        }
        Self { org, people }
    }

    pub(crate) fn person(&self, role: Role) -> &Person {
        self.people.iter().find(|(has, _)| *has == role).map(|(_, person)| person).unwrap()
    }

    pub(crate) fn token(&self, role: Role) -> &str {
        &self.person(role).token
    }

    pub(crate) fn id(&self, role: Role) -> UserId {
        self.person(role).id
    }
}
