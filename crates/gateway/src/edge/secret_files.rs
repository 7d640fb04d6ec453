//! `/v1/secret-files`: files of the vault that sandboxes get, such as keys and certificates. Contents are never returned.

use std::path::Path;

use axum::Json;
use axum::http::StatusCode;
use gate::AdminChange;
use proto::http::{
    ErrorBody, OkReply, SecretFileItem, SecretFileList, SecretFileQuery, SecretOwner, SecretPurpose,
    SetSecretFile, SetSecretReply,
};
use store::{Scope, SecretEntry, StoreError};

use super::administer::{admin_event, administer_as};
use super::auth::User;
use super::params::Query;
use super::secrets::scope;
use super::{ApiError, Body, environment};
use crate::app::AppState;
use crate::runtime::env_files;

#[utoipa::path(get, path = "/v1/secret-files", tag = "vault", responses((status = 200, body = SecretFileList)))]
pub(super) async fn list(app: AppState, user: User) -> Result<Json<SecretFileList>, ApiError> {
    let all = app.store.secrets(user.org).await?.into_iter();
    let files = all.filter(|entry| entry.purpose == SecretPurpose::File).map(item).collect();
    Ok(Json(SecretFileList { files }))
}

/// Stores a file for sandboxes. An existing one of the same owner and path is replaced.
#[utoipa::path(put, path = "/v1/secret-files", tag = "vault", request_body = SetSecretFile,
    responses((status = 200, body = SetSecretReply), (status = 201, body = SetSecretReply),
        (status = 400, body = ErrorBody), (status = 403, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn set(
    app: AppState,
    admin: User,
    Body(request): Body<SetSecretFile>,
) -> Result<(StatusCode, Json<SetSecretReply>), ApiError> {
    let (scope, path) = (scope(&request.owner)?, normalize_path(&request.path)?);
    let repos = match scope {
        Scope::Configuration(id) => app.store.configuration_repos(admin.org, id).await?,
        Scope::Org | Scope::Repo(_) | Scope::Session(_) => Vec::new(),
    };
    let directories = env_files::repo_directories(repos.iter().map(|place| place.workspace_path.as_str()));
    env_files::check_place(Path::new(&path), &directories).map_err(ApiError::bad_request)?;
    let event = admin_event(&app, &admin, &AdminChange::secrets("set", scope, [path.as_str()]));
    let vault = app.vault.recorded(event);
    let pairs = [(path, request.content.into())];
    let created = vault.put(admin.org, scope, SecretPurpose::File, &pairs, Some(admin.id)).await? == 1;
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(SetSecretReply { created })))
}

#[utoipa::path(delete, path = "/v1/secret-files", tag = "vault", params(SecretFileQuery),
    responses((status = 200, body = OkReply), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(super) async fn remove(
    app: AppState,
    admin: User,
    Query(query): Query<SecretFileQuery>,
) -> Result<Json<OkReply>, ApiError> {
    let SecretFileQuery { path, repo_id, configuration_id } = query;
    let (scope, path) = (scope(&SecretOwner { repo_id, configuration_id })?, normalize_path(&path)?);
    let stored = app.store.sealed_secret(admin.org, scope, SecretPurpose::File, &path).await?;
    stored.ok_or(StoreError::Missing("this secret file"))?;
    let change = AdminChange::secrets("remove", scope, [path.as_str()]);
    administer_as(&app, &admin, &change).delete_secret(admin.org, scope, &path).await?;
    Ok(Json(OkReply::OK))
}

/// Normalizes the path, because the normalized path is the key of the stored file.
fn normalize_path(path: &str) -> Result<String, ApiError> {
    let plain = env_files::workspace_file(path).map(|path| path.to_string_lossy().into_owned());
    plain.ok_or_else(|| {
        ApiError::bad_request("path must be a path inside the workspace, of 1 to 500 characters")
    })
}

fn item(entry: SecretEntry) -> SecretFileItem {
    let (repo_id, configuration_id) = match entry.scope {
        Scope::Repo(id) => (Some(id), None),
        Scope::Configuration(id) => (None, Some(id)),
        Scope::Org | Scope::Session(_) => (None, None),
    };
    SecretFileItem {
        path: entry.key,
        scope: environment::scope(entry.scope),
        owner: SecretOwner { repo_id, configuration_id },
        updated_at: entry.updated_at,
    }
}
