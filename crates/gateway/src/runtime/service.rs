//! The shared state of this module: boot creates it once, and everything that runs agents holds it.

use std::path::PathBuf;
use std::sync::Arc;

use agent::{AgentClient, AgentError, AgentType, ChatModel, Endpoint, Translator};
use axum::Router;
use clock::{Clock, Rng};
use gate::Gate;
use proto::AgentMode;
use proto::http::AgentConfig;
use sandbox::SandboxId;
use store::{SessionRecord, Store};
use tokio_util::sync::CancellationToken;

use super::agent::Dialer;
use super::agent_file::AgentContents;
use super::agent_programs::{AgentPrograms, BrowserPrograms};
use super::launch::LaunchError;
use super::network::Networks;
use super::pool::Pool;
use super::sandboxes::Sandboxes;
use crate::config;
use crate::llm::Llm;
use crate::vault::Vault;

/// The services and settings for running agents.
pub struct Runtime {
    pub settings: RuntimeSettings,
    pub store: Store,
    pub vault: Vault,
    pub clock: Clock,
    pub rng: Rng,
    /// Decides about what the gateway does in sandboxes on its own.
    pub gate: Arc<Gate>,
    pub sandboxes: Sandboxes,
    pub networks: Arc<Networks>,
    pub pool: Pool,
    pub(crate) llm: Arc<Llm>,
    /// Cancelled when the gateway stops.
    pub closing: CancellationToken,
    pub(crate) inward: Inward,
}

/// The operator's settings for agents.
pub struct RuntimeSettings {
    pub agent_type: Arc<dyn AgentType>,
    pub sandboxes: config::Sandboxes,
    /// The directories in which the agent's programs are searched.
    pub search_path: Vec<PathBuf>,
}

/// The functions that the layers above provide to a sandbox.
pub(crate) struct Inward {
    /// Returns the gateway's router for programs in a sandbox, or `None` while the gateway stops.
    pub(crate) router: Box<dyn Fn() -> Option<Router> + Send + Sync>,
    /// Returns what a session's agent gets in this mode.
    pub(crate) agent_contents: fn(&SessionRecord, AgentMode) -> AgentContents,
}

impl Runtime {
    pub(super) fn router(&self) -> Result<Router, LaunchError> {
        let stopping = || LaunchError::Broken("the gateway is stopping".to_owned());
        (self.inward.router)().ok_or_else(stopping)
    }

    /// A client for the agent in this sandbox.
    pub(super) fn agent_client(
        &self,
        id: &SandboxId,
        port: u16,
        endpoint: &Endpoint,
    ) -> Result<Arc<dyn AgentClient>, AgentError> {
        let dialer = Dialer { provider: self.sandboxes.provider.clone(), id: id.clone(), port };
        self.settings.agent_type.client(Arc::new(dialer), endpoint)
    }

    /// A translator for this session of an agent.
    pub(crate) fn translator(&self, session: &str) -> Box<dyn Translator> {
        self.settings.agent_type.translator(session)
    }

    /// The model of an agent with its provider, and the models of the Chat Completions API that it can change to.
    pub(super) async fn agent_models(&self, config: Option<&AgentConfig>) -> (String, Vec<ChatModel>) {
        let model = self.llm.model_of(config).await;
        (model.qualified_id(), self.llm.chat_models(&model).await)
    }

    /// The programs of this machine for an agent's sandbox.
    pub(super) fn agent_programs(&self) -> Result<AgentPrograms, LaunchError> {
        let RuntimeSettings { agent_type, sandboxes, search_path } = &self.settings;
        let program = agent_type.program();
        let agent = config::find_program(search_path, program.name);
        let agent = agent.and_then(|path| path.canonicalize().ok());
        let agent = agent.ok_or(LaunchError::NoAgent(program))?;
        Ok(AgentPrograms { agent, browser: BrowserPrograms::find(sandboxes, search_path).ok() })
    }
}
