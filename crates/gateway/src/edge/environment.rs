//! `/proliferate/{id}/env`: the environment of a session's app. Values go in and are never returned.

use axum::Json;
use gate::AdminChange;
use proto::SessionId;
use proto::http::{
    AppliedFile, EnvChangeReply, EnvFileState, EnvKeyState, EnvState, ErrorBody, SecretPurpose, SecretScope,
    SubmitEnv, SubmitEnvReply, SubmittedEntry,
};
use sandboxd::protocol::EnvFile;
use secrecy::SecretString;
use store::{Scope, SessionRecord};

use super::administer::admin_event;
use super::auth::{Caller, SessionAccess, User};
use super::{ApiError, Body};
use crate::access::Act;
use crate::app::AppState;
use crate::runtime::{Applied, ConnectedSandbox, Environment, EnvironmentError};
use crate::vault::is_name;

/// The name and the value of a variable.
type Pair = (String, SecretString);

/// The most values that one request submits.
const MOST: usize = 100;

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
    let (pairs, kept) = values(request)?;
    if !kept.is_empty() {
        user.must(Act::ManageOrganization, false)?;
    }
    let scope = Scope::Session(access.session.id);
    let change = AdminChange::secrets("set", scope, pairs.iter().map(|(key, _)| key.as_str()));
    let vault = app.vault.recorded(admin_event(&app, user, &change));
    vault.put(user.org, scope, SecretPurpose::Env, &pairs, Some(user.id)).await?;
    let existing = persist(&app, user, &pairs, &kept).await?;
    let result = |(key, _): &Pair| SubmittedEntry {
        key: key.clone(),
        persisted: kept.contains(key) && !existing.contains(key),
        already_existed: existing.contains(key),
    };
    let results = pairs.iter().map(result).collect();
    // A session without a running sandbox gets the values when one starts.
    let applied = match supervisor(&app, access.session.id).await {
        Ok(inside) => Some(write(&app, &access.session, &inside).await?),
        Err(_) => None,
    };
    let missing = match &applied {
        Some(applied) => applied.missing.clone(),
        None => Environment::of(&app.runtime, &access.session).await?.missing(),
    };
    Ok(Json(SubmitEnvReply { submitted: true, results, applied: applied.is_some(), missing }))
}

/// Checks the names, and separates those that are to be stored for the organization.
fn values(request: SubmitEnv) -> Result<(Vec<Pair>, Vec<String>), ApiError> {
    let SubmitEnv { secrets, env_vars, save_to_configuration } = request;
    if secrets.len() + env_vars.len() > MOST {
        return Err(ApiError::bad_request(format!("secrets and envVars have at most {MOST} entries")));
    }
    let kept = secrets.iter().filter(|secret| secret.persist.unwrap_or(save_to_configuration));
    let kept: Vec<String> = kept.map(|secret| secret.key.clone()).collect();
    let secrets = secrets.into_iter().map(|secret| (secret.key, secret.value));
    let pairs = secrets.chain(env_vars.into_iter().map(|variable| (variable.key, variable.value)));
    let pairs: Vec<_> = pairs.map(|(key, value)| (key, SecretString::from(value))).collect();
    for (index, (key, _)) in pairs.iter().enumerate() {
        if !is_name(key) {
            return Err(ApiError::bad_request(
                "key has letters, digits and _, does not begin with a digit, and at most 200 characters",
            ));
        }
        if pairs.iter().take(index).any(|(earlier, _)| earlier == key) {
            return Err(ApiError::bad_request(format!("key {key} is there twice")));
        }
    }
    Ok((pairs, kept))
}

/// Stores these values for the organization, except those that it has. Returns the names of the latter.
async fn persist(
    app: &AppState,
    user: &User,
    pairs: &[Pair],
    kept: &[String],
) -> Result<Vec<String>, ApiError> {
    if kept.is_empty() {
        return Ok(Vec::new());
    }
    let known = app.store.secrets(user.org).await?;
    let exists = |key: &str| known.iter().any(|entry| entry.scope == Scope::Org && entry.key == key);
    let (existing, new): (Vec<_>, Vec<_>) = kept.iter().cloned().partition(|key| exists(key));
    let new: Vec<_> = pairs.iter().filter(|(key, _)| new.contains(key)).cloned().collect();
    if !new.is_empty() {
        let change = AdminChange::secrets("set", Scope::Org, new.iter().map(|(key, _)| key.as_str()));
        let vault = app.vault.recorded(admin_event(app, user, &change));
        vault.put(user.org, Scope::Org, SecretPurpose::Env, &new, Some(user.id)).await?;
    }
    Ok(existing)
}

/// Writes the session's environment into its running sandbox again. In a sandbox: `proliferate env apply`.
#[utoipa::path(post, path = "/proliferate/{id}/env/apply", tag = "environment", params(("id" = SessionId, Path)),
    responses((status = 200, body = EnvChangeReply), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn apply(app: AppState, access: SessionAccess) -> Result<Json<EnvChangeReply>, ApiError> {
    let inside = supervisor(&app, access.session.id).await?;
    let Applied { files, missing } = write(&app, &access.session, &inside).await?;
    let applied = files.into_iter().map(|(path, key_count)| AppliedFile { path, key_count }).collect();
    Ok(Json(EnvChangeReply { applied, missing, ..EnvChangeReply::default() }))
}

/// Removes all secrets from the files of the session's running sandbox. In a sandbox: `proliferate env scrub`.
#[utoipa::path(post, path = "/proliferate/{id}/env/scrub", tag = "environment", params(("id" = SessionId, Path)),
    responses((status = 200, body = EnvChangeReply), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn scrub(app: AppState, access: SessionAccess) -> Result<Json<EnvChangeReply>, ApiError> {
    let inside = supervisor(&app, access.session.id).await?;
    let environment = Environment::of(&app.runtime, &access.session).await?;
    let scrubbed = environment.scrub(&inside.supervisor).await?;
    Ok(Json(EnvChangeReply { scrubbed, ..EnvChangeReply::default() }))
}

async fn write(
    app: &AppState,
    session: &SessionRecord,
    inside: &ConnectedSandbox,
) -> Result<Applied, ApiError> {
    let environment = Environment::of(&app.runtime, session).await?;
    Ok(environment.apply(&app.runtime, session, &inside.supervisor).await?)
}

/// The supervisor of the session's running sandbox. A session that does not run is not started.
pub(super) async fn supervisor(app: &AppState, session: SessionId) -> Result<ConnectedSandbox, ApiError> {
    let not_running = || ApiError::conflict("The session has no running sandbox: send a prompt to start one");
    let hub = app.hubs.get(session).ok_or_else(not_running)?;
    hub.inside()
        .await?
        .map_err(|reason| ApiError::conflict(format!("The sandbox cannot be reached: {reason}")))
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
