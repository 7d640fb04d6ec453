//! Commands to a session over HTTP: prompt, cancel, heartbeat, eager start, rename, change the model, stop and delete.

use axum::Json;
use axum::http::{HeaderMap, StatusCode};
use proto::http::{
    ErrorBody, OkReply, PostMessage, Presence, PromptReply, RenameSession, SessionModel, StopQuery,
};
use proto::socket::MessageSource;

use super::auth::SessionAccess;
use super::params::{Query, idempotency_key};
use super::{ApiError, Body};
use crate::app::AppState;
use crate::sessions::{self, PromptDraft, RequestContext, Requester, Title};

/// The error text for a message that is not a prompt. Old clients look for it.
const NO_PROMPT: &str = "Invalid message type";

/// Queues a prompt. It is stored before this answers, and prompts become turns in the order of their arrival.
#[utoipa::path(post, path = "/proliferate/{id}/message", tag = "sessions",
    params(("id" = proto::SessionId, Path), ("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 255)),
    request_body = PostMessage,
    responses((status = 200, body = PromptReply), (status = 400, body = ErrorBody), (status = 402, body = ErrorBody),
        (status = 404, body = ErrorBody), (status = 409, body = ErrorBody), (status = 422, body = ErrorBody)))]
pub(super) async fn message(
    app: AppState,
    access: SessionAccess,
    headers: HeaderMap,
    request: Result<Body<PostMessage>, ApiError>,
) -> Result<Json<PromptReply>, ApiError> {
    let Body(request) = request.map_err(|error| error.shape_as(NO_PROMPT))?;
    let PostMessage::Prompt { content, user_id, source, images } = request;
    let requester = access.caller.requester()?;
    let sender = match &requester {
        Requester::User { id, .. } => id.to_string(),
        _ => user_id.ok_or_else(|| ApiError::bad_request("userId is required for service prompts"))?,
    };
    let draft = PromptDraft {
        content,
        images: images.unwrap_or_default(),
        sender,
        source: source.unwrap_or(MessageSource::Api),
    };
    let idempotency_key = idempotency_key(&headers)?;
    let context = RequestContext { org: access.session.org_id, requester, idempotency_key };
    let message_id = sessions::prompt(&app.sessions, &context, access.session.id, draft).await?;
    Ok(Json(PromptReply { ok: true, message_id }))
}

/// Cancels the running turn. Later prompts are not affected.
#[utoipa::path(post, path = "/proliferate/{id}/cancel", tag = "sessions", params(("id" = proto::SessionId, Path)),
    responses((status = 200, body = OkReply), (status = 404, body = ErrorBody)))]
pub(super) async fn cancel(app: AppState, access: SessionAccess) -> Result<Json<OkReply>, ApiError> {
    sessions::cancel(&app.sessions, access.session.id).await?;
    Ok(Json(OkReply::OK))
}

/// Marks the session as in use, so that it is not paused as idle.
#[utoipa::path(post, path = "/proliferate/{id}/heartbeat", tag = "sessions", params(("id" = proto::SessionId, Path)),
    responses((status = 200, body = OkReply), (status = 404, body = ErrorBody)))]
pub(super) async fn heartbeat(app: AppState, access: SessionAccess) -> Result<Json<OkReply>, ApiError> {
    let hub = app.hubs.get(access.session.id).ok_or_else(|| ApiError::not_found("Session not active"))?;
    hub.touch().await?;
    Ok(Json(OkReply::OK))
}

/// Lists who is watching the session on this instance.
#[utoipa::path(get, path = "/proliferate/{id}/presence", tag = "sessions", params(("id" = proto::SessionId, Path)),
    responses((status = 200, body = Presence), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(super) async fn presence(app: AppState, access: SessionAccess) -> Result<Json<Presence>, ApiError> {
    match app.hubs.get(access.session.id) {
        Some(hub) => Ok(Json(hub.presence().await?)),
        None => Ok(Json(Presence::default())),
    }
}

/// Boots a session in the background, and sends its initial prompt.
/// For services only: a session boots by itself when a person watches it.
#[utoipa::path(post, path = "/proliferate/{id}/eager-start", tag = "sessions", params(("id" = proto::SessionId, Path)),
    responses((status = 202, body = OkReply), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(super) async fn eager_start(
    app: AppState,
    access: SessionAccess,
) -> Result<(StatusCode, Json<OkReply>), ApiError> {
    app.hubs.open(access.session.id).await?.wake().await?;
    Ok((StatusCode::ACCEPTED, Json(OkReply::OK)))
}

#[utoipa::path(patch, path = "/proliferate/{id}", tag = "sessions", params(("id" = proto::SessionId, Path)),
    request_body = RenameSession,
    responses((status = 200, body = OkReply), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(super) async fn rename(
    app: AppState,
    access: SessionAccess,
    Body(request): Body<RenameSession>,
) -> Result<Json<OkReply>, ApiError> {
    let title = Title::parse(&request.title)?;
    sessions::rename(&app.sessions, access.session.org_id, access.session.id, title).await?;
    Ok(Json(OkReply::OK))
}

/// Changes the model of the session from its next prompt on. The answer has the id under which the model is stored.
#[utoipa::path(put, path = "/proliferate/{id}/model", tag = "sessions", params(("id" = proto::SessionId, Path)),
    request_body = SessionModel,
    responses((status = 200, body = SessionModel), (status = 400, body = ErrorBody), (status = 402, body = ErrorBody),
        (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub(super) async fn set_model(
    app: AppState,
    access: SessionAccess,
    Body(request): Body<SessionModel>,
) -> Result<Json<SessionModel>, ApiError> {
    let model_id = sessions::set_model(&app.sessions, access.session.id, &request.model_id).await?;
    Ok(Json(SessionModel { model_id }))
}

/// Saves the session's files, stops its sandbox and sets the outcome `completed`.
/// A later prompt resumes from the saved files. If saving fails, the session continues and the answer is 409, unless
/// `discard` is set: then the unsaved changes are lost.
#[utoipa::path(post, path = "/proliferate/{id}/stop", tag = "sessions",
    params(("id" = proto::SessionId, Path), StopQuery),
    responses((status = 200, body = OkReply), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn stop(
    app: AppState,
    access: SessionAccess,
    Query(query): Query<StopQuery>,
) -> Result<Json<OkReply>, ApiError> {
    sessions::stop(&app.sessions, access.session.id, query.discard).await?;
    Ok(Json(OkReply::OK))
}

/// Deletes a session, its sandbox and its conversation. Its entries in the ledger remain.
#[utoipa::path(delete, path = "/proliferate/{id}", tag = "sessions", params(("id" = proto::SessionId, Path)),
    responses((status = 200, body = OkReply), (status = 404, body = ErrorBody)))]
pub(super) async fn delete(app: AppState, access: SessionAccess) -> Result<Json<OkReply>, ApiError> {
    sessions::delete(&app.sessions, access.session.org_id, access.session.id, &access.caller.requester()?)
        .await?;
    Ok(Json(OkReply::OK))
}
