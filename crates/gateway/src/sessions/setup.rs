//! The setup session of a new managed configuration: an agent installs what the repositories need, and saves a snapshot
//! from which all later sessions start.

use gate::{AdminChange, Subject};
use proto::http::{AgentConfig, FinishSetup};
use proto::socket::MessageSource;
use proto::{ConfigurationId, SessionId, SessionType, UserId};
use store::{Configuration, ConfigurationChange, NewSession, SessionRecord, Starts};

use super::control::running;
use super::prompt::send;
use super::{PromptDraft, Requester, SessionError, SessionServices, save_snapshot};

/// The sender of the prompt, which no person wrote.
const SETUP_SENDER: &str = "managed-configuration-setup";
const STILL_WORKING: &str =
    "The setup was not saved: the agent is still working; wait for its turn to end, or cancel it";

/// Starts a setup session in addition to the session that the caller created, which does not depend on it. Does nothing
/// if the configuration already has one. A failure is logged, and the next session of the configuration tries again.
pub(super) async fn start(
    services: &SessionServices,
    configuration: &Configuration,
    agent_config: Option<AgentConfig>,
) {
    let id = configuration.id;
    match try_start(services, configuration, agent_config).await {
        Ok(Some(session)) => tracing::info!(%session, configuration = %id, "setup session started"),
        Ok(None) => {}
        Err(error) => tracing::warn!(configuration = %id, %error, "cannot start a setup session"),
    }
}

/// Saves the files of a setup session for its configuration, which becomes ready, and may rename it. A session without a
/// connected agent is woken first, and one whose agent is still working is refused. It is stopped afterwards unless it is
/// to keep running. Returns the configuration and the id of the snapshot.
pub async fn finish_setup(
    services: &SessionServices,
    session: &SessionRecord,
    (user, requester): (UserId, &Requester),
    request: FinishSetup,
) -> Result<(ConfigurationId, String), SessionError> {
    let failed = SessionError::CallFailed;
    let configuration = session.configuration_id.filter(|_| session.session_type == SessionType::Setup);
    let id =
        configuration.ok_or_else(|| failed("This is not a setup session of a configuration".to_owned()))?;
    // Its sandbox may run without a connected agent.
    let hub = services.hubs.open(session.id).await?;
    running(&hub).await?.map_err(|reason| failed(format!("The setup was not saved: {reason}")))?;
    if !services.store.queued_prompts(session.id).await?.is_empty() {
        return Err(failed(STILL_WORKING.to_owned()));
    }
    let saved = save_snapshot(services, (session.org_id, session.id), user).await;
    let (snapshot_id, _) = saved.map_err(|error| failed(format!("The setup was not saved: {error}")))?;
    if request.name.is_some() {
        let by = Some(user.to_string());
        let change = ConfigurationChange { name: request.name, by, ..ConfigurationChange::default() };
        let recorded = AdminChange::new(Subject::Configuration, "change", format!("configuration {id}"));
        let event = services.gate.admin_event(session.org_id, &requester.actor(), &recorded);
        let store = services.store.recorded(event);
        store.update_configuration(session.org_id, id, change, services.clock.now()).await?;
    }
    if !request.keep_running {
        let stopped = hub.stop(false).await?;
        stopped.map_err(|reason| failed(format!("The setup was saved but not stopped: {reason}")))?;
    }
    Ok((id, snapshot_id))
}

async fn try_start(
    services: &SessionServices,
    configuration: &Configuration,
    agent_config: Option<AgentConfig>,
) -> Result<Option<SessionId>, SessionError> {
    let org = configuration.org_id;
    let repos = services.store.configuration_repos(org, configuration.id).await?;
    let names: Vec<&str> = repos.iter().map(|placed| placed.repo.name.as_str()).collect();
    let now = services.clock.now();
    let id: SessionId = services.rng.uuid(now).into();
    let new = NewSession {
        // Other members may use the configuration, but only its creator may change it.
        created_by: configuration.created_by,
        title: Some("Set up the managed configuration".to_owned()),
        // The tools that the other session leaves out are not this one's.
        agent_config: agent_config.map(|config| AgentConfig { tools: None, ..config }),
        starts: Starts::Now,
        ..NewSession::new(id, org, SessionType::Setup, services.runtime.sandboxes.engine(), now)
    };
    if !services.store.create_setup_session(new, configuration.id).await? {
        return Ok(None);
    }
    let prompt = PromptDraft {
        content: instructions(&names),
        images: Vec::new(),
        sender: SETUP_SENDER.to_owned(),
        source: MessageSource::Api,
    };
    send(services, id, prompt.into()).await.map(|_| Some(id))
}

fn instructions(names: &[&str]) -> String {
    format!(
        "Set up the workspace for: {}. Install what is needed to build, run and test it, check that it works, save \
         the commands that start its services and the environment files that it needs, and then save a snapshot.",
        names.join(", ")
    )
}
