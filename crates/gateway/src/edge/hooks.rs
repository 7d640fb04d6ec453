//! `POST /v1/hooks/{automationId}`: signed requests that start runs. The signature is the credential.

use axum::Json;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use proto::http::{ErrorBody, HookReply};
use proto::{AutomationId, WebhookScheme};
use secrecy::{ExposeSecret as _, SecretString};
use serde::de::IgnoredAny;
use store::{Automation, Scope};

use super::params::Path;
use super::{ApiError, body};
use crate::app::AppState;
use crate::automations::{MAX_PAYLOAD, Rejection, verify};

/// The event that GitHub sends when a webhook is made. It asks for nothing.
const GITHUB_PING: &str = "ping";

/// Starts a run of the automation, unless the request was accepted before.
/// The request is signed as the automation's scheme says. A bad signature, an old one and an unknown automation get the
/// same answer. A signature of the scheme `generic` is valid once; GitHub and Linear repeat a delivery that they believe
/// to be lost, so it is accepted and not run again.
#[utoipa::path(post, path = "/v1/hooks/{automationId}", tag = "automations", security(()),
    params(("automationId" = AutomationId, Path)),
    request_body(content = serde_json::Value, description = "Any JSON"),
    responses((status = 200, body = HookReply, description = "Accepted before, or skipped"), (status = 202, body = HookReply),
        (status = 400, body = ErrorBody), (status = 401, body = ErrorBody)))]
pub(super) async fn receive(
    app: AppState,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, content) = request.into_parts();
    let limit = MAX_PAYLOAD.min(app.config.max_body_bytes);
    let content = body::read_anonymous(&app, &parts, content, limit).await?;
    let id: Option<AutomationId> = id.parse().ok();
    let (automation, delivery) = match authenticate(&app, id, &parts.headers, &content).await? {
        Ok(verified) => verified,
        Err(rejection) => return Err(count_refusal(id, rejection)),
    };
    let not_json = || ApiError::invalid_json("The body is not JSON");
    serde_json::from_slice::<IgnoredAny>(&content).map_err(|_| not_json())?;
    let payload = String::from_utf8(content.into()).map_err(|_| not_json())?;
    if delivery.event_name.as_deref() == Some(GITHUB_PING) {
        return Ok(Json(HookReply { event_id: None, run_id: None, duplicate: false }).into_response());
    }
    let hooked = app.automations.webhook(&automation, delivery, payload).await?;
    let scheme = automation.settings.webhook.as_ref().map(|webhook| webhook.scheme);
    if hooked.duplicate && scheme == Some(WebhookScheme::Generic) {
        return Err(count_refusal(Some(automation.id), Rejection::Replayed));
    }
    let started = hooked.run.is_some() && !hooked.duplicate;
    let status = if started { StatusCode::ACCEPTED } else { StatusCode::OK };
    let reply = HookReply { event_id: Some(hooked.event), run_id: hooked.run, duplicate: hooked.duplicate };
    Ok((status, Json(reply)).into_response())
}

/// Checks the signature. An unknown automation costs the same work, so that the time of the answer tells nothing.
async fn authenticate(
    app: &AppState,
    id: Option<AutomationId>,
    headers: &HeaderMap,
    content: &[u8],
) -> Result<Result<(Automation, crate::automations::Delivery), Rejection>, ApiError> {
    let automation = match id {
        Some(id) => app.store.automation_any(id).await?,
        None => None,
    };
    let (scheme, secret) = match secret(app, automation.as_ref()).await? {
        Some((scheme, secret)) => (scheme, Some(secret)),
        None => (WebhookScheme::Generic, None),
    };
    let key = secret.as_ref().map_or("no automation has this secret", |secret| secret.expose_secret());
    let verified = verify(scheme, key.as_bytes(), headers, content, app.clock.now());
    Ok(match (automation, secret) {
        (Some(automation), Some(_)) => verified.map(|delivery| (automation, delivery)),
        _ => Err(Rejection::Unknown),
    })
}

async fn secret(
    app: &AppState,
    automation: Option<&Automation>,
) -> Result<Option<(WebhookScheme, SecretString)>, ApiError> {
    let Some(automation) = automation else { return Ok(None) };
    let Some(webhook) = &automation.settings.webhook else { return Ok(None) };
    let value = app.vault.open_without_permit(automation.org_id, Scope::Org, &webhook.secret).await?;
    Ok(value.map(|value| (webhook.scheme, value)))
}

/// Counts and logs a refused request.
fn count_refusal(id: Option<AutomationId>, rejection: Rejection) -> ApiError {
    let reason = rejection.as_str();
    metrics::counter!("proliferate_webhooks_refused_total", "reason" => reason).increment(1);
    tracing::warn!(automation = id.map(tracing::field::display), reason, "a webhook was refused");
    ApiError::invalid_signature()
}
