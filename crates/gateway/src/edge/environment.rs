//! `/proliferate/{id}/env`: the environment of a session's app. Values go in and are never returned.

use axum::Json;
use proto::SessionId;
use proto::http::{
    AppliedFile, EnvChangeReply, EnvFileState, EnvKeyState, EnvState, ErrorBody, SecretScope, SubmitEnv,
    SubmitEnvReply, SubmittedEntry,
};
use sandboxd::protocol::EnvFile;
use secrecy::SecretString;
use store::Scope;

use super::auth::{Caller, SessionAccess};
use super::{ApiError, Body};
use crate::access::Act;
use crate::app::AppState;
use crate::runtime::{Applied, Environment, EnvironmentError};
use crate::sessions::{self, Submission, SubmittedValues, Variable};
use crate::vault::is_name;

/// The most values that one request submits.
const MAX_VALUES: usize = 100;

/// Shows which files and variables the session's sandbox gets, and whose value each variable has. Never a value.
#[utoipa::path(get, path = "/proliferate/{id}/env", tag = "environment", params(("id" = SessionId, Path)),
    responses((status = 200, body = EnvState), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn show(app: AppState, access: SessionAccess) -> Result<Json<EnvState>, ApiError> {
    let environment = Environment::of(&app.runtime, &access.session).await?;
    let key = |file: &EnvFile, key: &sandboxd::protocol::EnvKey| EnvKeyState {
        key: key.key.clone(),
        required: key.required,
        source: environment.source(file, &key.key).map(scope),
    };
    let file = |file: &EnvFile| EnvFileState {
        path: crate::runtime::env_files::place(file).unwrap_or_default().to_string_lossy().into_owned(),
        keys: file.keys.iter().map(|known| key(file, known)).collect(),
    };
    let secret_files = environment.secret_files.iter().map(|file| file.path.to_string_lossy().into_owned());
    Ok(Json(EnvState {
        files: environment.files.iter().map(file).collect(),
        secret_files: secret_files.collect(),
        missing: environment.missing(),
    }))
}

/// Submits values for the session. They are kept encrypted, for this session only, and written into its sandbox.
/// With `persist`, admins and owners store a secret for all sessions of the organization; an existing one stays.
#[utoipa::path(post, path = "/proliferate/{id}/env", tag = "environment", params(("id" = SessionId, Path)),
    request_body = SubmitEnv,
    responses((status = 200, body = SubmitEnvReply), (status = 400, body = ErrorBody),
        (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn submit(
    app: AppState,
    access: SessionAccess,
    Body(request): Body<SubmitEnv>,
) -> Result<Json<SubmitEnvReply>, ApiError> {
    let Caller::User(user) = &access.caller else { return Err(ApiError::user_required()) };
    let values = values(request)?;
    if !values.shared.is_empty() {
        user.must(Act::ManageOrganization, false)?;
    }
    let requester = access.caller.requester()?;
    let submission =
        sessions::submit_environment(&app.sessions, &access.session, &requester, &values).await?;
    let Submission { existing, applied, missing } = submission;
    let result = |(key, _): &Variable| SubmittedEntry {
        key: key.clone(),
        persisted: values.shared.contains(key) && !existing.contains(key),
        already_existed: existing.contains(key),
    };
    let results = values.variables.iter().map(result).collect();
    Ok(Json(SubmitEnvReply { submitted: true, results, applied, missing }))
}

/// Checks the names, and separates those that are to be stored for the organization.
fn values(request: SubmitEnv) -> Result<SubmittedValues, ApiError> {
    let SubmitEnv { secrets, env_vars, save_to_configuration } = request;
    if secrets.len() + env_vars.len() > MAX_VALUES {
        return Err(ApiError::bad_request(format!("secrets and envVars have at most {MAX_VALUES} entries")));
    }
    let shared = secrets.iter().filter(|secret| secret.persist.unwrap_or(save_to_configuration));
    let shared: Vec<String> = shared.map(|secret| secret.key.clone()).collect();
    let secrets = secrets.into_iter().map(|secret| (secret.key, secret.value));
    let variables = secrets.chain(env_vars.into_iter().map(|variable| (variable.key, variable.value)));
    let variables: Vec<_> = variables.map(|(key, value)| (key, SecretString::from(value))).collect();
    for (index, (key, _)) in variables.iter().enumerate() {
        if !is_name(key) {
            return Err(ApiError::bad_request(
                "key has letters, digits and _, does not begin with a digit, and at most 200 characters",
            ));
        }
        if variables.iter().take(index).any(|(earlier, _)| earlier == key) {
            return Err(ApiError::bad_request(format!("key {key} is there twice")));
        }
    }
    Ok(SubmittedValues { variables, shared })
}

/// Writes the session's environment into its running sandbox again. In a sandbox: `proliferate env apply`.
#[utoipa::path(post, path = "/proliferate/{id}/env/apply", tag = "environment", params(("id" = SessionId, Path)),
    responses((status = 200, body = EnvChangeReply), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn apply(app: AppState, access: SessionAccess) -> Result<Json<EnvChangeReply>, ApiError> {
    let Applied { files, missing } = sessions::apply_environment(&app.sessions, &access.session).await?;
    let applied = files.into_iter().map(|(path, key_count)| AppliedFile { path, key_count }).collect();
    Ok(Json(EnvChangeReply { applied, missing, ..EnvChangeReply::default() }))
}

/// Removes all secrets from the files of the session's running sandbox. In a sandbox: `proliferate env scrub`.
#[utoipa::path(post, path = "/proliferate/{id}/env/scrub", tag = "environment", params(("id" = SessionId, Path)),
    responses((status = 200, body = EnvChangeReply), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn scrub(app: AppState, access: SessionAccess) -> Result<Json<EnvChangeReply>, ApiError> {
    let scrubbed = sessions::scrub_environment(&app.sessions, &access.session).await?;
    Ok(Json(EnvChangeReply { scrubbed, ..EnvChangeReply::default() }))
}

pub(super) fn scope(scope: Scope) -> SecretScope {
    match scope {
        Scope::Org => SecretScope::Org,
        Scope::Repo(_) => SecretScope::Repo,
        Scope::Configuration(_) => SecretScope::Configuration,
        Scope::Session(_) => SecretScope::Session,
    }
}

impl From<EnvironmentError> for ApiError {
    fn from(error: EnvironmentError) -> Self {
        match error {
            EnvironmentError::Store(error) => error.into(),
            EnvironmentError::Vault(error) => error.into(),
            // These name files and variables, never values.
            EnvironmentError::EnvFiles | EnvironmentError::Supervisor(_) | EnvironmentError::Sandbox(_) => {
                Self::conflict(format!("Not applied: {error}"))
            }
        }
    }
}
