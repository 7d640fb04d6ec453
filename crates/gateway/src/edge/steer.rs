//! Commands to a session over HTTP: prompt, cancel, heartbeat, eager start, rename, stop and delete.

use axum::Json;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use proto::http::{ErrorBody, OkReply, PostMessage, Presence, PromptReply, RenameSession, StopQuery};
use proto::socket::MessageSource;
use proto::{BillingCode, text};

use super::auth::{Caller, SessionAccess};
use super::idempotent::Keyed;
use super::params::Query;
use super::{ApiError, Body, idempotent};
use crate::app::AppState;
use crate::hub::{Hub, PromptOutcome, PromptRequest, Refusal};

/// The most characters of a title.
const MAX_TITLE: usize = 200;
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
) -> Result<Response, ApiError> {
    let Body(request) = request.map_err(|error| error.shape_as(NO_PROMPT))?;
    let PostMessage::Prompt { content, user_id, source, images } = request.clone();
    let sender = match &access.caller {
        Caller::User(user) => user.id.to_string(),
        Caller::Service { .. } => {
            user_id.ok_or_else(|| ApiError::bad_request("userId is required for service prompts"))?
        }
        Caller::Sandbox(_) => return Err(ApiError::user_required()),
    };
    if content.trim().is_empty() {
        return Err(ApiError::bad_request("content must not be empty"));
    }
    let source = source.or(Some(MessageSource::Api));
    let session = access.session.id;
    let mut prompt = PromptRequest::new(content, images.unwrap_or_default(), Some(sender), source);
    if let Some(key) = idempotent::key(&headers)? {
        prompt = prompt.once(session, &format!("{} {key}", access.caller.identity()));
    }
    let work = {
        let app = app.clone();
        async move {
            let hub = app.hubs.open(session).await?;
            match hub.prompt(prompt).await? {
                PromptOutcome::Queued { id } => Ok(PromptReply { ok: true, message_id: id }),
                PromptOutcome::Full => {
                    Err(ApiError::too_many("Too many prompts wait: let some be answered first"))
                }
                PromptOutcome::Refused(refusal) => Err(refused(&refusal)),
            }
        }
    };
    let route = format!("POST /proliferate/{session}/message");
    let keyed = Keyed { org: access.session.org_id, caller: access.caller.identity(), route: &route };
    Box::pin(idempotent::once(&app, keyed, &headers, &request, StatusCode::OK, work)).await
}

/// Cancels the running turn. Later prompts are not affected.
#[utoipa::path(post, path = "/proliferate/{id}/cancel", tag = "sessions", params(("id" = proto::SessionId, Path)),
    responses((status = 200, body = OkReply), (status = 404, body = ErrorBody)))]
pub(super) async fn cancel(app: AppState, access: SessionAccess) -> Result<Json<OkReply>, ApiError> {
    let id = access.session.id;
    // A session that is not loaded has no running turn. But after a restart it may still have queued prompts that no
    // instance has resumed yet.
    if app.hubs.is_alive(id) || !app.store.queued_prompts(id).await?.is_empty() {
        let hub = open(&app, &access).await?;
        hub.cancel().await?;
    }
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
    let hub = open(&app, &access).await?;
    hub.wake().await?;
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
    let title = title(&request.title)?;
    app.store.rename_session(access.session.org_id, access.session.id, &title).await?;
    if let Some(hub) = app.hubs.get(access.session.id) {
        hub.set_title(title).await?;
    }
    Ok(Json(OkReply::OK))
}

/// Trims and checks the title of a session.
pub(super) fn title(given: &str) -> Result<String, ApiError> {
    let title = given.trim();
    if text::is_line(title, MAX_TITLE) {
        Ok(title.to_owned())
    } else {
        Err(ApiError::bad_request(format!("A title is one line of 1 to {MAX_TITLE} characters")))
    }
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
    let hub = open(&app, &access).await?;
    hub.stop(query.discard).await?.map_err(|reason| {
        ApiError::conflict(format!(
            "The session was not stopped, because its files could not be saved: {reason}. `?discard=true` (`session stop \
             --discard`) gives up what was not saved"
        ))
    })?;
    Ok(Json(OkReply::OK))
}

/// Deletes a session, its sandbox and its conversation. Its entries in the ledger remain.
#[utoipa::path(delete, path = "/proliferate/{id}", tag = "sessions", params(("id" = proto::SessionId, Path)),
    responses((status = 200, body = OkReply), (status = 404, body = ErrorBody)))]
pub(super) async fn delete(app: AppState, access: SessionAccess) -> Result<Json<OkReply>, ApiError> {
    let hub = open(&app, &access).await?;
    let by = match &access.caller {
        Caller::User(user) => user.id.to_string(),
        other => other.identity(),
    };
    hub.delete(by).await?;
    Ok(Json(OkReply::OK))
}

async fn open(app: &AppState, access: &SessionAccess) -> Result<Hub, ApiError> {
    Ok(app.hubs.open(access.session.id).await?)
}

fn refused(refusal: &Refusal) -> ApiError {
    let code = match refusal {
        Refusal::Sessions { .. } => BillingCode::ConcurrentLimit,
        Refusal::Budget(_) => BillingCode::NoCredits,
        Refusal::NoPrice(_) => BillingCode::BillingNotConfigured,
    };
    ApiError::billing(code, &refusal.to_string())
}
