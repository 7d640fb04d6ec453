//! Authentication: turns the credential of a request into a caller, and checks that the credential is valid now.

use axum::extract::{FromRequestParts, MatchedPath};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, header};
use gate::Attempt;
use proto::http::{KeyScope, Me, TokenSource};
use proto::{OrgId, Role, SessionId, UserId};
use store::{KeyOwner, Member, SandboxSession, SessionRecord, Standing, UserCredential};
use subtle::ConstantTimeEq as _;

use super::super::ApiError;
use super::super::attempts::{record_refusal, record_refused_act};
use super::super::body::take_slot;
use super::super::login::login_cookie;
use super::attempted::refuse_inside;
use super::session_in_path;
use crate::access::{self, Act, CallerKind};
use crate::actions::ActionCaller;
use crate::app::AppState;
use crate::identity::{Claim, CredentialKind, compat_sandbox_token, hash};
use crate::sessions::Requester;
use shares::Party;

/// An authenticated caller.
#[derive(Clone, Debug)]
pub enum Caller {
    User(User),
    /// Another program that the operator runs. Its token is bound to one organization or to none.
    Service {
        name: String,
        org: Option<OrgId>,
    },
    /// A program in the sandbox of this session.
    Sandbox(SandboxSession),
}

/// A current member of an organization. Also the extractor of routes that only people may use.
#[derive(Clone, Debug)]
pub struct User {
    pub id: UserId,
    pub org: OrgId,
    pub role: Role,
    pub email: String,
    pub source: TokenSource,
    /// The credential of the request.
    pub credential: UserCredential,
}

impl User {
    pub(in crate::edge) fn new(member: Member, credential: UserCredential) -> Self {
        let source = match credential {
            UserCredential::ApiKey(_) => TokenSource::Cli,
            UserCredential::Token | UserCredential::Login(_) => TokenSource::User,
        };
        let Member { user_id: id, org_id: org, role, email, .. } = member;
        Self { id, org, role, email, source, credential }
    }

    /// The membership and credential on which an open connection or a ticket of this user depends.
    pub(in crate::edge) fn standing(&self) -> Standing {
        Standing { org_id: self.org, user_id: self.id, credential: self.credential }
    }

    fn kind(&self) -> CallerKind {
        kind_of(self.role)
    }

    /// Whether the access table allows this user to do `act`; see [`Caller::must`] for `owns`.
    pub(in crate::edge) fn may(&self, act: Act, owns: bool) -> bool {
        access::may(act, self.kind(), owns)
    }

    /// Refuses an act that the access table does not allow this user; see [`Caller::must`].
    pub(in crate::edge) fn must(&self, act: Act, owns: bool) -> Result<(), ApiError> {
        if self.may(act, owns) { Ok(()) } else { Err(ApiError::forbidden(&act.refusal())) }
    }
}

pub(super) fn kind_of(role: Role) -> CallerKind {
    match role {
        Role::Member => CallerKind::Member,
        Role::Admin => CallerKind::Admin,
        Role::Owner => CallerKind::Owner,
    }
}

impl Caller {
    /// The party whose shares of slots, memory and rates this caller uses.
    pub fn party(&self) -> Party {
        match self {
            Self::User(user) => Party::user(user.id, user.org),
            Self::Service { org: Some(org), .. } => Party::org(*org),
            Self::Service { org: None, .. } => Party::services(),
            Self::Sandbox(session) => Party::session(session.id, session.org_id),
        }
    }

    /// Adds the caller to every log line of its request.
    pub(in crate::edge) fn note(&self) {
        let span = tracing::Span::current();
        span.record("caller", self.identity());
        if let Some(org) = self.me().org_id {
            span.record("org", tracing::field::display(org));
        }
    }

    /// The caller's column in the table of `access`.
    pub fn kind(&self) -> CallerKind {
        match self {
            Self::User(user) => user.kind(),
            Self::Service { .. } => CallerKind::Service,
            Self::Sandbox(_) => CallerKind::Sandbox,
        }
    }

    /// Refuses an act that the access table does not allow this caller. `owns`: the caller created the object of the
    /// act, or the object belongs to the caller's own session.
    pub(in crate::edge) fn must(&self, act: Act, owns: bool) -> Result<(), ApiError> {
        if access::may(act, self.kind(), owns) { Ok(()) } else { Err(self.forbidden_error(act)) }
    }

    /// Whether the caller counts as the creator of a session. A session that a service created has no creator, so every
    /// member counts as one.
    pub(in crate::edge) fn owns_session(&self, session: &SessionRecord) -> bool {
        match self {
            Self::User(user) => session.created_by.is_none_or(|by| by == user.id),
            Self::Service { .. } => false,
            Self::Sandbox(own) => own.id == session.id,
        }
    }

    /// The caller of a use case of sessions.
    pub(in crate::edge) fn requester(&self) -> Result<Requester, ApiError> {
        match self {
            Self::User(user) => Ok(Requester::User { id: user.id, kind: user.kind() }),
            Self::Service { name, .. } => Ok(Requester::Service { name: name.clone() }),
            Self::Sandbox(_) => Err(ApiError::user_required()),
        }
    }

    /// A name that is different for each caller and does not depend on the credential.
    pub(in crate::edge) fn identity(&self) -> String {
        match self {
            Self::User(user) => format!("user {}", user.id),
            Self::Service { name, .. } => format!("service {name}"),
            Self::Sandbox(session) => format!("sandbox {}", session.id),
        }
    }

    /// Refuses an act that this caller may not do even to its own objects.
    fn may_ever(&self, act: Act) -> Result<(), ApiError> {
        self.must(act, false).or_else(|_| self.must(act, true))
    }

    fn forbidden_error(&self, act: Act) -> ApiError {
        match (act, self) {
            (Act::Prompt, Self::Sandbox(_)) => ApiError::user_required(),
            _ => ApiError::forbidden(&act.refusal()),
        }
    }

    /// The answer to `GET /v1/me`.
    pub fn me(&self) -> Me {
        match self {
            Self::User(user) => Me {
                user_id: Some(user.id),
                org_id: Some(user.org),
                role: Some(user.role),
                source: user.source,
            },
            Self::Service { org, .. } => {
                Me { user_id: None, org_id: *org, role: None, source: TokenSource::Service }
            }
            Self::Sandbox(session) => {
                Me { user_id: None, org_id: Some(session.org_id), role: None, source: TokenSource::Sandbox }
            }
        }
    }
}

/// Authenticates the caller of a request, without checking whether it may do the route's act.
pub(super) async fn identify(parts: &mut Parts, app: &AppState) -> Result<Caller, ApiError> {
    let caller = authenticate_request(parts, app).await?;
    // Bodies are read after this; their memory counts against this party's share.
    let payer = caller.party();
    parts.extensions.insert(payer);
    if is_safe(&parts.method) {
        take_slot(app, parts, payer)?;
    }
    Ok(caller)
}

/// The act that the router assigned to the request's route.
pub(super) fn act(parts: &Parts) -> Result<Act, ApiError> {
    let act = parts.extensions.get::<Act>().copied();
    act.ok_or_else(|| ApiError::internal("this route names no act"))
}

/// Extracts a caller that may do the route's act to at least some objects. If permission depends on who created the
/// object, the handler checks it with [`Caller::must`] once it has loaded the object.
impl FromRequestParts<AppState> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, ApiError> {
        let caller = identify(parts, app).await?;
        let act = act(parts)?;
        let allowed = match act {
            // A mode decides about all requests of an action.
            Act::SetActionModes => refuse_inside(parts).and_then(|()| caller.may_ever(act)),
            _ => caller.may_ever(act),
        };
        match allowed {
            Ok(()) => Ok(caller),
            Err(refusal) => Err(record_refused_act(app, &caller, act, refusal).await),
        }
    }
}

/// Authenticates the bearer token of a request, or else its login cookie.
async fn authenticate_request(parts: &mut Parts, app: &AppState) -> Result<Caller, ApiError> {
    if let Some(token) = bearer(&parts.headers).map(str::to_owned) {
        let session = session_in_path(parts, app).await;
        return authenticate(app, &token, session.as_deref(), parts.extensions.get()).await;
    }
    let token = login_cookie(app, &parts.headers).ok_or_else(ApiError::missing_authorization)?;
    // Browsers attach cookies also to requests and sockets that other sites open (CSRF), so a request that can change
    // something must come from an allowed origin.
    let acts = !is_safe(&parts.method) || parts.headers.contains_key(header::UPGRADE);
    if acts && !from_allowed_origin(&parts.headers, app) {
        return Err(ApiError::forbidden("This origin may not act with a login cookie"));
    }
    logged_in(app, token).await
}

/// Authenticates a login cookie. No other kind of credential is accepted as a cookie, and a cookie's value is accepted
/// nowhere else.
async fn logged_in(app: &AppState, token: &str) -> Result<Caller, ApiError> {
    let login = hash(token);
    let owner = match CredentialKind::of(token) {
        Some(CredentialKind::Cookie) => app.store.login_session_owner(&login, app.clock.now()).await?,
        _ => None,
    };
    let caller =
        require_caller(owner.map(|member| Caller::User(User::new(member, UserCredential::Login(login)))))?;
    caller.note();
    Ok(caller)
}

impl FromRequestParts<AppState> for User {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, ApiError> {
        match Caller::from_request_parts(parts, app).await? {
            Caller::User(user) => Ok(user),
            Caller::Service { .. } | Caller::Sandbox(_) => {
                Err(ApiError::forbidden("Only members may do this"))
            }
        }
    }
}

/// Authenticates a token. `session` is the session id in the path; it is needed only for the tokens of old sandbox
/// images, which are derived from that id. The ledger has the `route` of a key that opens another one only.
pub(super) async fn authenticate(
    app: &AppState,
    token: &str,
    session: Option<&str>,
    route: Option<&MatchedPath>,
) -> Result<Caller, ApiError> {
    let found = match CredentialKind::of(token) {
        Some(CredentialKind::ApiKey) => {
            let key = hash(token);
            let owner = app.store.key_owner(&key).await?;
            if let Some(owner) = owner.as_ref().filter(|owner| owner.scope == KeyScope::Mcp) {
                return Err(refuse_mcp_key(app, owner, route).await);
            }
            owner.map(|owner| Caller::User(User::new(owner.member, UserCredential::ApiKey(key))))
        }
        Some(CredentialKind::Sandbox) => app.store.session_of_token(&hash(token)).await?.map(Caller::Sandbox),
        // These are accepted only in the URLs of one session, for one login, and as a cookie, respectively.
        Some(CredentialKind::Ticket | CredentialKind::Login | CredentialKind::Cookie) => None,
        None => match app.credentials.issuer.read(token, app.clock.now()) {
            Some(claim) => caller_of_claim(app, claim).await?,
            None => match app.credentials.issuer.expired(token, app.clock.now()) {
                Some(at) => return Err(ApiError::expired_token(at)),
                None => old_sandbox(app, token, session).await?,
            },
        },
    };
    let caller = require_caller(found)?;
    caller.note();
    Ok(caller)
}

/// Refuses a key with the scope `mcp` at another route, and records the attempt.
async fn refuse_mcp_key(app: &AppState, owner: &KeyOwner, route: Option<&MatchedPath>) -> ApiError {
    let caller = ActionCaller::Key { id: owner.key, org: owner.member.org_id };
    let route = route.map_or("none", MatchedPath::as_str).to_owned();
    let attempt = Attempt { operation: Some(route), ..caller.attempt("api") };
    let refusal = ApiError::forbidden("This API key has the scope mcp, which opens POST /mcp only");
    record_refusal(app, &attempt, refusal).await
}

/// Refuses a credential for which no caller was found, and counts the failure.
pub(super) fn require_caller<T>(found: Option<T>) -> Result<T, ApiError> {
    if found.is_none() {
        metrics::counter!("proliferate_auth_failures_total").increment(1);
    }
    found.ok_or_else(ApiError::invalid_token)
}

/// The caller of a signed claim. `None` if its ids are malformed or its user is not a member now.
async fn caller_of_claim(app: &AppState, claim: Claim) -> Result<Option<Caller>, ApiError> {
    match claim {
        Claim::Service { name, org: None } => Ok(Some(Caller::Service { name, org: None })),
        Claim::Service { name, org: Some(org) } => {
            Ok(org.parse().ok().map(|org| Caller::Service { name, org: Some(org) }))
        }
        Claim::User { user, org } => {
            let Ok(user) = user.parse::<UserId>() else { return Ok(None) };
            let member = match org {
                Some(org) => match org.parse() {
                    Ok(org) => app.store.member(org, user).await?,
                    Err(_) => None,
                },
                // Old tokens name no organization, so they act in the user's first one. Somebody who adds the user to
                // another organization later can therefore neither lock them out nor move them.
                None => app.store.memberships(user).await?.into_iter().next(),
            };
            Ok(member.map(|member| Caller::User(User::new(member, UserCredential::Token))))
        }
    }
}

/// Authenticates the per-session token of old sandbox images, if the operator's settings accept it.
async fn old_sandbox(app: &AppState, token: &str, session: Option<&str>) -> Result<Option<Caller>, ApiError> {
    let (true, Some(session)) = (app.config.sandbox_token_compat, session) else { return Ok(None) };
    let Ok(id) = session.parse::<SessionId>() else { return Ok(None) };
    let expected = compat_sandbox_token(&app.credentials.service_secret, session);
    if !bool::from(expected.as_bytes().ct_eq(token.as_bytes())) {
        return Ok(None);
    }
    Ok(app.store.sandbox_session(id).await?.map(Caller::Sandbox))
}

/// The bearer token of the only `Authorization` header. A request with two is refused: a proxy in front of the gateway
/// may have checked the other one.
pub(super) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut all = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (all.next(), all.next()) else { return None };
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    Some(token.trim()).filter(|token| scheme.eq_ignore_ascii_case("bearer") && !token.is_empty())
}

fn is_safe(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

pub(in crate::edge) fn from_allowed_origin(headers: &HeaderMap, app: &AppState) -> bool {
    let origin = headers.get(header::ORIGIN).and_then(|value| value.to_str().ok());
    origin.is_some_and(|origin| app.site.origins.iter().any(|allowed| allowed.as_str() == origin))
}
