//! What the routes for work in a session's sandbox share: the connection into it, paths, errors, and the record in the
//! ledger.

use axum::http::StatusCode;
use proto::SessionId;
use sandboxd::ClientError;
use sandboxd::protocol::{Code, Place};
use store::{Change, GateWrite};

use super::ApiError;
use super::administer::admin_event;
use super::auth::{Caller, SessionAccess, User};
use crate::app::AppState;
use crate::runtime::ConnectedSandbox;
use gate::{AdminChange, Subject};

/// Connects to the running sandbox of a session. Does not start it: watching a session does.
pub(super) async fn inside(app: &AppState, session: SessionId) -> Result<ConnectedSandbox, ApiError> {
    let hub = app.hubs.open(session).await?;
    let found = hub.inside().await?;
    found.map_err(|reason| ApiError::conflict(format!("The sandbox is not running: {reason}")))
}

/// The member who works in the sandbox. The access table lets nobody else.
pub(super) fn member(access: &SessionAccess) -> Result<&User, ApiError> {
    match &access.caller {
        Caller::User(user) => Ok(user),
        Caller::Service { .. } | Caller::Sandbox(_) => Err(ApiError::forbidden("Only members may do this")),
    }
}

/// Records in the ledger, before it happens, that a member reads something in a sandbox.
pub(super) async fn record_access(
    app: &AppState,
    access: &SessionAccess,
    operation: &'static str,
) -> Result<(), ApiError> {
    let details = format!("session {}", access.session.id);
    let change = AdminChange::new(Subject::Sandbox, operation, details);
    let event = admin_event(app, member(access)?, &change);
    app.store.gate_write(GateWrite::new(Change::Nothing, vec![event])).await?;
    Ok(())
}

/// A path as people write it: relative to the workspace, or to the home directory after `~/`. The supervisor refuses paths
/// that leave these directories, also by symlinks.
pub(super) fn place(path: &str) -> Result<Place, ApiError> {
    if path.len() > 4096 || path.contains('\0') || path.starts_with('/') {
        return Err(ApiError::bad_request(
            "path must be relative to the workspace, or begin with ~/ for the home directory",
        ));
    }
    match path.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => {
            Ok(Place::home(rest.trim_start_matches('/')))
        }
        _ => Ok(Place::workspace(path)),
    }
}

/// The answer for a refusal or failure of the supervisor. What it says is ours, and never quotes a path.
pub(super) fn supervisor_error(error: &ClientError) -> ApiError {
    let ClientError::Refused(refusal) = error else { return ApiError::no_sandbox(&error.to_string()) };
    let message = refusal.to_string();
    match refusal.code {
        Code::NotFound => ApiError::not_found("There is no such file or directory"),
        Code::TooLarge => ApiError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            proto::ErrorCode::PayloadTooLarge,
            "The file is larger than this route accepts",
        ),
        Code::BadRequest | Code::Escapes => ApiError::bad_request(message),
        _ => ApiError::conflict(message),
    }
}
