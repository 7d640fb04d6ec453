//! From a presented token to a caller whose claim holds now.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, header};
use proto::http::{Me, TokenSource};
use proto::{OrgId, Role, SessionId, UserId};
use store::{Member, SandboxSession, SessionRecord, Standing, UserCredential};
use subtle::ConstantTimeEq as _;

use super::super::ApiError;
use super::super::body::take_slot;
use super::super::login::login_cookie;
use super::session_in_path;
use crate::access::{self, Act, CallerKind};
use crate::app::AppState;
use crate::identity::{Claim, CredentialKind, compat_sandbox_token, hash};
use shares::Party;

/// Somebody with a valid credential.
#[derive(Clone, Debug)]
pub enum Caller {
    User(User),
    /// Another program of the operator's; bound to one organization, or to none.
    Service {
        name: String,
        org: Option<OrgId>,
    },
    /// The sandbox of one session, which was found on the way.
    Sandbox(SandboxSession),
}

/// A member of an organization, now; also the extractor of routes that need a person.
#[derive(Clone, Debug)]
pub struct User {
    pub id: UserId,
    pub org: OrgId,
    pub role: Role,
    pub email: String,
    pub source: TokenSource,
    /// What they came with.
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

    /// What an open connection of theirs rests on, and a ticket that they make.
    pub(in crate::edge) fn standing(&self) -> Standing {
        Standing { org_id: self.org, user_id: self.id, credential: self.credential }
    }

    fn kind(&self) -> CallerKind {
        kind_of(self.role)
    }

    /// Whether the table allows it; see [`Caller::must`].
    pub(in crate::edge) fn may(&self, act: Act, owns: bool) -> bool {
        access::may(act, self.kind(), owns)
    }

    /// See [`Caller::must`].
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
    /// Whose share of slots, memory and rates this caller uses.
    pub fn party(&self) -> Party {
        match self {
            Self::User(user) => Party::org(user.org),
            Self::Service { org: Some(org), .. } => Party::org(*org),
            Self::Service { org: None, .. } => Party::services(),
            Self::Sandbox(session) => Party::session(session.id, session.org_id),
        }
    }

    /// Names the caller in every log line of its request.
    pub(in crate::edge) fn note(&self) {
        let span = tracing::Span::current();
        span.record("caller", self.identity());
        if let Some(org) = self.me().org_id {
            span.record("org", tracing::field::display(org));
        }
    }

    /// The caller's place in the table of `access`.
    pub fn kind(&self) -> CallerKind {
        match self {
            Self::User(user) => user.kind(),
            Self::Service { .. } => CallerKind::Service,
            Self::Sandbox(_) => CallerKind::Sandbox,
        }
    }

    /// Refuses what the table does not allow. `owns`: the caller made what the act is about, or it is of its own session.
    pub(in crate::edge) fn must(&self, act: Act, owns: bool) -> Result<(), ApiError> {
        if access::may(act, self.kind(), owns) { Ok(()) } else { Err(self.refused(act)) }
    }

    /// Whether the caller counts as the one who made a session: nobody in particular made those of services.
    pub(in crate::edge) fn owns_session(&self, session: &SessionRecord) -> bool {
        match self {
            Self::User(user) => session.created_by.is_none_or(|by| by == user.id),
            Self::Service { .. } => false,
            Self::Sandbox(own) => own.id == session.id,
        }
    }

    /// Who this is where callers must be told apart, whatever credential they use.
    pub(in crate::edge) fn identity(&self) -> String {
        match self {
            Self::User(user) => format!("user {}", user.id),
            Self::Service { name, .. } => format!("service {name}"),
            Self::Sandbox(session) => format!("sandbox {}", session.id),
        }
    }

    /// Refuses what this caller may never do, whatever it is about.
    fn may_ever(&self, act: Act) -> Result<(), ApiError> {
        self.must(act, false).or_else(|_| self.must(act, true))
    }

    fn refused(&self, act: Act) -> ApiError {
        match (act, self) {
            (Act::Prompt, Self::Sandbox(_)) => ApiError::user_required(),
            _ => ApiError::forbidden(&act.refusal()),
        }
    }

    /// How the caller is described to itself.
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

/// Who the caller of the request is, before anything is decided about the act.
pub(super) async fn identify(parts: &mut Parts, app: &AppState) -> Result<Caller, ApiError> {
    let caller = presented(parts, app).await?;
    // Bodies are read after this, and count for whoever sends them.
    let payer = caller.party();
    parts.extensions.insert(payer);
    if is_safe(&parts.method) {
        take_slot(app, parts, payer)?;
    }
    Ok(caller)
}

/// The act that the router gave the request's route.
pub(super) fn act(parts: &Parts) -> Result<Act, ApiError> {
    let act = parts.extensions.get::<Act>().copied();
    act.ok_or_else(|| ApiError::internal("this route names no act"))
}

/// A caller who may do the act of the route in some case. A handler whose act depends on who made the thing decides that
/// with [`Caller::must`] once it has found it.
impl FromRequestParts<AppState> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, ApiError> {
        let caller = identify(parts, app).await?;
        caller.may_ever(act(parts)?)?;
        Ok(caller)
    }
}

/// The caller of the credential that a request has in its headers.
async fn presented(parts: &mut Parts, app: &AppState) -> Result<Caller, ApiError> {
    if let Some(token) = bearer(&parts.headers).map(str::to_owned) {
        let session = session_in_path(parts, app).await;
        return authenticate(app, &token, session.as_deref()).await;
    }
    let token = login_cookie(app, &parts.headers).ok_or_else(ApiError::missing_authorization)?;
    // Browsers send cookies with requests that other sites make, and open sockets for them; such a request must
    // show where it comes from.
    let acts = !is_safe(&parts.method) || parts.headers.contains_key(header::UPGRADE);
    if acts && !from_allowed_origin(&parts.headers, app) {
        return Err(ApiError::forbidden("This origin may not act with a login cookie"));
    }
    logged_in(app, token).await
}

/// The caller of a login cookie, which is good for nothing but a cookie: nothing else passes here, and it passes
/// nowhere else.
async fn logged_in(app: &AppState, token: &str) -> Result<Caller, ApiError> {
    let login = hash(token);
    let owner = match CredentialKind::of(token) {
        Some(CredentialKind::Cookie) => app.store.login_session_owner(&login, app.clock.now()).await?,
        _ => None,
    };
    let caller = known(owner.map(|member| Caller::User(User::new(member, UserCredential::Login(login)))))?;
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

/// The caller a token stands for. `session` is the session id as the path has it, for the token of old sandbox
/// images, which is bound to nothing else.
pub async fn authenticate(app: &AppState, token: &str, session: Option<&str>) -> Result<Caller, ApiError> {
    let found = match CredentialKind::of(token) {
        Some(CredentialKind::ApiKey) => {
            let key = hash(token);
            let owner = app.store.key_owner(&key).await?;
            owner.map(|member| Caller::User(User::new(member, UserCredential::ApiKey(key))))
        }
        Some(CredentialKind::Sandbox) => app.store.session_of_token(&hash(token)).await?.map(Caller::Sandbox),
        // Good for URLs of one session, for one login or for a cookie, and for nothing else.
        Some(CredentialKind::Ticket | CredentialKind::Login | CredentialKind::Cookie) => None,
        None => match app.issuer.read(token, app.clock.now()) {
            Some(claim) => claimed(app, claim).await?,
            None => match app.issuer.expired(token, app.clock.now()) {
                Some(at) => return Err(ApiError::expired_token(at)),
                None => old_sandbox(app, token, session).await?,
            },
        },
    };
    let caller = known(found)?;
    caller.note();
    Ok(caller)
}

/// Counts those who are not.
fn known(found: Option<Caller>) -> Result<Caller, ApiError> {
    if found.is_none() {
        metrics::counter!("proliferate_auth_failures_total").increment(1);
    }
    found.ok_or_else(ApiError::invalid_token)
}

/// A signed claim, checked against who is a member now.
async fn claimed(app: &AppState, claim: Claim) -> Result<Option<Caller>, ApiError> {
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
                // Old tokens name no organization. The first one counts: whoever adds the user to another one later
                // neither locks nor leads them out of it.
                None => app.store.memberships(user).await?.into_iter().next(),
            };
            Ok(member.map(|member| Caller::User(User::new(member, UserCredential::Token))))
        }
    }
}

/// The plain per-session token of old sandbox images, where the operator accepts it.
async fn old_sandbox(app: &AppState, token: &str, session: Option<&str>) -> Result<Option<Caller>, ApiError> {
    let (true, Some(session)) = (app.config.sandbox_token_compat, session) else { return Ok(None) };
    let Ok(id) = session.parse::<SessionId>() else { return Ok(None) };
    let expected = compat_sandbox_token(&app.service_secret, session);
    if !bool::from(expected.as_bytes().ct_eq(token.as_bytes())) {
        return Ok(None);
    }
    Ok(app.store.sandbox_session(id).await?.map(Caller::Sandbox))
}

/// The token of the one `Authorization` header: of two, a proxy before us may have looked at the other one.
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
    origin.is_some_and(|origin| app.origins.iter().any(|allowed| allowed.as_str() == origin))
}
