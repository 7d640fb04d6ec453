//! `/v1/action-modes`: which actions of its agents an organization allows, denies, or wants to be asked about.

use axum::Json;
use proto::http::{ActionModeEntry, ActionModeList, ErrorBody, OkReply, SetActionMode};
use store::OrgActionMode;

use super::auth::User;
use super::{ApiError, Body};
use crate::app::AppState;
use gate::{Governance, GovernanceError};

/// Lists the action modes that the organization has set.
#[utoipa::path(get, path = "/v1/action-modes", tag = "contract",
    responses((status = 200, body = ActionModeList)))]
pub(super) async fn modes(app: AppState, user: User) -> Result<Json<ActionModeList>, ApiError> {
    let entry = |OrgActionMode { key, mode, changed_by, changed_at, .. }| ActionModeEntry {
        key,
        mode,
        changed_by,
        changed_at,
    };
    let modes = app.store.org_action_modes(user.org).await?;
    Ok(Json(ActionModeList { modes: modes.into_iter().map(entry).collect() }))
}

/// Sets the mode of one action. It applies from the next call on, and is recorded in the ledger as a policy change.
#[utoipa::path(put, path = "/v1/action-modes", tag = "contract", request_body = SetActionMode,
    responses((status = 200, body = OkReply), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody)))]
pub(super) async fn set_mode(
    app: AppState,
    admin: User,
    Body(SetActionMode { key, mode }): Body<SetActionMode>,
) -> Result<Json<OkReply>, ApiError> {
    let key =
        key.parse().map_err(|error: policy::ModeKeyError| ApiError::bad_request(format!("key: {error}")))?;
    let operator = "gateway";
    let governance = Governance {
        settings: app.config.gate_settings(),
        store: &app.store,
        clock: &app.clock,
        rng: &app.rng,
        operator,
    };
    match governance.set_mode(admin.org, Some(admin.id), &key, mode).await {
        Ok(()) => Ok(Json(OkReply::OK)),
        Err(GovernanceError::Store(error)) => Err(error.into()),
        Err(error) => Err(ApiError::internal(error.to_string())),
    }
}
