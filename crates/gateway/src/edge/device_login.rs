//! `/v1/device-logins`: logs in a device without a browser, such as the command line on another machine (RFC 8628).
//!
//! The device shows a code. A logged-in member enters it on the page `/device` or with `proliferate approve-login`, and
//! the device, which polls meanwhile, gets an API key of that member. Only hashes of the device code and of the key are
//! stored.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use axum::extract::ConnectInfo;
use axum::http::{HeaderMap, StatusCode};
use axum::{Extension, Json};
use clock::Rng;
use policy::{ActorClass, Claim};
use proto::http::KeyScope;
use proto::http::{
    DeviceOrg, DeviceToken, DeviceUser, ErrorBody, OkReply, PollDeviceLogin, StartDeviceLogin,
    StartedDeviceLogin, WaitingDeviceLogin,
};
use proto::{ApiKeyId, OrgId, UserId, text};
use secrecy::ExposeSecret as _;
use shares::Party;
use store::{DeviceLogin, NewApiKey, NewDeviceLogin};

use super::auth::User;
use super::params::Path;
use super::{ApiError, Body};
use crate::app::AppState;
use crate::identity::{Credential, CredentialKind, hash};
use gate::{AdminChange, Subject};

const CODE_LIFETIME: Duration = Duration::from_mins(15);
const POLL_INTERVAL: Duration = Duration::from_secs(5);
const MAX_NAME: usize = 80;
/// The most devices that may wait at the same time. Nobody has authenticated them, so they must not fill the disk.
const MAX_WAITING: i64 = 10_000;
/// What starting a login takes from the rate that all calls of this module share; an answer or a wrong code takes 1.
const START_COST: u32 = 5;

type Peer = Option<Extension<ConnectInfo<SocketAddr>>>;

/// Starts a login and returns its codes.
#[utoipa::path(post, path = "/v1/device-logins", tag = "identity", request_body = StartDeviceLogin, security(()),
    responses((status = 201, body = StartedDeviceLogin), (status = 409, body = ErrorBody)))]
pub(super) async fn start(
    app: AppState,
    peer: Peer,
    headers: HeaderMap,
    Body(request): Body<StartDeviceLogin>,
) -> Result<(StatusCode, Json<StartedDeviceLogin>), ApiError> {
    take_share(&app, peer, &headers, START_COST)?;
    let client_name = request.client_name;
    if !text::is_line(&client_name, MAX_NAME) {
        return Err(ApiError::bad_request(format!(
            "clientName is one line of 1 to {MAX_NAME} characters, without invisible ones"
        )));
    }
    let (device_code, user_code) = (hex::encode(app.rng.bytes::<32>()), user_code(&app.rng));
    let at = app.clock.now();
    let new = NewDeviceLogin {
        device_hash: hash(&device_code),
        user_code: user_code.clone(),
        client_name,
        at,
        expires_at: at + CODE_LIFETIME,
    };
    app.store.create_device_login(new, MAX_WAITING).await?;
    let base = app.site.url.as_str().trim_end_matches('/');
    let started = StartedDeviceLogin {
        verification_url: format!("{base}/device?code={user_code}"),
        user_code,
        device_code,
        expires_in: CODE_LIFETIME.as_secs(),
        interval: POLL_INTERVAL.as_secs(),
    };
    Ok((StatusCode::CREATED, Json(started)))
}

/// Returns the API key of a device whose login was approved, once. Before that the error is `authorization_pending`, and
/// later `access_denied`, `expired_token` or `invalid_device_code`.
#[utoipa::path(post, path = "/v1/device-logins/token", tag = "identity", request_body = PollDeviceLogin, security(()),
    responses((status = 200, body = DeviceToken), (status = 400, body = ErrorBody)))]
pub(super) async fn poll(
    app: AppState,
    peer: Peer,
    headers: HeaderMap,
    Body(request): Body<PollDeviceLogin>,
) -> Result<Json<DeviceToken>, ApiError> {
    let refuse = |error: &str, reason: &str| ApiError::bad_request(error).because(reason);
    let device = hash(&request.device_code);
    let login = app.store.device_login(&device).await?;
    let unknown = || refuse("invalid_device_code", "no login waits with this code");
    let Some(login) = login else {
        // A device that waits takes nothing: others at its address must not keep it from its key.
        take_share(&app, peer, &headers, 1)?;
        return Err(unknown());
    };
    if login.expires_at <= app.clock.now() {
        return Err(refuse("expired_token", "nobody approved it in time: start again"));
    }
    if login.denied_at.is_some() {
        return Err(refuse("access_denied", "the login was denied"));
    }
    let Some((org, user)) = login.approved_by() else {
        return Err(refuse("authorization_pending", "nobody has approved it yet"));
    };
    let key = Credential::new(CredentialKind::ApiKey, &app.rng);
    let id = create_key(&app, &device, &login, (org, user), &key).await?.ok_or_else(unknown)?;
    let member = app.store.member(org, user).await?.ok_or_else(unknown)?;
    let name = app.store.orgs().await?.into_iter().find(|one| one.id == org).map(|one| one.name);
    Ok(Json(DeviceToken {
        token: key.text.expose_secret().to_owned(),
        key_id: id,
        user: DeviceUser { id: user, email: member.email, name: member.name },
        org: DeviceOrg { id: org, name: name.unwrap_or_default() },
    }))
}

/// Exchanges the approved login for a key. `None` if another poll was faster.
async fn create_key(
    app: &AppState,
    device: &store::TokenHash,
    login: &DeviceLogin,
    (org_id, user_id): (OrgId, UserId),
    key: &Credential,
) -> Result<Option<ApiKeyId>, ApiError> {
    let at = app.clock.now();
    let id = ApiKeyId::from(app.rng.uuid(at));
    let change =
        AdminChange::new(Subject::ApiKey, "create", format!("key {id} of user {user_id}, device login"));
    let actor = Claim { actor_type: ActorClass::Human, actor_id: user_id.to_string() };
    let store = app.store.recorded(app.gate.admin_event(org_id, &actor, &change));
    let (name, hint) = (login.client_name.clone(), key.hint.clone());
    let scope = KeyScope::Full;
    let new = NewApiKey { id, org_id, user_id, name, scope, hint, key_hash: key.hash, at };
    Ok(store.redeem_device_login(device, new).await?.then_some(id))
}

/// Shows a waiting login to the member who is about to approve it.
#[utoipa::path(get, path = "/v1/device-logins/{userCode}", tag = "identity", params(("userCode" = String, Path)),
    responses((status = 200, body = WaitingDeviceLogin), (status = 404, body = ErrorBody)))]
pub(super) async fn show(
    app: AppState,
    user: User,
    Path(code): Path<String>,
) -> Result<Json<WaitingDeviceLogin>, ApiError> {
    let login = find_undecided_login(&app, &user, &code).await?;
    Ok(Json(WaitingDeviceLogin {
        user_code: login.user_code,
        client_name: login.client_name,
        created_at: login.created_at,
        expires_at: login.expires_at,
    }))
}

/// Approves a login: its device gets an API key that acts as the caller.
#[utoipa::path(post, path = "/v1/device-logins/{userCode}/approve", tag = "identity",
    params(("userCode" = String, Path)),
    responses((status = 200, body = OkReply), (status = 404, body = ErrorBody)))]
pub(super) async fn approve(
    app: AppState,
    user: User,
    Path(code): Path<String>,
) -> Result<Json<OkReply>, ApiError> {
    let login = find_undecided_login(&app, &user, &code).await?;
    app.store.decide_device_login(&login.user_code, Some(user.standing()), app.clock.now()).await?;
    Ok(Json(OkReply::OK))
}

/// Denies a login.
#[utoipa::path(post, path = "/v1/device-logins/{userCode}/deny", tag = "identity",
    params(("userCode" = String, Path)),
    responses((status = 200, body = OkReply), (status = 404, body = ErrorBody)))]
pub(super) async fn deny(
    app: AppState,
    user: User,
    Path(code): Path<String>,
) -> Result<Json<OkReply>, ApiError> {
    let login = find_undecided_login(&app, &user, &code).await?;
    app.store.decide_device_login(&login.user_code, None, app.clock.now()).await?;
    Ok(Json(OkReply::OK))
}

/// The undecided login with this code. Each lookup uses up a share, so that codes cannot be guessed.
async fn find_undecided_login(app: &AppState, user: &User, code: &str) -> Result<DeviceLogin, ApiError> {
    app.shares.device_logins.take(Party::user(user.id, user.org), 1)?;
    let code = code.trim().to_ascii_uppercase();
    let found = if text::is_line(&code, MAX_NAME) {
        app.store.device_login_by_user_code(&code, app.clock.now()).await?
    } else {
        None
    };
    found
        .filter(|login| login.denied_at.is_none() && login.approved_by().is_none())
        .ok_or_else(|| ApiError::not_found("No device waits with this code: it may have expired"))
}

/// Takes a share of the caller's address. Behind a proxy that is the address that the proxy has seen, so that one client
/// does not use up the share of all. A caller that invents such an address gets the share of a proxy, and no more.
fn take_share(app: &AppState, peer: Peer, headers: &HeaderMap, amount: u32) -> Result<(), ApiError> {
    let peer = peer.map(|Extension(ConnectInfo(address))| address.ip());
    let client = forwarded_for(headers);
    if client.is_some() {
        app.shares.proxied_device_logins.take(Party::address(peer), amount)?;
    }
    Ok(app.shares.device_logins.take(Party::address(client.or(peer)), amount)?)
}

/// The client's address by the proxy next to us, which adds it at the end; what is before that may be the client's own.
fn forwarded_for(headers: &HeaderMap) -> Option<IpAddr> {
    let last = headers.get_all("x-forwarded-for").iter().next_back()?.to_str().ok()?;
    let last = last.rsplit(',').next()?.trim();
    last.parse().ok().or_else(|| Some(last.parse::<SocketAddr>().ok()?.ip()))
}

/// A code that people can read aloud: four letters without I and O, and four digits.
fn user_code(rng: &Rng) -> String {
    const CODE_LETTERS: &[u8; 24] = b"ABCDEFGHJKLMNPQRSTUVWXYZ";
    let bytes = rng.bytes::<8>();
    let letter = |byte: &u8| char::from(CODE_LETTERS[usize::from(*byte) % CODE_LETTERS.len()]);
    let digit = |byte: &u8| char::from(b'0' + *byte % 10);
    let (letters, digits) = bytes.split_at(4);
    letters.iter().map(letter).chain(['-']).chain(digits.iter().map(digit)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_behind_a_proxy_is_the_one_that_the_proxy_has_added() {
        let seen = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append("x-forwarded-for", value.parse().unwrap());
            }
            forwarded_for(&headers).map(|address| address.to_string())
        };
        assert_eq!(seen(&["192.0.2.1"]).as_deref(), Some("192.0.2.1"));
        assert_eq!(seen(&["192.0.2.1, 192.0.2.2"]).as_deref(), Some("192.0.2.2"));
        assert_eq!(seen(&["192.0.2.1", "2001:db8::1"]).as_deref(), Some("2001:db8::1"));
        assert_eq!(seen(&["192.0.2.3:1234"]).as_deref(), Some("192.0.2.3"));
        for none in [&[][..], &["unknown"], &["192.0.2.1,"], &[""]] {
            assert_eq!(seen(none), None, "{none:?}");
        }
    }

    #[test]
    fn user_codes_are_four_unambiguous_letters_and_four_digits() {
        for seed in 0..50 {
            let code = user_code(&Rng::seeded(seed));
            let (letters, digits) = code.split_once('-').unwrap();
            assert!(
                letters.len() == 4 && letters.chars().all(|c| c.is_ascii_uppercase() && !"IO".contains(c)),
                "{code}"
            );
            assert!(digits.len() == 4 && digits.chars().all(|c| c.is_ascii_digit()), "{code}");
        }
    }
}
