//! The messages of a session in pages, newest page first. A stream starts with the newest messages only, and clients
//! load earlier ones here.

use axum::Json;
use proto::http::{ErrorBody, MessagePage, MessageQuery};
use proto::socket::Message;

use super::ApiError;
use super::auth::SessionAccess;
use super::params::Query;
use crate::app::AppState;

/// The most bytes of the messages on one page. A page has at least one message, even if that is larger.
const MAX_PAGE_BYTES: usize = 1024 * 1024;

/// Lists finished messages in order: the newest ones, or those before a given message. Does not wake the session.
#[utoipa::path(get, path = "/proliferate/{id}/messages", tag = "sessions",
    params(("id" = proto::SessionId, Path), MessageQuery),
    responses((status = 200, body = MessagePage), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(super) async fn page(
    app: AppState,
    access: SessionAccess,
    Query(query): Query<MessageQuery>,
) -> Result<Json<MessagePage>, ApiError> {
    let before = query.before.as_deref();
    let found = app.store.transcript_before(access.session.id, before, MAX_PAGE_BYTES).await?;
    let found = found.ok_or_else(|| ApiError::not_found("There is no such message in this session"))?;
    let messages = found.messages.into_iter().map(Message::from).collect();
    Ok(Json(MessagePage { messages, earlier: found.earlier }))
}
