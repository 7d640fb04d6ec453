//! Errors of requests to the agent. They never contain anything that the agent sent.

use std::io;

use crate::sse::SseError;

/// Most variants contain the operation that was requested, as a verb phrase.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    #[error("the agent cannot be reached: {0}")]
    Unreachable(io::ErrorKind),
    #[error("the agent did not answer in time (asked to {0})")]
    TimedOut(&'static str),
    #[error("the connection to the agent broke (asked to {0})")]
    Broken(&'static str),
    /// `name` is the agent's name for the error, or empty.
    #[error("the agent refused to {what}: {status} {name}")]
    Refused { what: &'static str, status: u16, name: String },
    #[error("the agent's answer is too long (asked to {0})")]
    TooLong(&'static str),
    /// The memory budget for this agent is used up.
    #[error("there is no memory for the agent's answer (asked to {0})")]
    NoMemory(&'static str),
    #[error("the agent's answer is malformed (asked to {0})")]
    Malformed(&'static str),
    /// No data on the event stream, not even a heartbeat: subscribe again.
    #[error("the agent sent nothing for too long, not even a heartbeat")]
    Silent,
    /// The stream loses this event and continues.
    #[error(transparent)]
    Event(#[from] SseError),
    #[error("not a valid id of the agent")]
    BadId,
    #[error("the agent's host, path or header contains an invalid character")]
    BadEndpoint,
    #[error("a prompt needs a model with its provider, and images as data URIs")]
    BadPrompt,
}
