//! `/v1/action-modes`: which actions of its agents an organization allows, denies, or wants to be asked about.

use axum::Json;
use gate::{Governance, GovernanceError, NewMode};
use policy::{ModeKey, ModeSetting};
use proto::http::{ActionModeEntry, ActionModeList, ErrorBody, ModeReply, OkReply, SetActionMode};
use proto::{InvocationId, InvocationStatus, OrgId};
use serde_json::Value;
use store::OrgActionMode;

use super::auth::User;
use super::params::Path;
use super::{ApiError, Body};
use crate::app::AppState;
use crate::sources::{ActionKeyError, ActionKeys};

/// Lists the action modes that the organization has set.
#[utoipa::path(get, path = "/v1/action-modes", tag = "contract",
    responses((status = 200, body = ActionModeList)))]
pub(super) async fn modes(app: AppState, user: User) -> Result<Json<ActionModeList>, ApiError> {
    let modes = app.store.org_action_modes(user.org).await?;
    Ok(Json(ActionModeList { modes: modes.into_iter().map(entry).collect() }))
}

fn entry(set: OrgActionMode) -> ActionModeEntry {
    let mode = set.value();
    let OrgActionMode { key, invocation, changed_by, changed_at, .. } = set;
    ActionModeEntry { key, mode, invocation_id: invocation, changed_by, changed_at }
}

/// Sets the mode of one action. It applies from the next call on, and is recorded in the ledger as a policy change.
#[utoipa::path(put, path = "/v1/action-modes", tag = "contract", request_body = SetActionMode,
    responses((status = 200, body = ModeReply), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody),
        (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn set_mode(
    app: AppState,
    admin: User,
    Body(SetActionMode { key, mode, invocation_id }): Body<SetActionMode>,
) -> Result<Json<ModeReply>, ApiError> {
    let key = parse_key(&key)?;
    let setting = parse_setting(mode).await?;
    let warning = check_key(&app, admin.org, &key).await?;
    if let Some(id) = invocation_id {
        check_approved(&app, admin.org, id, &key).await?;
    }
    let new = NewMode { by: Some(admin.id), key: &key, setting: &setting, invocation: invocation_id };
    governance_result(governance(&app).set_mode(admin.org, new).await)?;
    Ok(Json(ModeReply { ok: true, warning }))
}

/// Removes the mode of one action, so that it follows from the action's risk again.
#[utoipa::path(delete, path = "/v1/action-modes/{key}", tag = "contract", params(("key" = String, Path)),
    responses((status = 200, body = OkReply), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody),
        (status = 404, body = ErrorBody)))]
pub(super) async fn unset_mode(
    app: AppState,
    admin: User,
    Path(key): Path<String>,
) -> Result<Json<OkReply>, ApiError> {
    let key = parse_key(&key)?;
    governance_result(governance(&app).unset_mode(admin.org, Some(admin.id), &key).await)?;
    Ok(Json(OkReply::OK))
}

pub(super) fn parse_key(key: &str) -> Result<ModeKey, ApiError> {
    key.parse().map_err(|error: policy::ModeKeyError| ApiError::bad_request(format!("key: {error}")))
}

/// Compiling the patterns of a setting and checking its examples takes too long for an async worker.
pub(super) async fn parse_setting(mode: Value) -> Result<ModeSetting, ApiError> {
    let parsed = tokio::task::spawn_blocking(move || ModeSetting::parse(&mode)).await;
    let parsed = parsed.map_err(|error| ApiError::internal(error.to_string()))?;
    parsed.map_err(|error| ApiError::bad_request(format!("mode: {error}")))
}

/// Refuses to set a mode for an action that cannot exist. Removing one is not checked: its action may be gone.
pub(super) async fn check_key(app: &AppState, org: OrgId, key: &ModeKey) -> Result<Option<String>, ApiError> {
    let policy = app.gate.policy();
    let checked = ActionKeys::new(&app.store, Some(&policy)).asking(&app.connectors).check(org, key).await;
    checked.map_err(|error| unknown_key("key", error))
}

/// The answer to a request whose field names no action.
pub(super) fn unknown_key(field: &str, error: ActionKeyError) -> ApiError {
    match error {
        ActionKeyError::Unknown(problem) => ApiError::bad_request(format!("{field}: {problem}")),
        ActionKeyError::Store(error) => error.into(),
    }
}

/// A mode names only an invocation of the same action that a person has approved.
async fn check_approved(app: &AppState, org: OrgId, id: InvocationId, key: &ModeKey) -> Result<(), ApiError> {
    let found = app.store.invocation(org, id).await?;
    let found = found.ok_or_else(|| ApiError::not_found("Invocation not found"))?;
    let same = ModeKey::new(&found.integration, &found.action).is_ok_and(|own| own == *key);
    let status = found.status(app.clock.now());
    let undecided = found.decided_by.is_none() || status == InvocationStatus::Denied;
    if same && !undecided {
        return Ok(());
    }
    Err(ApiError::conflict("invocationId: only an approved invocation of the same action can be named"))
}

fn governance(app: &AppState) -> Governance<'_> {
    Governance {
        settings: app.config.gate_settings(),
        store: &app.store,
        clock: &app.clock,
        rng: &app.rng,
        operator: "gateway",
    }
}

fn governance_result(result: Result<(), GovernanceError>) -> Result<(), ApiError> {
    result.map_err(|error| match error {
        GovernanceError::Store(error) => error.into(),
        error => ApiError::internal(error.to_string()),
    })
}
