//! What the functions of this module need: one value that the boot makes and everybody who runs agents holds.

use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use clock::{Clock, Rng};
use opencode::files::Tool;
use proto::SessionType;
use store::Store;
use tokio_util::sync::CancellationToken;

use super::launch::LaunchError;
use super::network::Networks;
use super::pool::Pool;
use super::sandboxes::Sandboxes;
use crate::config;

/// Where agents run.
pub struct Runtime {
    pub settings: RuntimeSettings,
    pub store: Store,
    pub clock: Clock,
    pub rng: Rng,
    pub sandboxes: Sandboxes,
    pub networks: Arc<Networks>,
    pub pool: Pool,
    /// Cancelled when the gateway stops.
    pub closing: CancellationToken,
    pub(crate) inward: Inward,
}

/// The operator's settings that concern agents.
pub struct RuntimeSettings {
    pub sandboxes: config::Sandboxes,
    /// Where the agent's program is looked for.
    pub search_path: Vec<PathBuf>,
}

/// What a sandbox gets of the layers above.
pub(crate) struct Inward {
    /// The gateway as programs in a sandbox reach it; none while the gateway stops.
    pub(crate) router: Box<dyn Fn() -> Option<Router> + Send + Sync>,
    /// The tools of an agent in this kind of session.
    pub(crate) tools: fn(SessionType) -> Vec<Tool>,
}

impl Runtime {
    pub(super) fn router(&self) -> Result<Router, LaunchError> {
        let stopping = || LaunchError::Broken("the gateway is stopping".to_owned());
        (self.inward.router)().ok_or_else(stopping)
    }

    /// The agent's program on this machine.
    pub(super) fn agent_program(&self) -> Result<PathBuf, LaunchError> {
        let found = config::find_program(&self.settings.search_path, "opencode");
        let found = found.and_then(|path| path.canonicalize().ok());
        found.ok_or(LaunchError::NoAgent(opencode::files::VERSION))
    }
}
