//! Access to sessions. Every route with a session in its path uses the extractors of this module.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use proto::SessionId;
use store::{SandboxSession, SessionRecord};

use super::super::ApiError;
use super::caller::{act, identify};
use super::{Caller, session_in_path};
use crate::app::AppState;

/// A caller and the session in the path. The caller may do the route's act to this session.
///
/// A session of another organization gives the same answer as one that does not exist. A sandbox may access its own
/// session; for any other id it gets the same refusal, whether that session exists or not.
pub struct SessionAccess {
    pub caller: Caller,
    pub session: Arc<SessionRecord>,
}

/// A caller and its access to the session in the path, for a route of sandboxes that records refused attempts.
/// `session` is the sandbox's own session, `None` for a caller that is not a sandbox, or an error if the caller may not
/// see it.
pub struct SessionAttempt {
    pub caller: Caller,
    pub session: Result<Option<SandboxSession>, ApiError>,
}

impl FromRequestParts<AppState> for SessionAttempt {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, ApiError> {
        let (caller, id) = find_caller_and_session(parts, app).await?;
        let session = match &caller {
            Caller::Sandbox(own) => own_session(own, id).map(Some),
            _ => admit(app, &caller, id).await.map(|_| None),
        };
        Ok(Self { caller, session })
    }
}

impl FromRequestParts<AppState> for SessionAccess {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, ApiError> {
        let (caller, id) = find_caller_and_session(parts, app).await?;
        let session = admit(app, &caller, id).await?;
        caller.must(act(parts)?, caller.owns_session(&session))?;
        Ok(Self { caller, session })
    }
}

async fn find_caller_and_session(
    parts: &mut Parts,
    app: &AppState,
) -> Result<(Caller, Option<SessionId>), ApiError> {
    let caller = identify(parts, app).await?;
    Ok((caller, session_in_path(parts, app).await.and_then(|id| id.parse().ok())))
}

/// The session of a sandbox, if its id is the one in the path.
fn own_session(own: &SandboxSession, id: Option<SessionId>) -> Result<SandboxSession, ApiError> {
    let refused = || ApiError::forbidden("This token is for another session");
    Some(*own).filter(|own| id == Some(own.id)).ok_or_else(refused)
}

/// The session `id`, if `caller` may see it.
pub(in crate::edge) async fn admit(
    app: &AppState,
    caller: &Caller,
    id: Option<SessionId>,
) -> Result<Arc<SessionRecord>, ApiError> {
    let org = match caller {
        Caller::Sandbox(own) => Some(own_session(own, id)?.org_id),
        Caller::User(user) => Some(user.org),
        Caller::Service { org, .. } => *org,
    };
    let session = match id {
        Some(id) => app.store.session_any(id).await?,
        None => None,
    };
    let theirs = |session: &SessionRecord| org.is_none_or(|org| session.org_id == org);
    session.filter(theirs).map(Arc::new).ok_or_else(ApiError::session_not_found)
}
