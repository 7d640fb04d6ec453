//! `/v1/integrations`: the vendors that an organization has connected, and which of them its automations use.

use axum::Json;
use axum::http::StatusCode;
use proto::http::{
    AddIntegration, AutomationIntegrations, ChangeIntegration, ErrorBody, IntegrationEntry, IntegrationList,
    OkReply,
};
use proto::{AutomationId, IntegrationId, IntegrationStatus, text};
use store::Integration;

use super::administer::administer;
use super::auth::User;
use super::params::Path;
use super::secrets::require_credential;
use super::{ApiError, Body};
use crate::app::AppState;
use gate::Subject;

const MAX_NAME: usize = 100;
/// The most integrations that an automation may name.
const MAX_CHOSEN: usize = 100;

/// Lists the integrations of the organization.
#[utoipa::path(get, path = "/v1/integrations", tag = "integrations",
    responses((status = 200, body = IntegrationList)))]
pub(super) async fn list(app: AppState, user: User) -> Result<Json<IntegrationList>, ApiError> {
    let integrations = app.store.integrations(user.org).await?.into_iter().map(entry).collect();
    Ok(Json(IntegrationList { integrations }))
}

/// Connects a vendor with a token from the vault. Sessions that are created from now on can use its actions.
#[utoipa::path(post, path = "/v1/integrations", tag = "integrations", request_body = AddIntegration,
    responses((status = 201, body = IntegrationEntry), (status = 400, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn add(
    app: AppState,
    admin: User,
    Body(request): Body<AddIntegration>,
) -> Result<(StatusCode, Json<IntegrationEntry>), ApiError> {
    if !request.display_name.as_deref().is_none_or(|name| text::is_line(name, MAX_NAME)) {
        return Err(ApiError::bad_request("displayName is one line of at most 100 characters"));
    }
    require_credential(&app, admin.org, "secretKey", &request.secret_key).await?;
    let id: IntegrationId = app.rng.uuid(app.clock.now()).into();
    let new = Integration {
        id,
        org_id: admin.org,
        provider: request.provider,
        display_name: request.display_name,
        secret_key: request.secret_key,
        status: IntegrationStatus::Active,
        created_by: Some(admin.id),
        created_at: app.clock.now(),
    };
    let details = format!("integration {id}, {}", new.provider);
    let store = administer(&app, &admin, Subject::Integration, "add", details);
    store.create_integration(new.clone()).await?;
    Ok((StatusCode::CREATED, Json(entry(new))))
}

/// Enables or disables an integration.
#[utoipa::path(patch, path = "/v1/integrations/{integrationId}", tag = "integrations",
    params(("integrationId" = IntegrationId, Path)), request_body = ChangeIntegration,
    responses((status = 200, body = OkReply), (status = 404, body = ErrorBody)))]
pub(super) async fn change(
    app: AppState,
    admin: User,
    Path(id): Path<IntegrationId>,
    Body(request): Body<ChangeIntegration>,
) -> Result<Json<OkReply>, ApiError> {
    let details = format!("integration {id}, {}", request.status);
    let store = administer(&app, &admin, Subject::Integration, "change", details);
    store.set_integration_status(admin.org, id, request.status).await?;
    Ok(Json(OkReply::OK))
}

/// Removes an integration. Its secret stays in the vault.
#[utoipa::path(delete, path = "/v1/integrations/{integrationId}", tag = "integrations",
    params(("integrationId" = IntegrationId, Path)),
    responses((status = 200, body = OkReply), (status = 404, body = ErrorBody)))]
pub(super) async fn remove(
    app: AppState,
    admin: User,
    Path(id): Path<IntegrationId>,
) -> Result<Json<OkReply>, ApiError> {
    let store = administer(&app, &admin, Subject::Integration, "remove", format!("integration {id}"));
    store.delete_integration(admin.org, id).await?;
    Ok(Json(OkReply::OK))
}

/// Returns the integrations that sessions of an automation use.
#[utoipa::path(get, path = "/v1/automations/{automationId}/integrations", tag = "integrations",
    params(("automationId" = AutomationId, Path)),
    responses((status = 200, body = AutomationIntegrations), (status = 404, body = ErrorBody)))]
pub(super) async fn of_automation(
    app: AppState,
    user: User,
    Path(id): Path<AutomationId>,
) -> Result<Json<AutomationIntegrations>, ApiError> {
    let integration_ids = app.store.automation_integrations(user.org, id).await?;
    Ok(Json(AutomationIntegrations { integration_ids }))
}

/// Chooses the integrations that later sessions of an automation use.
#[utoipa::path(put, path = "/v1/automations/{automationId}/integrations", tag = "integrations",
    params(("automationId" = AutomationId, Path)), request_body = AutomationIntegrations,
    responses((status = 200, body = OkReply), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(super) async fn choose_for_automation(
    app: AppState,
    admin: User,
    Path(id): Path<AutomationId>,
    Body(AutomationIntegrations { integration_ids }): Body<AutomationIntegrations>,
) -> Result<Json<OkReply>, ApiError> {
    if integration_ids.as_ref().is_some_and(|ids| ids.len() > MAX_CHOSEN) {
        return Err(ApiError::bad_request(format!("integrationIds has at most {MAX_CHOSEN} entries")));
    }
    let details = format!("integrations of automation {id}");
    let store = administer(&app, &admin, Subject::Automation, "change", details);
    store.set_automation_integrations(admin.org, id, integration_ids).await?;
    Ok(Json(OkReply::OK))
}

fn entry(integration: Integration) -> IntegrationEntry {
    let Integration { id, provider, display_name, secret_key, status, created_at, .. } = integration;
    IntegrationEntry { id, provider, display_name, secret_key, status, created_at }
}
