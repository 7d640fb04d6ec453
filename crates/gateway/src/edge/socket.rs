//! `GET /proliferate/{id}`: the state of a session, or with a `WebSocket` upgrade its stream. A stream first sends the
//! conversation so far and then every event as it happens; the client can send commands.

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

/// The most bytes of a message from a client. Prompts with images are the largest.
const MAX_MESSAGE: usize = 32 * 1024 * 1024;
/// The size of the read buffer. It is small because every connection has one, and the library zeroes it before every
/// read.
const READ_BUFFER: usize = 1024;
/// The number of bytes that are buffered before they are written to the connection.
const WRITE_BUFFER: usize = 64 * 1024;
/// The most bytes that may be buffered in one connection.
const MAX_WRITE_BUFFER: usize = 64 * 1024 * 1024;

/// The query of a connection: `since` is the last frame that the client has, and a `passive` client does not wake the
/// session.
#[derive(Deserialize)]
struct Cursor {
    since: Option<i64>,
    passive: Option<String>,
}

/// Returns the state of a session, or its stream if the request is a WebSocket upgrade.
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
    let credential = app.credentials.live.open(&caller).ok_or_else(ApiError::invalid_token)?;
    let passive = cursor.passive.is_some_and(|text| text == "1" || text == "true");
    let owns = caller.owns_session(&session);
    let (session, org) = (session.id, session.org_id);
    let visitor = Visitor { session, org, credential, kind: caller.kind(), owns, user, passive, inbound };
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

/// The same route with a trailing slash, which old clients may use for their sockets. Plain requests get 404.
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
