//! Credentials in URLs, because browsers cannot send headers when they open a `WebSocket`.
//!
//! Our own clients use a ticket, which is valid once, for one user and one session. Old clients send their token in the
//! URL. It is accepted and never logged: the access log contains the route, not the URL.

use std::sync::Arc;

use axum::extract::{FromRequestParts, Query};
use axum::http::request::Parts;
use proto::SessionId;
use serde::Deserialize;
use store::{SessionRecord, Standing};

use super::super::ApiError;
use super::caller::identify;
use super::session::admit;
use super::{Caller, User, authenticate, session_in_path};
use crate::access::Act;
use crate::app::AppState;
use crate::identity::{CredentialKind, hash};

/// A caller whose credential is in `?token=` or, as everywhere, in a header; and the session in the path.
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
            None => identify(parts, app).await?,
            Some(token) if CredentialKind::of(&token) == Some(CredentialKind::Ticket) => {
                Caller::User(take(app, &token, id).await?)
            }
            Some(token) => authenticate(app, &token, None, parts.extensions.get()).await?,
        };
        caller.note();
        if matches!(caller, Caller::Sandbox(_)) {
            return Err(ApiError::invalid_token());
        }
        let session = admit(app, &caller, id).await?;
        caller.must(Act::Watch, caller.owns_session(&session))?;
        Ok(Self { caller, session })
    }
}

/// Redeems a socket ticket. A ticket for another session becomes invalid too, because it may have leaked.
async fn take(app: &AppState, token: &str, session: Option<SessionId>) -> Result<User, ApiError> {
    let owner = app.store.take_socket_ticket(&hash(token), app.clock.now()).await?;
    let owner =
        owner.filter(|owner| session == Some(owner.session_id)).ok_or_else(ApiError::invalid_token)?;
    let Standing { org_id, user_id, credential } = owner.standing;
    let member = app.store.member(org_id, user_id).await?.ok_or_else(ApiError::invalid_token)?;
    // The API key or login with which the ticket was created may have ended since.
    let role = app.store.role_now(owner.standing, app.clock.now()).await?;
    role.ok_or_else(ApiError::invalid_token)?;
    Ok(User::new(member, credential))
}
