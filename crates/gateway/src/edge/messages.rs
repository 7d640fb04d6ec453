//! What was said in a session, page by page and from the end: a stream begins with the newest of it only.

use axum::Json;
use proto::http::{ErrorBody, MessagePage, MessageQuery};
use proto::socket::Message;

use super::ApiError;
use super::auth::SessionAccess;
use super::params::Query;
use crate::app::AppState;

/// What the messages of a page hold together, unless the last of them is larger alone.
const PAGE: usize = 1024 * 1024;

/// Finished messages in order, the newest or those before one. Wakes nothing.
#[utoipa::path(get, path = "/proliferate/{id}/messages", tag = "sessions",
    params(("id" = proto::SessionId, Path), MessageQuery),
    responses((status = 200, body = MessagePage), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(super) async fn page(
    app: AppState,
    access: SessionAccess,
    Query(query): Query<MessageQuery>,
) -> Result<Json<MessagePage>, ApiError> {
    let before = query.before.as_deref();
    let found = app.store.transcript_before(access.session.id, before, PAGE).await?;
    let found = found.ok_or_else(|| ApiError::not_found("There is no such message in this session"))?;
    let messages = found.messages.into_iter().map(Message::from).collect();
    Ok(Json(MessagePage { messages, earlier: found.earlier }))
}
