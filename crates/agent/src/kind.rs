//! A type of agent. The gateway chooses one when it starts.

use std::sync::Arc;

use crate::{AgentClient, AgentError, ChatModel, Dial, Endpoint, Entry, Launch, Program, Setup, Translator};

/// A type of agent, such as OpenCode.
pub trait AgentType: Send + Sync {
    /// The program that runs the agent.
    fn program(&self) -> Program;

    /// The files to write before the agent starts. Files of tools belong into [`TOOL_DIRECTORY`](crate::TOOL_DIRECTORY).
    fn files(&self, setup: &Setup<'_>) -> Vec<Entry>;

    /// The file of [`AgentType::files`] from which the agent knows the models of the Chat Completions API. A reload makes
    /// the agent read it again. `None` if the agent takes any name of a model.
    fn model_list(&self, directory: &str, models: &[ChatModel]) -> Option<Entry>;

    /// How to start the program. This must not depend on the session: the process may have been started for the pool.
    fn launch(&self, setup: &Setup<'_>) -> Launch;

    /// The directory in the agent's home with its history of sessions, in which secrets are overwritten in copies. The
    /// agent must still read the history when the texts in it have changed.
    fn history_directory(&self) -> Option<&'static str>;

    /// Prepares a client for an agent. This opens no connection.
    fn client(&self, dial: Arc<dyn Dial>, endpoint: &Endpoint) -> Result<Arc<dyn AgentClient>, AgentError>;

    /// A translator for this session of the agent, without an active turn.
    fn translator(&self, session: &str) -> Box<dyn Translator>;
}
