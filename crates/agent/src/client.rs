//! The calls to a running agent.

use std::time::Duration;

use async_trait::async_trait;
use proto::ReasoningEffort;
use proto::socket::QuestionKind;

use crate::{AgentError, EventStream, History};

/// Returns whether this many more bytes may be held in memory.
pub type AllowBytes<'a> = dyn FnMut(usize) -> bool + Send + 'a;

/// A prompt for the agent.
#[derive(Clone, Copy, Debug)]
pub struct Prompt<'a> {
    /// See [`prompt_id`](crate::prompt_id).
    pub id: &'a str,
    /// The model with its provider, such as `anthropic/claude-opus-4-6`.
    pub model: &'a str,
    pub effort: Option<ReasoningEffort>,
    pub text: &'a str,
    /// The images as data URIs.
    pub images: &'a [String],
}

/// The agent's own session for one of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentSession {
    pub id: String,
    /// The agent already had the session, and may be in the middle of a turn.
    pub remembered: bool,
}

/// A client of a running agent.
#[async_trait]
pub trait AgentClient: Send + Sync {
    /// Fails unless the agent answers now.
    async fn check_health(&self) -> Result<(), AgentError>;

    /// Waits until the agent answers.
    async fn wait_until_listening(&self, limit: Duration) -> Result<(), AgentError>;

    /// Waits until the agent answers and has loaded the project and its tools.
    async fn wait_until_ready(&self, limit: Duration) -> Result<(), AgentError>;

    /// Whether the agent can use this model, given with its provider.
    async fn knows_model(&self, model: &str) -> Result<bool, AgentError>;

    /// Makes the agent read its files again. This ends the event stream.
    async fn reload(&self) -> Result<(), AgentError>;

    /// Subscribes to all events from now on.
    async fn events(&self) -> Result<Box<dyn EventStream>, AgentError>;

    /// Opens the session with this id if the agent still has it, and otherwise a new one. Without a title, the agent may
    /// ask its model for one.
    async fn open_session(
        &self,
        known: Option<&str>,
        title: Option<&str>,
    ) -> Result<AgentSession, AgentError>;

    /// Sends a prompt. The answer arrives as events. Sending it again under the same id must not start a second turn.
    async fn prompt(&self, session: &str, prompt: &Prompt<'_>) -> Result<(), AgentError>;

    /// Cancels the current turn.
    async fn cancel(&self, session: &str) -> Result<(), AgentError>;

    /// Answers a request, with the texts of each of its parts. The answer to a request for a permission is one of
    /// [`PERMISSION_ANSWERS`](proto::socket::PERMISSION_ANSWERS). Fails with [`AgentError::UnknownQuestion`] if the agent
    /// does not wait for it.
    async fn answer(
        &self,
        request: &str,
        kind: QuestionKind,
        answers: &[Vec<String>],
    ) -> Result<(), AgentError>;

    /// Rejects a request. Fails like [`AgentClient::answer`].
    async fn reject(&self, request: &str, kind: QuestionKind) -> Result<(), AgentError>;

    /// Reads the agent's history of the session, back to the given message if that is possible. It calls `allow` before
    /// it holds more bytes; `false` aborts the request.
    async fn history(
        &self,
        session: &str,
        back_to: &str,
        allow: &mut AllowBytes<'_>,
    ) -> Result<History, AgentError>;
}
