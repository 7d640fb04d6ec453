//! The setup session of a new managed configuration: an agent installs what the repositories need, and saves a snapshot
//! from which all later sessions start.

use proto::http::AgentConfig;
use proto::socket::MessageSource;
use proto::{SessionId, SessionType};
use store::{Configuration, NewSession, Starts};

use super::prompt::send;
use super::{PromptDraft, SessionError, SessionServices};

/// The sender of the prompt, which no person wrote.
const SENDER: &str = "managed-configuration-setup";

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
        sender: SENDER.to_owned(),
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
