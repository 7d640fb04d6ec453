//! `/v1/notifications`: the webhook that an organization gets notifications at when something waits for a person.

use axum::Json;
use proto::http::{
    ErrorBody, NotificationTest, Notifications as WireNotifications, OkReply, SetNotifications,
};
use proto::text;
use secrecy::SecretString;
use store::{NotificationSettings, Scope, StoreError};

use super::administer::{admin_event, administer};
use super::auth::User;
use super::{ApiError, Body};
use crate::app::AppState;
use crate::notifications::{SECRET_NAME, URL_NAME, test_message};
use gate::{AdminChange, Subject};

/// The lengths of the secret in characters.
const MIN_SECRET: usize = 16;
const MAX_SECRET: usize = 200;

/// Returns where notifications go, and how many were not delivered.
#[utoipa::path(get, path = "/v1/notifications", tag = "notifications",
    responses((status = 200, body = WireNotifications), (status = 404, body = ErrorBody)))]
pub(super) async fn get(app: AppState, admin: User) -> Result<Json<WireNotifications>, ApiError> {
    settings_body(&app, &admin, None).await
}

/// Sets where notifications go. If no secret was given and there was none, the answer shows a generated one, once.
#[utoipa::path(put, path = "/v1/notifications", tag = "notifications", request_body = SetNotifications,
    responses((status = 200, body = WireNotifications), (status = 400, body = ErrorBody)))]
pub(super) async fn set(
    app: AppState,
    admin: User,
    Body(SetNotifications { url, secret }): Body<SetNotifications>,
) -> Result<Json<WireNotifications>, ApiError> {
    let checked = app.notifications.webhook().check_url(&url);
    let checked = checked.map_err(|problem| ApiError::bad_request(format!("url: {problem}")))?;
    if secret
        .as_ref()
        .is_some_and(|text| !text::is_line(text, MAX_SECRET) || text.chars().count() < MIN_SECRET)
    {
        return Err(ApiError::bad_request("secret is one line of 16 to 200 characters"));
    }
    let generated = match &secret {
        None if app.vault.open_without_permit(admin.org, Scope::Org, SECRET_NAME).await?.is_none() => {
            Some(hex::encode(app.rng.bytes::<32>()))
        }
        _ => None,
    };
    // Stored before the setting that uses them. A crash in between leaves secrets that nothing uses.
    let secret = secret.or_else(|| generated.clone()).map(|value| (SECRET_NAME, value));
    let secrets: Vec<_> = [(URL_NAME, url)].into_iter().chain(secret).collect();
    let names = secrets.iter().map(|(name, _)| *name);
    let change = AdminChange::secrets("set", Scope::Org, names);
    let pairs: Vec<_> =
        secrets.iter().map(|(name, value)| ((*name).to_owned(), SecretString::from(value.clone()))).collect();
    let vault = app.vault.recorded(admin_event(&app, &admin, &change));
    vault.set_all(admin.org, Scope::Org, &pairs, Some(admin.id)).await?;
    let origin = checked.origin().ascii_serialization();
    let new =
        NotificationSettings { origin: origin.clone(), since: app.clock.now(), changed_by: Some(admin.id) };
    let store = administer(&app, &admin, Subject::Notification, "set", format!("to {origin}"));
    store.set_notification_settings(admin.org, new).await?;
    settings_body(&app, &admin, generated).await
}

/// Ends notifications. What was not delivered is dropped.
#[utoipa::path(delete, path = "/v1/notifications", tag = "notifications",
    responses((status = 200, body = OkReply), (status = 404, body = ErrorBody)))]
pub(super) async fn remove(app: AppState, admin: User) -> Result<Json<OkReply>, ApiError> {
    let store = administer(&app, &admin, Subject::Notification, "remove", "and their secrets");
    store.delete_notification_settings(admin.org).await?;
    for name in [URL_NAME, SECRET_NAME] {
        let change = AdminChange::secrets("remove", Scope::Org, [name]);
        let store = app.store.recorded(admin_event(&app, &admin, &change));
        match store.delete_secret(admin.org, Scope::Org, name).await {
            // Somebody removed it by hand.
            Ok(()) | Err(StoreError::Missing(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Json(OkReply::OK))
}

/// Sends a message that says nothing, and tells whether the receiver accepted it.
#[utoipa::path(post, path = "/v1/notifications/test", tag = "notifications",
    responses((status = 200, body = NotificationTest), (status = 404, body = ErrorBody)))]
pub(super) async fn test(app: AppState, admin: User) -> Result<Json<NotificationTest>, ApiError> {
    if app.store.notification_settings(admin.org).await?.is_none() {
        return Err(no_webhook_error());
    }
    let message = test_message(app.notifications.page());
    let sent = app.notifications.webhook().send(admin.org, &message).await;
    let error = sent.err().map(|error| error.to_string());
    Ok(Json(NotificationTest { ok: error.is_none(), error }))
}

fn no_webhook_error() -> ApiError {
    ApiError::not_found("No notifications are set")
}

async fn settings_body(
    app: &AppState,
    admin: &User,
    secret: Option<String>,
) -> Result<Json<WireNotifications>, ApiError> {
    let found = app.store.notification_settings(admin.org).await?.ok_or_else(no_webhook_error)?;
    let counts = app.store.notification_counts(admin.org).await?;
    Ok(Json(WireNotifications {
        origin: found.origin,
        since: found.since,
        changed_by: found.changed_by,
        pending: counts.pending,
        failed: counts.failed,
        last_error: counts.last_error,
        secret,
    }))
}
