//! `/v1/keys`: the API keys of the caller's organization. A key is shown once, when it is created.

use axum::Json;
use axum::http::StatusCode;
use proto::http::{ApiKeyEntry, ApiKeyList, CreateKey, ErrorBody, NewKey, OkReply};
use proto::{ApiKeyId, text};
use secrecy::ExposeSecret as _;
use store::{ApiKey, NewApiKey};

use super::administer::administer;
use super::auth::User;
use super::params::Path;
use super::{ApiError, Body};
use crate::access::Act;
use crate::app::AppState;
use crate::identity::{Credential, CredentialKind};
use gate::Subject;

/// Lists API keys: all of the organization for an admin, their own for a member.
#[utoipa::path(get, path = "/v1/keys", tag = "identity", responses((status = 200, body = ApiKeyList)))]
pub(super) async fn list(app: AppState, user: User) -> Result<Json<ApiKeyList>, ApiError> {
    let all = app.store.keys(user.org).await?;
    let others = user.may(Act::ManageOthersKeys, false);
    let visible = all.into_iter().filter(|key| others || key.user_id == user.id);
    Ok(Json(ApiKeyList { keys: visible.map(entry).collect() }))
}

/// Creates an API key that acts as the caller, or one that only calls actions over MCP.
#[utoipa::path(post, path = "/v1/keys", tag = "identity", request_body = CreateKey,
    responses((status = 201, body = NewKey), (status = 400, body = ErrorBody)))]
pub(super) async fn create(
    app: AppState,
    user: User,
    Body(request): Body<CreateKey>,
) -> Result<(StatusCode, Json<NewKey>), ApiError> {
    let (name, scope) = (request.name.trim().to_owned(), request.scope);
    if !text::is_line(&name, 100) {
        return Err(ApiError::bad_request("name must be one line of 1 to 100 characters"));
    }
    let at = app.clock.now();
    let id = ApiKeyId::from(app.rng.uuid(at));
    let key = Credential::new(CredentialKind::ApiKey, &app.rng);
    let new = NewApiKey {
        id,
        org_id: user.org,
        user_id: user.id,
        name,
        scope,
        hint: key.hint,
        key_hash: key.hash,
        at,
    };
    administer(&app, &user, Subject::ApiKey, "create", format!("key {id} of scope {scope}"))
        .create_key(new)
        .await?;
    Ok((StatusCode::CREATED, Json(NewKey { id, key: key.text.expose_secret().to_owned() })))
}

/// Revokes an API key. Members can revoke only their own.
#[utoipa::path(delete, path = "/v1/keys/{keyId}", tag = "identity", params(("keyId" = ApiKeyId, Path)),
    responses((status = 200, body = OkReply), (status = 404, body = ErrorBody)))]
pub(super) async fn revoke(
    app: AppState,
    user: User,
    Path(key): Path<ApiKeyId>,
) -> Result<Json<OkReply>, ApiError> {
    let only_of = (!user.may(Act::ManageOthersKeys, false)).then_some(user.id);
    let store = administer(&app, &user, Subject::ApiKey, "revoke", format!("key {key}"));
    store.revoke_key(user.org, key, only_of, app.clock.now()).await?;
    Ok(Json(OkReply::OK))
}

fn entry(key: ApiKey) -> ApiKeyEntry {
    ApiKeyEntry {
        id: key.id,
        user_id: key.user_id,
        name: key.name,
        scope: key.scope,
        hint: key.hint,
        created_at: key.created_at,
        revoked_at: key.revoked_at,
    }
}
