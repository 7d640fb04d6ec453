//! Credentials in URLs, for `WebSocket`s of browsers, which cannot send headers.
//!
//! Our own clients use a ticket: one session, one user, once. Old clients put their token there; it is accepted and
//! never logged (the access log has the route, not the URL).

use std::sync::Arc;

use axum::extract::{FromRequestParts, Query};
use axum::http::request::Parts;
use proto::http::TokenSource;
use proto::{OrgId, SessionId, UserId};
use serde::Deserialize;
use store::SessionRecord;

use super::super::ApiError;
use super::session::admit;
use super::{Caller, User, authenticate, session_in_path};
use crate::app::AppState;
use crate::identity::{CredentialKind, hash};

/// A caller whose credential came in `?token=` (or, as everywhere, in a header), and the session of the path.
pub struct UrlCaller {
    pub caller: Caller,
    pub session: Arc<SessionRecord>,
}

#[derive(Deserialize)]
struct TokenQuery {
    token: Option<String>,
}

impl FromRequestParts<AppState> for UrlCaller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, ApiError> {
        let id = session_in_path(parts, app).await.and_then(|id| id.parse().ok());
        let query = Query::<TokenQuery>::from_request_parts(parts, app).await.ok();
        let caller = match query.and_then(|query| query.0.token) {
            None => Caller::from_request_parts(parts, app).await?,
            Some(token) if CredentialKind::of(&token) == Some(CredentialKind::Ticket) => {
                Caller::User(take(app, &token, id).await?)
            }
            Some(token) => authenticate(app, &token, None).await?,
        };
        caller.note();
        if matches!(caller, Caller::Sandbox(_)) {
            return Err(ApiError::invalid_token());
        }
        let session = admit(app, &caller, id).await?;
        Ok(Self { caller, session })
    }
}

/// Uses a socket ticket up. One that was made for another session is used up too: it was shown where it should not be.
async fn take(app: &AppState, token: &str, session: Option<SessionId>) -> Result<User, ApiError> {
    let owner = app.store.take_socket_ticket(&hash(token), app.clock.now()).await?;
    let owner =
        owner.filter(|owner| session == Some(owner.session_id)).ok_or_else(ApiError::invalid_token)?;
    member(app, owner.org_id, owner.user_id).await
}

async fn member(app: &AppState, org: OrgId, user: UserId) -> Result<User, ApiError> {
    let member = app.store.member(org, user).await?.ok_or_else(ApiError::invalid_token)?;
    Ok(User::new(member, TokenSource::User))
}
