//! `/v1/automations`: what an organization's automations do, and what triggers them.

use axum::Json;
use axum::http::StatusCode;
use chrono::{DateTime, Utc};
use proto::http::{
    AutomationEntry, AutomationList, ChangeAutomation, CreateAutomation, CronEntry, ErrorBody, OkReply,
    SetCron, SetWebhook, TriggerEventEntry, TriggerEventList, WebhookEntry,
};
use proto::{AutomationId, OrgId, text};
use secrecy::SecretString;
use store::{
    Automation, AutomationSettings, CronTrigger, NewAutomation, Scope, TriggerEvent, WebhookTrigger,
};

use super::administer::{admin_event, administer};
use super::auth::User;
use super::params::Path;
use super::workspaces::system_prompt;
use super::{ApiError, Body};
use crate::app::AppState;
use crate::automations::Schedule;
use crate::sessions;
use gate::{AdminChange, Subject};

const MAX_NAME: usize = 100;
const MAX_TEXT: usize = 65_536;
const MAX_SCHEDULE: usize = 200;
/// The lengths of a webhook's secret in characters.
const MIN_SECRET: usize = 16;
const MAX_SECRET: usize = 200;
/// The most trigger events in one answer.
const MAX_EVENTS: u32 = 100;

#[utoipa::path(get, path = "/v1/automations", tag = "automations", responses((status = 200, body = AutomationList)))]
pub(super) async fn list(app: AppState, user: User) -> Result<Json<AutomationList>, ApiError> {
    let found = app.store.automations(user.org).await?;
    let automations = found.into_iter().map(|automation| entry(&app, automation, None)).collect();
    Ok(Json(AutomationList { automations }))
}

/// Creates an automation. If it has a webhook and no secret was given, the answer shows a generated one, once.
#[utoipa::path(post, path = "/v1/automations", tag = "automations", request_body = CreateAutomation,
    responses((status = 201, body = AutomationEntry), (status = 400, body = ErrorBody)))]
pub(super) async fn create(
    app: AppState,
    admin: User,
    Body(request): Body<CreateAutomation>,
) -> Result<(StatusCode, Json<AutomationEntry>), ApiError> {
    let now = app.clock.now();
    let id: AutomationId = app.rng.uuid(now).into();
    let enabled = request.enabled.unwrap_or(true);
    let (webhook, secret) = webhook(&app, id, None, request.webhook)?;
    let model = stored_model(&app, request.model).await?;
    let settings = AutomationSettings {
        name: request.name,
        instructions: request.instructions,
        model,
        configuration_id: request.configuration_id,
        system_prompt: system_prompt(request.system_prompt)?,
        enabled,
        webhook,
        cron: request.cron.map(|cron| schedule(cron, enabled, now)).transpose()?,
    };
    check(&app, admin.org, &settings).await?;
    save_secret(&app, &admin, id, secret.as_ref()).await?;
    let new = NewAutomation { id, org_id: admin.org, settings, created_by: Some(admin.id), at: now };
    let details = format!("automation {id}");
    administer(&app, &admin, Subject::Automation, "create", details).create_automation(new).await?;
    let made = found(&app, admin.org, id).await?;
    Ok((StatusCode::CREATED, Json(entry(&app, made, secret.and_then(Secret::shown)))))
}

#[utoipa::path(get, path = "/v1/automations/{automationId}", tag = "automations",
    params(("automationId" = AutomationId, Path)),
    responses((status = 200, body = AutomationEntry), (status = 404, body = ErrorBody)))]
pub(super) async fn get(
    app: AppState,
    user: User,
    Path(id): Path<AutomationId>,
) -> Result<Json<AutomationEntry>, ApiError> {
    let automation = found(&app, user.org, id).await?;
    Ok(Json(entry(&app, automation, None)))
}

/// Changes an automation. Absent fields stay as they are, and `null` removes what may be absent.
#[utoipa::path(patch, path = "/v1/automations/{automationId}", tag = "automations",
    params(("automationId" = AutomationId, Path)), request_body = ChangeAutomation,
    responses((status = 200, body = AutomationEntry), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody)))]
pub(super) async fn change(
    app: AppState,
    admin: User,
    Path(id): Path<AutomationId>,
    Body(mut request): Body<ChangeAutomation>,
) -> Result<Json<AutomationEntry>, ApiError> {
    let known = found(&app, admin.org, id).await?;
    if let Some(model) = request.model.take() {
        request.model = Some(stored_model(&app, model).await?);
    }
    let (settings, secret) = apply_change(&app, id, known.settings.clone(), request)?;
    check(&app, admin.org, &settings).await?;
    save_secret(&app, &admin, id, secret.as_ref()).await?;
    let removed = known.settings.webhook.filter(|_| settings.webhook.is_none());
    let store = administer(&app, &admin, Subject::Automation, "change", format!("automation {id}"));
    store.update_automation(admin.org, id, known.revision, settings, app.clock.now()).await?;
    remove_secret(&app, &admin, removed).await?;
    let automation = found(&app, admin.org, id).await?;
    Ok(Json(entry(&app, automation, secret.and_then(Secret::shown))))
}

/// Deletes an automation with its runs. Refused while one of them has not ended.
#[utoipa::path(delete, path = "/v1/automations/{automationId}", tag = "automations",
    params(("automationId" = AutomationId, Path)),
    responses((status = 200, body = OkReply), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn remove(
    app: AppState,
    admin: User,
    Path(id): Path<AutomationId>,
) -> Result<Json<OkReply>, ApiError> {
    let known = found(&app, admin.org, id).await?;
    let store = administer(&app, &admin, Subject::Automation, "remove", format!("automation {id}"));
    store.delete_automation(admin.org, id).await?;
    remove_secret(&app, &admin, known.settings.webhook).await?;
    Ok(Json(OkReply::OK))
}

/// Lists what triggered the automation lately, newest first: also firings that were missed or skipped.
#[utoipa::path(get, path = "/v1/automations/{automationId}/trigger-events", tag = "automations",
    params(("automationId" = AutomationId, Path)),
    responses((status = 200, body = TriggerEventList), (status = 404, body = ErrorBody)))]
pub(super) async fn trigger_events(
    app: AppState,
    user: User,
    Path(id): Path<AutomationId>,
) -> Result<Json<TriggerEventList>, ApiError> {
    found(&app, user.org, id).await?;
    let events = app.store.trigger_events(user.org, id, MAX_EVENTS).await?;
    Ok(Json(TriggerEventList { trigger_events: events.into_iter().map(event_entry).collect() }))
}

pub(super) async fn found(app: &AppState, org: OrgId, id: AutomationId) -> Result<Automation, ApiError> {
    let found = app.store.automation(org, id).await?;
    found.ok_or_else(|| ApiError::not_found("This automation does not exist"))
}

/// A webhook's secret that has to be stored.
struct Secret {
    value: String,
    /// The gateway generated it, so the answer shows it.
    is_generated: bool,
}

impl Secret {
    fn shown(self) -> Option<String> {
        self.is_generated.then_some(self.value)
    }
}

/// The name of the vault's secret of an automation.
fn secret_name(id: AutomationId) -> String {
    format!("PROLIFERATE_WEBHOOK_{}", id.uuid().simple())
}

/// Checks a webhook, and decides whether its secret stays, is replaced or is generated.
fn webhook(
    app: &AppState,
    id: AutomationId,
    known: Option<WebhookTrigger>,
    request: Option<SetWebhook>,
) -> Result<(Option<WebhookTrigger>, Option<Secret>), ApiError> {
    let Some(SetWebhook { scheme, secret }) = request else { return Ok((None, None)) };
    let secret = match (secret, known) {
        (Some(value), _) => {
            if !text::is_line(&value, MAX_SECRET) || value.chars().count() < MIN_SECRET {
                return Err(ApiError::bad_request("webhook.secret is one line of 16 to 200 characters"));
            }
            Some(Secret { value, is_generated: false })
        }
        (None, Some(_)) => None,
        (None, None) => Some(Secret { value: hex::encode(app.rng.bytes::<32>()), is_generated: true }),
    };
    Ok((Some(WebhookTrigger { scheme, secret: secret_name(id) }), secret))
}

/// Stores the secret before the automation names it. A crash in between leaves a secret that nothing uses.
async fn save_secret(
    app: &AppState,
    admin: &User,
    id: AutomationId,
    secret: Option<&Secret>,
) -> Result<(), ApiError> {
    let Some(secret) = secret else { return Ok(()) };
    let name = secret_name(id);
    let change = AdminChange::new(Subject::Secret, "set", format!("{name}, webhook of automation {id}"));
    let vault = app.vault.recorded(admin_event(app, admin, &change));
    let value = SecretString::from(secret.value.clone());
    vault.set(admin.org, Scope::Org, &name, &value, Some(admin.id)).await?;
    Ok(())
}

async fn remove_secret(
    app: &AppState,
    admin: &User,
    webhook: Option<WebhookTrigger>,
) -> Result<(), ApiError> {
    let Some(WebhookTrigger { secret, .. }) = webhook else { return Ok(()) };
    let store = administer(app, admin, Subject::Secret, "remove", secret.clone());
    match store.delete_secret(admin.org, Scope::Org, &secret).await {
        // The secret may have been removed by hand.
        Ok(()) | Err(store::StoreError::Missing(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn schedule(cron: SetCron, enabled: bool, now: DateTime<Utc>) -> Result<CronTrigger, ApiError> {
    let SetCron { schedule, time_zone } = cron;
    let time_zone = time_zone.unwrap_or_else(|| "UTC".to_owned());
    if schedule.chars().count() > MAX_SCHEDULE {
        return Err(ApiError::bad_request("cron.schedule is at most 200 characters"));
    }
    let next = Schedule::parse(&schedule, &time_zone).and_then(|parsed| parsed.next_after(now));
    let next = next.map_err(|error| ApiError::bad_request(error.to_string()))?;
    Ok(CronTrigger { schedule, time_zone, next_at: enabled.then_some(next) })
}

/// The settings after a change. Enabling an automation does not make up for firings while it was disabled.
fn apply_change(
    app: &AppState,
    id: AutomationId,
    known: AutomationSettings,
    request: ChangeAutomation,
) -> Result<(AutomationSettings, Option<Secret>), ApiError> {
    let enabled = request.enabled.unwrap_or(known.enabled);
    let (webhook, secret) = match request.webhook {
        Some(wanted) => webhook(app, id, known.webhook, wanted)?,
        None => (known.webhook, None),
    };
    let cron = match (request.cron, known.cron) {
        (None, Some(cron)) if enabled == known.enabled => Some(cron),
        (None, Some(cron)) => {
            let again = SetCron { schedule: cron.schedule, time_zone: Some(cron.time_zone) };
            Some(schedule(again, enabled, app.clock.now())?)
        }
        (Some(Some(cron)), _) => Some(schedule(cron, enabled, app.clock.now())?),
        (Some(None), _) | (None, None) => None,
    };
    let settings = AutomationSettings {
        name: request.name.unwrap_or(known.name),
        instructions: request.instructions.unwrap_or(known.instructions),
        model: request.model.unwrap_or(known.model),
        configuration_id: request.configuration_id.unwrap_or(known.configuration_id),
        system_prompt: system_prompt(request.system_prompt.unwrap_or(known.system_prompt))?,
        enabled,
        webhook,
        cron,
    };
    Ok((settings, secret))
}

/// The id under which a model is stored. A model that nobody serves is refused.
async fn stored_model(app: &AppState, model: Option<String>) -> Result<Option<String>, ApiError> {
    let Some(text) = model else { return Ok(None) };
    Ok(Some(sessions::check_model(&app.sessions, "model", &text).await?))
}

/// Refuses settings that no run could use.
async fn check(app: &AppState, org: OrgId, settings: &AutomationSettings) -> Result<(), ApiError> {
    let wrong = |problem: &str| Err(ApiError::bad_request(problem));
    if !text::is_line(&settings.name, MAX_NAME) {
        return wrong("name is one line of 1 to 100 characters");
    }
    if settings.instructions.trim().is_empty() || settings.instructions.chars().count() > MAX_TEXT {
        return wrong("instructions has 1 to 65536 characters");
    }
    if let Some(id) = settings.configuration_id
        && app.store.configuration(org, id).await?.is_none()
    {
        return wrong("configurationId: this configuration does not exist");
    }
    Ok(())
}

fn entry(app: &AppState, automation: Automation, secret: Option<String>) -> AutomationEntry {
    let Automation { id, settings, created_by, created_at, updated_at, .. } = automation;
    let url = || format!("{}/v1/hooks/{id}", app.site.url.as_str().trim_end_matches('/'));
    AutomationEntry {
        id,
        name: settings.name,
        enabled: settings.enabled,
        instructions: settings.instructions,
        model: settings.model,
        configuration_id: settings.configuration_id,
        system_prompt: settings.system_prompt,
        webhook: settings.webhook.map(|webhook| WebhookEntry { scheme: webhook.scheme, url: url(), secret }),
        cron: settings.cron.map(|cron| CronEntry {
            schedule: cron.schedule,
            time_zone: cron.time_zone,
            next_at: cron.next_at,
        }),
        created_by,
        created_at,
        updated_at,
    }
}

fn event_entry(event: TriggerEvent) -> TriggerEventEntry {
    TriggerEventEntry {
        id: event.id,
        kind: event.kind,
        status: event.status,
        skip_reason: event.skip_reason,
        error: event.error,
        event_name: event.event_name,
        run_id: event.run_id,
        scheduled_for: event.scheduled_for,
        missed: event.missed.unsigned_abs(),
        received_at: event.received_at,
    }
}
