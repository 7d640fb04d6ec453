//! `POST /proliferate/{id}/finish-setup`: saves what a setup session prepared, for the sessions of its configuration.

use axum::Json;
use proto::http::{ErrorBody, FinishSetup, FinishSetupReply};
use proto::{SessionId, text};

use super::auth::{Caller, SessionAccess};
use super::{ApiError, Body};
use crate::app::AppState;
use crate::sessions;

const MAX_NAME: usize = 100;

/// Saves the files of a setup session for its configuration, which becomes ready, and may rename it.
/// With `keepRunning: false` the session is stopped afterwards.
#[utoipa::path(post, path = "/proliferate/{id}/finish-setup", tag = "sessions", params(("id" = SessionId, Path)),
    request_body = FinishSetup,
    responses((status = 200, body = FinishSetupReply), (status = 400, body = ErrorBody),
        (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn finish(
    app: AppState,
    access: SessionAccess,
    Body(request): Body<FinishSetup>,
) -> Result<Json<FinishSetupReply>, ApiError> {
    let Caller::User(user) = &access.caller else { return Err(ApiError::user_required()) };
    if request.name.as_deref().is_some_and(|name| !text::is_line(name, MAX_NAME)) {
        return Err(ApiError::bad_request("name is one line of 1 to 100 characters"));
    }
    let requester = (user.id, &access.caller.requester()?);
    let finished = sessions::finish_setup(&app.sessions, &access.session, requester, request).await?;
    let (configuration_id, snapshot_id) = finished;
    Ok(Json(FinishSetupReply { configuration_id, snapshot_id, success: true }))
}
