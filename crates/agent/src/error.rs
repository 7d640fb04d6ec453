//! Errors of an agent. They never contain anything that the agent sent.

use std::error::Error;

/// Why an agent did not do what it was asked for. Some variants contain the operation, as a verb phrase.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The agent was restarted, or does not wait for this answer any more.
    #[error("the agent does not know the question")]
    UnknownQuestion,
    /// The model is ours, such as `litellm/large`.
    #[error(
        "The agent does not know the model {0}: change the model of the session, or add this one to the agent"
    )]
    UnknownModel(String),
    #[error("the agent did not answer in time (asked to {0})")]
    TimedOut(&'static str),
    #[error("the connection to the agent broke (asked to {0})")]
    Broken(&'static str),
    /// The memory budget for this agent is used up.
    #[error("there is no memory for the agent's answer (asked to {0})")]
    NoMemory(&'static str),
    /// An error that only this type of agent has. Callers only show it.
    #[error(transparent)]
    Other(Box<dyn Error + Send + Sync>),
}
