//! `/proliferate/{id}/actions`: the actions of a session, for its agent and for people.

use axum::Json;
use proto::SessionId;
use proto::http::{ActionCatalog, ActionGuide, ErrorBody};
use store::Chooser;

use super::ApiError;
use super::auth::{Caller, SessionAccess};
use super::params::Path;
use crate::access::{Act, may};
use crate::actions::Audience;
use crate::app::AppState;

/// Lists the actions that the session's agent can use now. A source that does not answer is left out, and
/// so is what lanes prohibit for the agent; admins see why.
#[utoipa::path(get, path = "/proliferate/{id}/actions/available", tag = "actions", params(("id" = SessionId, Path)),
    responses((status = 200, body = ActionCatalog), (status = 404, body = ErrorBody)))]
pub(super) async fn available(app: AppState, access: SessionAccess) -> Result<Json<ActionCatalog>, ApiError> {
    let catalog = app.actions.available(&audience(&access)).await?;
    let operates = may(Act::ManageOrganization, access.caller.kind(), false);
    let unavailable = if operates { catalog.unavailable } else { Vec::new() };
    Ok(Json(ActionCatalog { unavailable, ..catalog }))
}

/// Returns how to use a source of actions, in Markdown.
#[utoipa::path(get, path = "/proliferate/{id}/actions/guide/{integration}", tag = "actions",
    params(("id" = SessionId, Path), ("integration" = String, Path)),
    responses((status = 200, body = ActionGuide), (status = 404, body = ErrorBody)))]
pub(super) async fn guide(
    app: AppState,
    access: SessionAccess,
    Path((_, integration)): Path<(String, String)>,
) -> Result<Json<ActionGuide>, ApiError> {
    let guide = app.actions.guide(&audience(&access), &integration).await?;
    let guide = guide.ok_or_else(|| ApiError::not_found("Unknown integration"))?;
    Ok(Json(ActionGuide { integration, guide }))
}

/// The catalog is that of the session's agent, with a person's own preferences, or else those of the session's creator.
fn audience(access: &SessionAccess) -> Audience {
    let chooser = match &access.caller {
        Caller::User(user) => Chooser::User(user.id),
        Caller::Service { .. } | Caller::Sandbox(_) => Chooser::CreatorOf(access.session.id),
    };
    Audience::of_session(&access.session, chooser)
}
