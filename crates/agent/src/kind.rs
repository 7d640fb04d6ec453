//! A type of agent. The gateway chooses one when it starts.

use std::sync::Arc;

use crate::{AgentClient, AgentError, Dial, Endpoint, Translator};

/// A type of agent, such as OpenCode.
pub trait AgentType: Send + Sync {
    /// Prepares a client for an agent. This opens no connection.
    fn client(&self, dial: Arc<dyn Dial>, endpoint: &Endpoint) -> Result<Arc<dyn AgentClient>, AgentError>;

    /// A translator for this session of the agent, without an active turn.
    fn translator(&self, session: &str) -> Box<dyn Translator>;
}
