//! `POST /proliferate/{id}/finish-setup`: saves what a setup session prepared, for the sessions of its configuration.

use axum::Json;
use gate::Subject;
use proto::http::{ErrorBody, FinishSetup, FinishSetupReply};
use proto::{SessionId, SessionType, text};
use store::ConfigurationChange;

use super::administer::administer;
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
    let session = &access.session;
    let configuration = session.configuration_id.filter(|_| session.session_type == SessionType::Setup);
    let id =
        configuration.ok_or_else(|| ApiError::conflict("This is not a setup session of a configuration"))?;
    if request.name.as_deref().is_some_and(|name| !text::is_line(name, MAX_NAME)) {
        return Err(ApiError::bad_request("name is one line of 1 to 100 characters"));
    }
    let (org, session_id) = (session.org_id, session.id);
    let saved = sessions::save_snapshot(&app.sessions, (org, session_id), user.id).await;
    let (snapshot_id, _) =
        saved.map_err(|error| ApiError::conflict(format!("The setup was not saved: {error}")))?;
    if request.name.is_some() {
        let by = Some(user.id.to_string());
        let change = ConfigurationChange { name: request.name, by, ..ConfigurationChange::default() };
        let store = administer(&app, user, Subject::Configuration, "change", format!("configuration {id}"));
        store.update_configuration(org, id, change, app.clock.now()).await?;
    }
    if !request.keep_running {
        let stopped = app.hubs.open(session_id).await?.stop(false).await?;
        stopped
            .map_err(|reason| ApiError::conflict(format!("The setup was saved but not stopped: {reason}")))?;
    }
    Ok(Json(FinishSetupReply { configuration_id: id, snapshot_id, success: true }))
}
