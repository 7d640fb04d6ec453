//! What a member sees of the sandbox of a session without changing it: the difference to git, and the logs.

use axum::Json;
use axum::body::Body as ResponseBody;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use proto::http::{DiffQuery, ErrorBody, LogQuery, RepoDiff, SessionDiff};
use sandboxd::{ClientError, Sandboxd};

use super::ApiError;
use super::auth::SessionAccess;
use super::params::Query;
use super::sandbox::{inside, record_access, supervisor_error};
use crate::app::AppState;
use crate::git::WorkspaceRepo;
use crate::runtime::{AGENT_SERVICE, services};

const MAX_NAME: usize = 100;

/// Returns the changes in the repositories of the workspace, including files that git does not track yet.
#[utoipa::path(get, path = "/proliferate/{id}/diff", tag = "sandboxes",
    params(("id" = proto::SessionId, Path), DiffQuery),
    responses((status = 200, body = SessionDiff), (status = 400, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn diff(
    app: AppState,
    access: SessionAccess,
    Query(query): Query<DiffQuery>,
) -> Result<Json<SessionDiff>, ApiError> {
    let placed = app.store.session_repos(access.session.id).await?;
    let mut paths: Vec<String> = placed.into_iter().map(|placed| placed.workspace_path).collect();
    if paths.is_empty() {
        // An agent may have made a repository in an empty workspace.
        paths.push(".".to_owned());
    }
    let sandbox = inside(&app, access.session.id).await?;
    record_access(&app, &access, "read_diff").await?;
    let mut repositories = Vec::new();
    for path in paths {
        let Some(repo) = WorkspaceRepo::at(sandbox.clone(), Some(&path)) else { continue };
        let name = format!("/tmp/proliferate-diff-{}", hex::encode(app.rng.bytes::<8>()));
        let diff = repo.diff(query.base.as_deref(), &name).await;
        let diff =
            diff.map_err(|error| ApiError::conflict(format!("git cannot show the changes: {error}")))?;
        repositories.extend(diff.map(|diff| RepoDiff { path, diff }));
    }
    Ok(Json(SessionDiff { repositories }))
}

/// Streams the log of a service, or of the agent.
#[utoipa::path(get, path = "/proliferate/{id}/logs", tag = "sandboxes",
    params(("id" = proto::SessionId, Path), LogQuery),
    responses((status = 200, description = "The bytes", content_type = "application/octet-stream"),
        (status = 400, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn logs(
    app: AppState,
    access: SessionAccess,
    Query(query): Query<LogQuery>,
) -> Result<Response, ApiError> {
    let name = query.service.unwrap_or_else(|| AGENT_SERVICE.to_owned());
    if name.is_empty() || name.len() > MAX_NAME {
        return Err(ApiError::bad_request(format!("service is a name of 1 to {MAX_NAME} characters")));
    }
    let live = app.credentials.live.open(&access.caller);
    let live = live.ok_or_else(|| ApiError::forbidden("Only members may do this"))?;
    let slot = app.shares.requests.take(access.caller.party(), 1)?;
    let supervisor = inside(&app, access.session.id).await?.supervisor;
    let known = service_names(&supervisor).await?;
    let Some(name) = services::name_inside(&known, &name) else {
        let names: Vec<&str> = known.iter().map(|name| services::shown_name(name)).collect();
        return Err(ApiError::not_found(&format!(
            "There is no such service; there are: {}",
            names.join(", ")
        )));
    };
    record_access(&app, &access, "read_log").await?;
    let log = supervisor.logs(&name, query.follow).await.map_err(|error| supervisor_error(&error))?;
    let closing = app.process.closing.clone();
    let stopped = Box::pin(async move {
        tokio::select! {
            () = live.ended() => {}
            () = closing.cancelled_owned() => {}
        }
    });
    let pieces = stream::unfold((log, stopped, slot), |(mut log, mut stopped, slot)| async move {
        let piece = tokio::select! {
            piece = log.next() => piece.transpose()?,
            () = &mut stopped => Err(ClientError::InvalidAnswer("the credential has ended")),
        };
        Some((piece, (log, stopped, slot)))
    });
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream")),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    ];
    Ok((headers, ResponseBody::from_stream(pieces)).into_response())
}

async fn service_names(supervisor: &Sandboxd) -> Result<Vec<String>, ApiError> {
    let services = supervisor.service_list().await.map_err(|error| supervisor_error(&error))?;
    Ok(services.into_iter().map(|service| service.name).collect())
}
