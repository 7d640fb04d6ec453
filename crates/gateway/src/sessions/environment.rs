//! The environment of a session's app: submits values, and writes or removes them in the running sandbox.

use gate::AdminChange;
use proto::SessionId;
use proto::http::SecretPurpose;
use sandboxd::Sandboxd;
use secrecy::SecretString;
use store::{Scope, SessionRecord};

use super::{Requester, SessionError, SessionServices};
use crate::runtime::{
    Applied, ConnectedSandbox, Environment, EnvironmentError, reach_running, write_environment,
};
use crate::vault::VaultError;

/// The name and the value of a variable.
pub(crate) type Variable = (String, SecretString);

/// Values for a session's app.
pub(crate) struct SubmittedValues {
    pub(crate) variables: Vec<Variable>,
    /// The names of those that all sessions of the organization get too. The requester may manage its secrets.
    pub(crate) shared: Vec<String>,
}

/// What became of submitted values.
pub(crate) struct Submission {
    /// Names that the organization had a value for already, which stays.
    pub(crate) existing: Vec<String>,
    /// Whether the running sandbox has the values. One that boots or does not answer gets them a moment later, and a session
    /// without a sandbox when one starts.
    pub(crate) applied: bool,
    /// The required variables that have no value yet.
    pub(crate) missing: Vec<String>,
}

/// Stores values for the session, and some of them for its organization, and writes them into its running sandbox.
pub(crate) async fn submit_environment(
    services: &SessionServices,
    session: &SessionRecord,
    requester: &Requester,
    values: &SubmittedValues,
) -> Result<Submission, SessionError> {
    let SubmittedValues { variables, shared } = values;
    store_variables(services, (session, requester), Scope::Session(session.id), variables).await?;
    let existing = share(services, (session, requester), variables, shared).await?;
    // Whatever happens to this attempt, a running sandbox gets the values.
    services.runtime.sandboxes.outdated_environments.add(session.id);
    let applied = match running_sandbox(services, session.id).await {
        Ok(inside) => Some(write(services, session, &inside.supervisor).await?),
        Err(_) => write_environment(&services.runtime, session).await,
    };
    let missing = match &applied {
        Some(applied) => applied.missing.clone(),
        None => Environment::of(&services.runtime, session).await?.missing(),
    };
    Ok(Submission { existing, applied: applied.is_some(), missing })
}

/// Writes the session's environment into its running sandbox again.
pub(crate) async fn apply_environment(
    services: &SessionServices,
    session: &SessionRecord,
) -> Result<Applied, SessionError> {
    let inside = running_supervisor(services, session).await?;
    write(services, session, &inside).await
}

/// Removes all secrets from the files of the session's running sandbox. Returns the paths of those files.
pub(crate) async fn scrub_environment(
    services: &SessionServices,
    session: &SessionRecord,
) -> Result<Vec<String>, SessionError> {
    let inside = running_supervisor(services, session).await?;
    Ok(Environment::remove(&services.runtime, session, &inside).await?)
}

/// The running sandbox of a session whose agent is connected. A session that does not run is not started.
pub(crate) async fn running_sandbox(
    services: &SessionServices,
    session: SessionId,
) -> Result<ConnectedSandbox, SessionError> {
    let not_running = "The session has no running sandbox: send a prompt to start one";
    let hub = services.hubs.get(session).ok_or_else(|| SessionError::CallFailed(not_running.to_owned()))?;
    let unreachable = |reason| SessionError::CallFailed(format!("The sandbox cannot be reached: {reason}"));
    hub.inside().await?.map_err(unreachable)
}

/// The supervisor of a session's running sandbox, also if no agent is connected: after a while without watchers, or after a
/// restart of the gateway.
pub(crate) async fn running_supervisor(
    services: &SessionServices,
    session: &SessionRecord,
) -> Result<Sandboxd, SessionError> {
    match running_sandbox(services, session.id).await {
        Ok(connected) => Ok(connected.supervisor),
        Err(error) => match reach_running(&services.runtime, session).await {
            Ok(found) => found.ok_or(error),
            Err(unreachable) => Err(EnvironmentError::Sandbox(unreachable).into()),
        },
    }
}

async fn write(
    services: &SessionServices,
    session: &SessionRecord,
    inside: &Sandboxd,
) -> Result<Applied, SessionError> {
    Ok(Environment::write(&services.runtime, session, inside).await?)
}

/// Stores these values for the organization, except those that it has. Returns the names of the latter.
async fn share(
    services: &SessionServices,
    (session, requester): (&SessionRecord, &Requester),
    variables: &[Variable],
    shared: &[String],
) -> Result<Vec<String>, SessionError> {
    if shared.is_empty() {
        return Ok(Vec::new());
    }
    let known = services.store.secrets(session.org_id).await?;
    let exists = |key: &str| known.iter().any(|entry| entry.scope == Scope::Org && entry.key == key);
    let (existing, new): (Vec<_>, Vec<_>) = shared.iter().cloned().partition(|key| exists(key));
    let new: Vec<_> = variables.iter().filter(|(key, _)| new.contains(key)).cloned().collect();
    if !new.is_empty() {
        store_variables(services, (session, requester), Scope::Org, &new).await?;
    }
    Ok(existing)
}

async fn store_variables(
    services: &SessionServices,
    (session, requester): (&SessionRecord, &Requester),
    scope: Scope,
    variables: &[Variable],
) -> Result<(), SessionError> {
    let change = AdminChange::secrets("set", scope, variables.iter().map(|(key, _)| key.as_str()));
    let event = services.gate.admin_event(session.org_id, &requester.actor(), &change);
    let vault = services.runtime.vault.recorded(event);
    let stored = vault.put(session.org_id, scope, SecretPurpose::Env, variables, requester.user()).await;
    stored.map(drop).map_err(|error: VaultError| EnvironmentError::Vault(error).into())
}
