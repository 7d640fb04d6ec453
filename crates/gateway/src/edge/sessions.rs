//! What can be asked about a session without waking it.

use axum::Json;
use proto::SessionStatus;
use proto::http::{ErrorBody, RunState, SessionStatusReply};

use super::ApiError;
use super::auth::{Caller, SessionAccess};

/// Whether a session still goes on. A service may ask by id alone.
#[utoipa::path(get, path = "/proliferate/sessions/{id}/status", tag = "sessions", params(("id" = proto::SessionId, Path)),
    responses((status = 200, body = SessionStatusReply), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(super) async fn status(access: SessionAccess) -> Result<Json<SessionStatusReply>, ApiError> {
    if matches!(access.caller, Caller::Sandbox(_)) {
        return Err(ApiError::forbidden("Sandboxes may not do this"));
    }
    let session = access.session;
    let over = session.status == SessionStatus::Stopped || session.ended_at.is_some();
    Ok(Json(SessionStatusReply {
        state: if over { RunState::Terminated } else { RunState::Running },
        status: session.status,
        terminated_at: session.ended_at,
        reason: session.stop_reason,
        sandbox_id: session.sandbox_id,
        sandbox_alive: None,
    }))
}
