//! A person comes in: the code of a one-time link becomes a cookie that scripts cannot read.

use std::time::Duration;

use axum::Json;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use proto::http::{ErrorBody, LoginRequest, Me, OkReply};
use secrecy::ExposeSecret as _;

use super::auth::{Caller, authenticate, from_allowed_origin};
use super::{ApiError, Body};
use crate::app::AppState;
use crate::identity::{CredentialKind, hash};

/// The name of the cookie.
pub(super) const LOGIN_COOKIE: &str = "proliferate_login";
/// A working day.
const LIFETIME: Duration = Duration::from_hours(12);

/// Exchanges the code of a login link, once, for a login cookie.
#[utoipa::path(post, path = "/v1/login", tag = "identity", request_body = LoginRequest, security(()),
    responses((status = 200, body = Me), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody)))]
pub(super) async fn login(
    app: AppState,
    headers: HeaderMap,
    Body(request): Body<LoginRequest>,
) -> Result<Response, ApiError> {
    // A foreign page must not log its visitors in as somebody of its choice.
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
    let token = app.issuer.user(user, org, &member.email, now, LIFETIME);
    let caller = authenticate(&app, token.expose_secret(), None).await?;
    with_cookie(&app, Json(caller.me()), token.expose_secret(), LIFETIME)
}

/// Takes the login cookie away.
#[utoipa::path(post, path = "/v1/logout", tag = "identity", responses((status = 200, body = OkReply)))]
pub(super) async fn logout(app: AppState, _: Caller) -> Result<Response, ApiError> {
    with_cookie(&app, Json(OkReply::OK), "", Duration::ZERO)
}

fn with_cookie(
    app: &AppState,
    body: impl IntoResponse,
    value: &str,
    life: Duration,
) -> Result<Response, ApiError> {
    let secure = if app.public_url.scheme() == "https" { "; Secure" } else { "" };
    let cookie = format!(
        "{LOGIN_COOKIE}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={}{secure}",
        life.as_secs()
    );
    let mut response = body.into_response();
    let mut cookie = HeaderValue::from_str(&cookie).map_err(|error| ApiError::internal(error.to_string()))?;
    cookie.set_sensitive(true);
    response.headers_mut().insert(header::SET_COOKIE, cookie);
    Ok(response)
}
