//! `/v1/preferences`: which actions the agents of the caller's own sessions have.

use axum::Json;
use proto::http::{ActionPreference, ActionPreferenceList, ErrorBody, OkReply};
use store::{Chooser, DisabledAction};

use super::action_modes::{check_key, unknown_key};
use super::administer::administer;
use super::auth::User;
use super::{ApiError, Body};
use crate::app::AppState;
use crate::sources::ActionKeys;
use gate::Subject;

/// Lists what the caller has disabled.
#[utoipa::path(get, path = "/v1/preferences", tag = "actions", responses((status = 200, body = ActionPreferenceList)))]
pub(super) async fn list(app: AppState, user: User) -> Result<Json<ActionPreferenceList>, ApiError> {
    let disabled = app.store.disabled_actions(user.org, Chooser::User(user.id)).await?;
    let entry = |DisabledAction { source, action }| ActionPreference {
        source_id: source,
        action_id: action,
        enabled: false,
    };
    Ok(Json(ActionPreferenceList { preferences: disabled.into_iter().map(entry).collect() }))
}

/// Disables a source of actions, or one action, for the sessions that the caller creates, or enables it again.
#[utoipa::path(put, path = "/v1/preferences", tag = "actions", request_body = ActionPreference,
    responses((status = 200, body = OkReply), (status = 400, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn set(
    app: AppState,
    user: User,
    Body(ActionPreference { source_id, action_id, enabled }): Body<ActionPreference>,
) -> Result<Json<OkReply>, ApiError> {
    let key = policy::ModeKey::new(&source_id, action_id.as_deref().unwrap_or("*"));
    let key = key.ok().filter(|key| !key.as_str().chars().any(char::is_control));
    let key = key.ok_or_else(|| ApiError::bad_request("sourceId and actionId: use names of the catalog"))?;
    // What is enabled again may be gone. What is disabled must exist: a mistyped name would disable nothing.
    if !enabled && action_id.is_some() {
        check_key(&app, user.org, &key).await?;
    } else if !enabled {
        let known = ActionKeys::new(&app.store, None).check_source(user.org, &key).await;
        known.map_err(|error| unknown_key("sourceId", error))?;
    }
    let details = format!("{} {}", key.as_str(), if enabled { "enabled" } else { "disabled" });
    let store = administer(&app, &user, Subject::Preference, "set", details);
    let what = DisabledAction { source: source_id, action: action_id };
    store.set_action_enabled((user.org, user.id), what, enabled, app.clock.now()).await?;
    Ok(Json(OkReply::OK))
}
