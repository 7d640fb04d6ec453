//! `/v1/repos` and `/v1/configurations`: the repositories and configurations that sessions work on.

use std::path::PathBuf;

use axum::Json;
use axum::http::StatusCode;
use proto::http::{
    AddRepo, ChangeConfiguration, ChangeRepo, ConfigurationEntry, ConfigurationList, CreateConfiguration,
    EnvFileSpec, ErrorBody, OkReply, OrgQuery, RepoEntry, RepoList, RepoPlace,
};
use proto::socket::AutoStartCommand;
use proto::{ConfigurationId, OrgId, RepoId, text};
use sandboxd::protocol::EnvFile;
use serde::Deserialize as _;
use serde_json::{Value, json};
use store::{Configuration, ConfigurationChange, NewConfiguration, NewRepo, Placement, RemoteSource, Repo};
use url::Url;

use super::administer::administer;
use super::auth::{Caller, User};
use super::params::{Path, Query};
use super::{ApiError, Body, contract};
use crate::access::Act;
use crate::app::AppState;
use crate::runtime::{auto_start, env_files};
use gate::Subject;

const MAX_NAME: usize = 100;
const MAX_URL: usize = 500;
const MAX_REPOS: usize = 20;
/// The most bytes of a system prompt.
const MAX_SYSTEM_PROMPT: usize = 32 * 1024;

#[utoipa::path(get, path = "/v1/repos", tag = "workspaces", params(OrgQuery), responses((status = 200, body = RepoList)))]
pub(super) async fn repos(
    app: AppState,
    caller: Caller,
    Query(query): Query<OrgQuery>,
) -> Result<Json<RepoList>, ApiError> {
    let org = organization(&app, &caller, &query).await?;
    let repos = app.store.repos(org).await?.into_iter().map(repo_entry).collect();
    Ok(Json(RepoList { repos }))
}

#[utoipa::path(post, path = "/v1/repos", tag = "workspaces", request_body = AddRepo,
    responses((status = 201, body = RepoEntry), (status = 400, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn add_repo(
    app: AppState,
    admin: User,
    Body(request): Body<AddRepo>,
) -> Result<(StatusCode, Json<RepoEntry>), ApiError> {
    let url = git_url(&app, &request.url)?;
    let last =
        url.path_segments().and_then(|mut parts| parts.next_back().map(str::to_owned)).unwrap_or_default();
    let name = request.name.unwrap_or_else(|| last.trim_end_matches(".git").to_owned());
    let branch = request.default_branch;
    if !text::is_line(&name, MAX_NAME) || !branch.as_deref().is_none_or(is_fine_branch) {
        return Err(ApiError::bad_request("name and defaultBranch are one line of at most 100 characters"));
    }
    let id: RepoId = app.rng.uuid(app.clock.now()).into();
    let from = if url.host_str() == Some("github.com") { RemoteSource::Github } else { RemoteSource::Git };
    let new = NewRepo {
        id,
        org_id: admin.org,
        name,
        from,
        url: url.to_string(),
        default_branch: branch,
        is_private: false,
        added_by: Some(admin.id),
        at: app.clock.now(),
    };
    let details = format!("repository {id}, {url}");
    administer(&app, &admin, Subject::Repository, "add", details).create_repo(new).await?;
    let repo =
        app.store.repo(admin.org, id).await?.ok_or_else(|| ApiError::not_found("This repository is gone"))?;
    Ok((StatusCode::CREATED, Json(repo_entry(repo))))
}

/// Changes the service commands and environment files of a repository.
#[utoipa::path(patch, path = "/v1/repos/{repoId}", tag = "workspaces", params(("repoId" = RepoId, Path)),
    request_body = ChangeRepo,
    responses((status = 200, body = RepoEntry), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(super) async fn change_repo(
    app: AppState,
    admin: User,
    Path(id): Path<RepoId>,
    Body(request): Body<ChangeRepo>,
) -> Result<Json<RepoEntry>, ApiError> {
    let commands = request.service_commands.as_deref().map(service_commands).transpose()?;
    let files = request.env_files.as_deref().map(|files| env_file_specs(files, &[])).transpose()?;
    let store = administer(&app, &admin, Subject::Repository, "change", format!("repository {id}"));
    store.update_repo(admin.org, id, commands, files, app.clock.now()).await?;
    let repo = app.store.repo(admin.org, id).await?;
    repo.map(|repo| Json(repo_entry(repo))).ok_or_else(|| ApiError::not_found("This repository is gone"))
}

/// The commands in the form in which they are stored.
fn service_commands(commands: &[AutoStartCommand]) -> Result<Value, ApiError> {
    auto_start::check(commands).map_err(ApiError::bad_request)?;
    Ok(json!(commands))
}

/// The environment files in the form in which they are stored.
fn env_file_specs(files: &[EnvFileSpec], repos: &[PathBuf]) -> Result<Value, ApiError> {
    for (index, file) in files.iter().enumerate() {
        if file.format != "dotenv" || !matches!(file.mode.as_str(), "secret" | "plain") {
            return Err(ApiError::bad_request(format!(
                "envFiles[{index}].format must be dotenv, and its mode secret or plain"
            )));
        }
    }
    let files = json!(files);
    let parsed = Vec::<EnvFile>::deserialize(&files)
        .map_err(|_| ApiError::bad_request("envFiles is not a list of environment files"))?;
    env_files::check("envFiles", &parsed, repos).map_err(ApiError::bad_request)?;
    Ok(files)
}

#[utoipa::path(delete, path = "/v1/repos/{repoId}", tag = "workspaces", params(("repoId" = RepoId, Path)),
    responses((status = 200, body = OkReply), (status = 404, body = ErrorBody)))]
pub(super) async fn remove_repo(
    app: AppState,
    admin: User,
    Path(id): Path<RepoId>,
) -> Result<Json<OkReply>, ApiError> {
    let details = format!("repository {id}");
    administer(&app, &admin, Subject::Repository, "remove", details).delete_repo(admin.org, id).await?;
    Ok(Json(OkReply::OK))
}

#[utoipa::path(get, path = "/v1/configurations", tag = "workspaces", params(OrgQuery),
    responses((status = 200, body = ConfigurationList)))]
pub(super) async fn configurations(
    app: AppState,
    caller: Caller,
    Query(query): Query<OrgQuery>,
) -> Result<Json<ConfigurationList>, ApiError> {
    let org = organization(&app, &caller, &query).await?;
    let found = app.store.configurations(org).await?;
    let configurations = found.into_iter().map(|found| configuration_entry(found, Vec::new())).collect();
    Ok(Json(ConfigurationList { configurations }))
}

#[utoipa::path(post, path = "/v1/configurations", tag = "workspaces", request_body = CreateConfiguration,
    responses((status = 201, body = ConfigurationEntry), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(super) async fn create_configuration(
    app: AppState,
    user: User,
    Body(request): Body<CreateConfiguration>,
) -> Result<(StatusCode, Json<ConfigurationEntry>), ApiError> {
    check_name(&request.name)?;
    let id: ConfigurationId = app.rng.uuid(app.clock.now()).into();
    let new = NewConfiguration {
        id,
        org_id: user.org,
        name: request.name,
        sandbox_provider: app.runtime.sandboxes.engine().to_owned(),
        repos: placements(request.repos)?,
        created_by: Some(user.id),
        at: app.clock.now(),
    };
    let details = format!("configuration {id}");
    administer(&app, &user, Subject::Configuration, "create", details).create_configuration(new).await?;
    Ok((StatusCode::CREATED, Json(load_configuration(&app, user.org, id).await?)))
}

#[utoipa::path(get, path = "/v1/configurations/{configurationId}", tag = "workspaces",
    params(("configurationId" = ConfigurationId, Path), OrgQuery),
    responses((status = 200, body = ConfigurationEntry), (status = 404, body = ErrorBody)))]
pub(super) async fn configuration(
    app: AppState,
    caller: Caller,
    Path(id): Path<ConfigurationId>,
    Query(query): Query<OrgQuery>,
) -> Result<Json<ConfigurationEntry>, ApiError> {
    let org = organization(&app, &caller, &query).await?;
    Ok(Json(load_configuration(&app, org, id).await?))
}

async fn organization(app: &AppState, caller: &Caller, query: &OrgQuery) -> Result<OrgId, ApiError> {
    contract::identity_and_organization(app, caller, query.organization_id.as_deref())
        .await
        .map(|(_, org)| org)
}

#[utoipa::path(patch, path = "/v1/configurations/{configurationId}", tag = "workspaces",
    params(("configurationId" = ConfigurationId, Path)), request_body = ChangeConfiguration,
    responses((status = 200, body = ConfigurationEntry), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(super) async fn change_configuration(
    app: AppState,
    user: User,
    Path(id): Path<ConfigurationId>,
    Body(request): Body<ChangeConfiguration>,
) -> Result<Json<ConfigurationEntry>, ApiError> {
    let known = find_configuration(&app, user.org, id).await?;
    user.must(Act::ChangeConfiguration, known.created_by == Some(user.id))?;
    if let Some(name) = &request.name {
        check_name(name)?;
    }
    let repos = request.repos.map(placements).transpose()?;
    let env_files = match (&request.env_files, &repos) {
        (None, _) => None,
        (Some(files), Some(repos)) => {
            let directories =
                env_files::repo_directories(repos.iter().map(|place| place.workspace_path.as_str()));
            Some(env_file_specs(files, &directories)?)
        }
        (Some(files), None) => {
            let repos = app.store.configuration_repos(user.org, id).await?;
            let directories =
                env_files::repo_directories(repos.iter().map(|place| place.workspace_path.as_str()));
            Some(env_file_specs(files, &directories)?)
        }
    };
    let change = ConfigurationChange {
        name: request.name,
        // The empty text removes it.
        system_prompt: match request.system_prompt {
            Some(prompt) => Some(system_prompt(Some(prompt))?.unwrap_or_default()),
            None => None,
        },
        repos,
        service_commands: request.service_commands.as_deref().map(service_commands).transpose()?,
        env_files,
        by: Some(user.id.to_string()),
        ..ConfigurationChange::default()
    };
    let store = administer(&app, &user, Subject::Configuration, "change", format!("configuration {id}"));
    store.update_configuration(user.org, id, change, app.clock.now()).await?;
    Ok(Json(load_configuration(&app, user.org, id).await?))
}

#[utoipa::path(delete, path = "/v1/configurations/{configurationId}", tag = "workspaces",
    params(("configurationId" = ConfigurationId, Path)),
    responses((status = 200, body = OkReply), (status = 404, body = ErrorBody)))]
pub(super) async fn remove_configuration(
    app: AppState,
    admin: User,
    Path(id): Path<ConfigurationId>,
) -> Result<Json<OkReply>, ApiError> {
    let store = administer(&app, &admin, Subject::Configuration, "remove", format!("configuration {id}"));
    store.delete_configuration(admin.org, id).await?;
    Ok(Json(OkReply::OK))
}

async fn find_configuration(
    app: &AppState,
    org: OrgId,
    id: ConfigurationId,
) -> Result<Configuration, ApiError> {
    let found = app.store.configuration(org, id).await?;
    found.ok_or_else(|| ApiError::not_found("This configuration does not exist"))
}

async fn load_configuration(
    app: &AppState,
    org: OrgId,
    id: ConfigurationId,
) -> Result<ConfigurationEntry, ApiError> {
    let found = find_configuration(app, org, id).await?;
    let placed = app.store.configuration_repos(org, id).await?;
    let repos = placed
        .into_iter()
        .map(|placed| RepoPlace { repo_id: placed.repo.id, workspace_path: placed.workspace_path });
    Ok(configuration_entry(found, repos.collect()))
}

/// Checks the URL of a repository: HTTP or HTTPS with a host and a path, without user name, password or fragment; or a
/// directory that the operator allows.
fn git_url(app: &AppState, text: &str) -> Result<Url, ApiError> {
    let wanted = || ApiError::bad_request("url must be https://host/path without a user name");
    let url = Url::parse(text).map_err(|_| wanted())?;
    if url.scheme() == "file" {
        return local_url(app, &url);
    }
    let plain = url.username().is_empty() && url.password().is_none() && url.fragment().is_none();
    let fine = matches!(url.scheme(), "https" | "http") && url.has_host() && plain && text.len() <= MAX_URL;
    if fine && url.path().len() > 1 { Ok(url) } else { Err(wanted()) }
}

/// Checks that a `file` URL is a directory below the operator's local roots. Every other path gets the same answer, so
/// that it does not reveal which directories exist.
fn local_url(app: &AppState, url: &Url) -> Result<Url, ApiError> {
    let url = app.git.local_directory(url).and_then(|directory| Url::from_file_path(directory).ok());
    url.ok_or_else(|| {
        ApiError::bad_request("This is no directory below the operator's WORKSPACE_LOCAL_ROOTS")
    })
}

fn is_fine_branch(branch: &str) -> bool {
    text::is_line(branch, MAX_NAME) && !branch.starts_with('-')
}

/// Checks a text that replaces the first part of an agent's instructions. A blank one is none: an agent whose instructions
/// begin with nothing does not know what it is for.
pub(super) fn system_prompt(prompt: Option<String>) -> Result<Option<String>, ApiError> {
    let is_control = |c: char| c.is_control() && !matches!(c, '\n' | '\r' | '\t');
    let fits = |prompt: &String| prompt.len() <= MAX_SYSTEM_PROMPT && !prompt.contains(is_control);
    if prompt.as_ref().is_none_or(fits) {
        Ok(prompt.filter(|prompt| !prompt.trim().is_empty()))
    } else {
        Err(ApiError::bad_request("systemPrompt is a text of at most 32 KiB without control characters"))
    }
}

fn check_name(name: &str) -> Result<(), ApiError> {
    if text::is_line(name, MAX_NAME) {
        Ok(())
    } else {
        Err(ApiError::bad_request("name is one line of 1 to 100 characters"))
    }
}

/// Checks where repositories are placed: each in one directory of the workspace, or in the workspace itself.
fn placements(repos: Vec<RepoPlace>) -> Result<Vec<Placement>, ApiError> {
    let plain = |path: &str| {
        path == "."
            || (text::is_line(path, MAX_NAME) && !path.starts_with(['-', '.']) && !path.contains(['/', '\\']))
    };
    if repos.len() > MAX_REPOS || !repos.iter().all(|place| plain(&place.workspace_path)) {
        return Err(ApiError::bad_request(
            "workspacePath is `.` or the name of a directory; at most 20 repositories",
        ));
    }
    Ok(repos
        .into_iter()
        .map(|place| Placement { repo_id: place.repo_id, workspace_path: place.workspace_path })
        .collect())
}

fn repo_entry(repo: Repo) -> RepoEntry {
    RepoEntry {
        id: repo.id,
        name: repo.name,
        source: repo.source,
        url: repo.url,
        default_branch: repo.default_branch,
        is_private: repo.is_private,
        service_commands: auto_start::parse(repo.service_commands),
        env_files: stored_files(repo.env_files),
        created_at: repo.created_at,
    }
}

fn stored_files(stored: Option<Value>) -> Vec<EnvFileSpec> {
    stored.and_then(|stored| serde_json::from_value(stored).ok()).unwrap_or_default()
}

fn configuration_entry(found: Configuration, repos: Vec<RepoPlace>) -> ConfigurationEntry {
    ConfigurationEntry {
        id: found.id,
        name: found.name,
        kind: found.kind,
        status: found.status,
        snapshot_id: found.snapshot_id,
        system_prompt: found.system_prompt,
        repos,
        service_commands: auto_start::parse(found.service_commands),
        env_files: stored_files(found.env_files),
        created_at: found.created_at,
        updated_at: found.updated_at,
    }
}
