//! The setup session of a new managed configuration: an agent installs what the repositories need, and saves a snapshot
//! from which all later sessions start.

use proto::http::AgentConfig;
use proto::socket::MessageSource;
use proto::{ConfigurationId, OrgId, SessionId, SessionType, UserId};
use store::{NewSession, Starts, StoreError};

use super::super::ApiError;
use crate::app::AppState;
use crate::hub::{PromptOutcome, PromptRequest};

/// The sender of the prompt, which no person wrote.
const SENDER: &str = "managed-configuration-setup";

/// Starts a setup session in addition to the session that the caller created, which does not depend on it. Does nothing
/// if the configuration already has one. A failure is logged, and the next session of the configuration tries again.
pub(super) async fn start(
    app: &AppState,
    whose: (OrgId, Option<UserId>),
    configuration: ConfigurationId,
    agent_config: Option<AgentConfig>,
) {
    match begin(app, whose, configuration, agent_config).await {
        Ok(Some(session)) => tracing::info!(%session, %configuration, "setup session started"),
        Ok(None) => {}
        Err(error) => {
            let (status, body) = error.tell();
            tracing::warn!(%configuration, status = status.as_u16(), reason = body.error, "no setup session");
        }
    }
}

async fn begin(
    app: &AppState,
    whose: (OrgId, Option<UserId>),
    configuration: ConfigurationId,
    agent_config: Option<AgentConfig>,
) -> Result<Option<SessionId>, ApiError> {
    let (org, created_by) = whose;
    let repos = app.store.configuration_repos(org, configuration).await?;
    let names: Vec<&str> = repos.iter().map(|placed| placed.repo.name.as_str()).collect();
    let prompt = prompt(&names);
    let id: SessionId = app.rng.uuid(app.clock.now()).into();
    let new = NewSession {
        created_by,
        title: Some("Set up the managed configuration".to_owned()),
        agent_config,
        starts: Starts::Now,
        ..NewSession::new(id, org, SessionType::Setup, app.runtime.sandboxes.engine(), app.clock.now())
    };
    if !app.store.create_setup_session(new, configuration).await? {
        return Ok(None);
    }
    let hub = app.hubs.open(id).await?;
    let request = PromptRequest::new(prompt, Vec::new(), Some(SENDER.to_owned()), Some(MessageSource::Api));
    match hub.prompt(request).await {
        Ok(PromptOutcome::Queued { .. }) => Ok(Some(id)),
        Ok(PromptOutcome::Full | PromptOutcome::Refused(_)) | Err(_) => {
            Err(StoreError::Missing("this session").into())
        }
    }
}

fn prompt(names: &[&str]) -> String {
    format!(
        "Set up the workspace for: {}. Install what is needed to build, run and test it, check that it works, save \
         the commands that start its services and the environment files that it needs, and then save a snapshot.",
        names.join(", ")
    )
}
