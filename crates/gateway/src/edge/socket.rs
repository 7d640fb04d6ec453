//! Watching and steering a session over a `WebSocket`: first what there is, then everything as it happens.

mod watcher;

use axum::extract::ws::{WebSocket, WebSocketUpgrade};
use axum::extract::{FromRequestParts as _, Request};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse as _, Response};
use proto::http::ErrorBody;
use serde::Deserialize;

use super::ApiError;
use super::auth::{Caller, SessionAccess, UrlCaller};
use super::params::Query;
use crate::app::AppState;
use crate::server::ConnectionHeld;
use shares::Party;
use watcher::Visitor;

/// The largest frame of a client: a prompt with images.
const MAX_MESSAGE: usize = 32 * 1024 * 1024;
/// What is read of a client at once. Each connection holds as much, and each look for news clears it.
const READ_BUFFER: usize = 1024;
/// What is collected before it is written, and the most that may wait in one connection.
const WRITE_BUFFER: usize = 64 * 1024;
const MAX_WRITE_BUFFER: usize = 64 * 1024 * 1024;

/// Where a client wants to go on.
#[derive(Deserialize)]
struct Cursor {
    since: Option<i64>,
    passive: Option<String>,
}

/// A session's state, or with an upgrade its stream.
#[utoipa::path(get, path = "/proliferate/{id}", tag = "sessions",
    params(("id" = proto::SessionId, Path), ("since" = Option<i64>, Query), ("passive" = Option<String>, Query)),
    responses((status = 200, body = proto::http::SessionInfo), (status = 101, description = "The stream"),
        (status = 401, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(super) async fn session(app: AppState, request: Request) -> Result<Response, ApiError> {
    let (mut parts, _) = request.into_parts();
    if !is_upgrade(&parts.headers) {
        let access = SessionAccess::from_request_parts(&mut parts, &app).await?;
        return Ok(super::sessions::info(&access.session).into_response());
    }
    let UrlCaller { caller, session } = UrlCaller::from_request_parts(&mut parts, &app).await?;
    let Query(cursor) = Query::<Cursor>::from_request_parts(&mut parts, &app).await?;
    let held = parts.extensions.get::<ConnectionHeld>().cloned();
    let inbound = held.as_ref().map(|held| held.inbound.clone()).unwrap_or_default();
    inbound.count(app.shares.memory.take(Party::session(session.id, session.org_id), 0)?);
    let upgrade = WebSocketUpgrade::from_request_parts(&mut parts, &app)
        .await
        .map_err(|_| ApiError::bad_request("This is not a WebSocket handshake"))?;
    let user = match &caller {
        Caller::User(user) => Some(user.id),
        Caller::Service { .. } | Caller::Sandbox(_) => None,
    };
    let credential = app.live_credentials.open(&caller).ok_or_else(ApiError::invalid_token)?;
    let passive = cursor.passive.is_some_and(|text| text == "1" || text == "true");
    let (session, owns) = (session.id, caller.owns_session(&session));
    let visitor = Visitor { session, credential, kind: caller.kind(), owns, user, passive, inbound };
    let upgrade = upgrade
        .max_message_size(MAX_MESSAGE)
        .max_frame_size(MAX_MESSAGE)
        .read_buffer_size(READ_BUFFER)
        .write_buffer_size(WRITE_BUFFER)
        .max_write_buffer_size(MAX_WRITE_BUFFER);
    Ok(upgrade.on_upgrade(move |socket: WebSocket| async move {
        let _held = held;
        watcher::serve(app, visitor, cursor.since, socket).await;
    }))
}

/// The same with a slash at the end, which old clients may send for their sockets. Nothing else is there.
pub(super) async fn session_with_slash(app: AppState, request: Request) -> Result<Response, ApiError> {
    if is_upgrade(request.headers()) {
        session(app, request).await
    } else {
        Err(ApiError::not_found("Not found"))
    }
}

fn is_upgrade(headers: &HeaderMap) -> bool {
    headers.get(header::UPGRADE).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"))
}
