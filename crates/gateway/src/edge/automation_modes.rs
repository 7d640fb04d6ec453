//! `/v1/automations/{automationId}/action-modes`: the action modes of an automation's sessions.

use axum::Json;
use gate::{AdminChange, Subject};
use proto::AutomationId;
use proto::http::{AutomationModes, ErrorBody, ModeReply, OkReply, SetAutomationMode};

use super::action_modes::{check_key, parse_key, parse_setting};
use super::administer::{administer, administer_as};
use super::auth::User;
use super::params::Path;
use super::{ApiError, Body};
use crate::app::AppState;

/// Lists the modes of an automation.
#[utoipa::path(get, path = "/v1/automations/{automationId}/action-modes", tag = "automations",
    params(("automationId" = AutomationId, Path)),
    responses((status = 200, body = AutomationModes), (status = 404, body = ErrorBody)))]
pub(super) async fn list(
    app: AppState,
    user: User,
    Path(id): Path<AutomationId>,
) -> Result<Json<AutomationModes>, ApiError> {
    let modes = app.store.automation_modes(user.org, id).await?;
    let modes = modes.ok_or_else(|| ApiError::not_found("This automation does not exist"))?;
    Ok(Json(AutomationModes { modes }))
}

/// Sets the mode of one action in the sessions of an automation, from the next call on.
#[utoipa::path(put, path = "/v1/automations/{automationId}/action-modes", tag = "automations",
    params(("automationId" = AutomationId, Path)), request_body = SetAutomationMode,
    responses((status = 200, body = ModeReply), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody)))]
pub(super) async fn set(
    app: AppState,
    admin: User,
    Path(id): Path<AutomationId>,
    Body(SetAutomationMode { key, mode }): Body<SetAutomationMode>,
) -> Result<Json<ModeReply>, ApiError> {
    let key = parse_key(&key)?;
    let setting = parse_setting(mode.clone()).await?;
    let warning = check_key(&app, admin.org, &key).await?;
    let store = administer_as(&app, &admin, &AdminChange::automation_mode(id, &key, &setting));
    store.set_automation_mode(admin.org, id, key.as_str(), Some(mode)).await?;
    Ok(Json(ModeReply { ok: true, warning }))
}

/// Removes the mode of one action, so that the organization's mode counts again.
#[utoipa::path(delete, path = "/v1/automations/{automationId}/action-modes/{key}", tag = "automations",
    params(("automationId" = AutomationId, Path), ("key" = String, Path)),
    responses((status = 200, body = OkReply), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(super) async fn unset(
    app: AppState,
    admin: User,
    Path((id, key)): Path<(AutomationId, String)>,
) -> Result<Json<OkReply>, ApiError> {
    let key = parse_key(&key)?;
    let details = format!("automation {id}, mode of {} removed", key.as_str());
    let store = administer(&app, &admin, Subject::Automation, "change", details);
    store.set_automation_mode(admin.org, id, key.as_str(), None).await?;
    Ok(Json(OkReply::OK))
}
