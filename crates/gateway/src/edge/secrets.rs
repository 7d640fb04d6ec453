//! `/v1/secrets`: lists, sets and removes secrets of the vault. Values are never returned.

use axum::Json;
use axum::http::StatusCode;
use proto::OrgId;
use proto::http::{
    ErrorBody, OkReply, SecretItem, SecretList, SecretOwner, SecretPurpose, SecretScope, SetSecret,
    SetSecretReply,
};
use store::{Scope, SecretEntry, StoreError};

use super::administer::{admin_event, administer_as};
use super::auth::User;
use super::params::{Path, Query};
use super::{ApiError, Body};
use crate::app::AppState;
use crate::vault::is_name;
use gate::AdminChange;

#[utoipa::path(get, path = "/v1/secrets", tag = "vault", responses((status = 200, body = SecretList)))]
pub(super) async fn list(app: AppState, user: User) -> Result<Json<SecretList>, ApiError> {
    let all = app.store.secrets(user.org).await?.into_iter();
    let secrets = all.filter(|entry| entry.purpose != SecretPurpose::File).map(item).collect();
    Ok(Json(SecretList { secrets }))
}

/// Stores a secret. An existing one of the same owner and name is replaced.
#[utoipa::path(put, path = "/v1/secrets/{name}", tag = "vault", request_body = SetSecret,
    params(("name" = String, Path, min_length = 1, max_length = 200)),
    responses((status = 200, body = SetSecretReply), (status = 201, body = SetSecretReply),
        (status = 400, body = ErrorBody), (status = 403, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn set(
    app: AppState,
    admin: User,
    Path(name): Path<String>,
    Body(request): Body<SetSecret>,
) -> Result<(StatusCode, Json<SetSecretReply>), ApiError> {
    let scope = scope(&request.owner)?;
    let event = admin_event(&app, &admin, &AdminChange::secrets("set", scope, [name.as_str()]));
    let vault = app.vault.recorded(event);
    if request.purpose == SecretPurpose::File {
        return Err(ApiError::bad_request(
            "purpose is platform or env; a file is set on its configuration or repository",
        ));
    }
    let pairs = [(name, request.value.into())];
    let created = vault.put(admin.org, scope, request.purpose, &pairs, Some(admin.id)).await? == 1;
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(SetSecretReply { created })))
}

#[utoipa::path(delete, path = "/v1/secrets/{name}", tag = "vault", params(("name" = String, Path), SecretOwner),
    responses((status = 200, body = OkReply), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(super) async fn remove(
    app: AppState,
    admin: User,
    Path(name): Path<String>,
    Query(owner): Query<SecretOwner>,
) -> Result<Json<OkReply>, ApiError> {
    let scope = scope(&owner)?;
    // An invalid name cannot exist, and the database rejects queries for some of them.
    if !is_name(&name) {
        return Err(StoreError::Missing("this secret").into());
    }
    let change = AdminChange::secrets("remove", scope, [name.as_str()]);
    administer_as(&app, &admin, &change).delete_secret(admin.org, scope, &name).await?;
    Ok(Json(OkReply::OK))
}

/// Refuses the name of a credential that the organization has not stored; otherwise only the first use would find out.
pub(super) async fn require_credential(
    app: &AppState,
    org: OrgId,
    field: &str,
    name: &str,
) -> Result<(), ApiError> {
    if !is_name(name) {
        let problem = "names a secret: letters, digits and _, at most 200 characters";
        return Err(ApiError::bad_request(format!("{field} {problem}")));
    }
    match app.store.sealed_secret(org, Scope::Org, SecretPurpose::Platform, name).await? {
        Some(_) => Ok(()),
        None => Err(ApiError::bad_request(format!(
            "{field}: the organization has no platform secret {name}: set it with `proliferate secrets set {name} -`"
        ))),
    }
}

pub(super) fn scope(owner: &SecretOwner) -> Result<Scope, ApiError> {
    match (owner.repo_id, owner.configuration_id) {
        (None, None) => Ok(Scope::Org),
        (Some(repo), None) => Ok(Scope::Repo(repo)),
        (None, Some(configuration)) => Ok(Scope::Configuration(configuration)),
        (Some(_), Some(_)) => Err(ApiError::bad_request("Name a repoId or a configurationId, not both")),
    }
}

fn item(entry: SecretEntry) -> SecretItem {
    let (scope, repo_id, configuration_id) = match entry.scope {
        Scope::Org => (SecretScope::Org, None, None),
        Scope::Repo(id) => (SecretScope::Repo, Some(id), None),
        Scope::Configuration(id) => (SecretScope::Configuration, None, Some(id)),
        Scope::Session(_) => (SecretScope::Session, None, None),
    };
    let owner = SecretOwner { repo_id, configuration_id };
    SecretItem {
        name: entry.key,
        purpose: entry.purpose,
        scope,
        owner,
        created_at: entry.created_at,
        updated_at: entry.updated_at,
    }
}
