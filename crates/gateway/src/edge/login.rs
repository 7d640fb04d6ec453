//! Login and logout of people: the code of a one-time link is exchanged for a cookie that scripts cannot read.

use std::time::Duration;

use axum::Json;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use proto::http::{ErrorBody, LoginRequest, Me, OkReply};
use secrecy::ExposeSecret as _;
use store::{NewLoginSession, UserCredential};
use url::Url;

use super::auth::{Caller, User, from_allowed_origin};
use super::{ApiError, Body};
use crate::app::AppState;
use crate::identity::{Credential, CredentialKind, hash};

/// How long a login is valid: a working day.
const LOGIN_LIFETIME: Duration = Duration::from_hours(12);

/// Exchanges the one-time code of a login link for a login cookie.
#[utoipa::path(post, path = "/v1/login", tag = "identity", request_body = LoginRequest, security(()),
    responses((status = 200, body = Me), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody)))]
pub(super) async fn login(
    app: AppState,
    headers: HeaderMap,
    Body(request): Body<LoginRequest>,
) -> Result<Response, ApiError> {
    // A foreign page must not log its visitors in as a user of its choice (login CSRF).
    if headers.contains_key(header::ORIGIN) && !from_allowed_origin(&headers, &app) {
        return Err(ApiError::forbidden("This origin may not log in"));
    }
    if CredentialKind::of(&request.code) != Some(CredentialKind::Login) {
        return Err(ApiError::invalid_token());
    }
    let now = app.clock.now();
    let redeemed = app.store.redeem_login_code(&hash(&request.code), now).await?;
    let (org, user) = redeemed.ok_or_else(ApiError::invalid_token)?;
    let member = app.store.member(org, user).await?.ok_or_else(ApiError::invalid_token)?;
    let cookie = Credential::new(CredentialKind::Cookie, &app.rng);
    let session = NewLoginSession {
        token_hash: cookie.hash,
        org_id: org,
        user_id: user,
        at: now,
        expires_at: now + LOGIN_LIFETIME,
    };
    app.store.create_login_session(session).await?;
    let me = Caller::User(User::new(member, UserCredential::Login(cookie.hash))).me();
    with_cookie(&app, Json(me), cookie.text.expose_secret(), LOGIN_LIFETIME)
}

/// Ends the login on the server, so that copies of the cookie become invalid too, and deletes the cookie.
#[utoipa::path(post, path = "/v1/logout", tag = "identity", responses((status = 200, body = OkReply)))]
pub(super) async fn logout(app: AppState, headers: HeaderMap, _: Caller) -> Result<Response, ApiError> {
    if let Some(token) = login_cookie(&app, &headers) {
        app.store.end_login_session(&hash(token), app.clock.now()).await?;
    }
    with_cookie(&app, Json(OkReply::OK), "", Duration::ZERO)
}

/// The name of the login cookie. It contains the port, because cookies are not separated by port and another gateway
/// may run on the same host. Browsers accept the prefix `__Host-` only over TLS from the host itself, so that no other
/// subdomain can set the cookie.
pub fn cookie_name(public_url: &Url) -> String {
    let prefix = if public_url.scheme() == "https" { "__Host-" } else { "" };
    let port = public_url.port().map(|port| format!("_{port}")).unwrap_or_default();
    format!("{prefix}proliferate_login{port}")
}

/// The value of the login cookie, if the browser sent one.
pub(super) fn login_cookie<'a>(app: &AppState, headers: &'a HeaderMap) -> Option<&'a str> {
    let wanted = cookie_name(&app.site.url);
    let all = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = all.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == wanted).map(|(_, value)| value)
}

fn with_cookie(
    app: &AppState,
    body: impl IntoResponse,
    value: &str,
    life: Duration,
) -> Result<Response, ApiError> {
    let secure = if app.site.url.scheme() == "https" { "; Secure" } else { "" };
    let cookie = format!(
        "{}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={}{secure}",
        cookie_name(&app.site.url),
        life.as_secs()
    );
    let mut response = body.into_response();
    let mut cookie = HeaderValue::from_str(&cookie).map_err(|error| ApiError::internal(error.to_string()))?;
    cookie.set_sensitive(true);
    response.headers_mut().insert(header::SET_COOKIE, cookie);
    Ok(response)
}
