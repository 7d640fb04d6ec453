//! Why the agent could not be asked, in words that hold nothing of what it said.

use std::io;

use crate::sse::SseError;

/// The text in most of them is what was asked.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    #[error("the agent cannot be reached: {0}")]
    Unreachable(io::ErrorKind),
    #[error("the agent did not answer in time (asked to {0})")]
    TimedOut(&'static str),
    #[error("the connection to the agent broke (asked to {0})")]
    Broken(&'static str),
    /// `name` is the agent's name for the error, where it has one.
    #[error("the agent refused to {what}: {status} {name}")]
    Refused { what: &'static str, status: u16, name: String },
    #[error("the agent's answer is too long (asked to {0})")]
    TooLong(&'static str),
    /// The gateway's share of memory for this agent is used up.
    #[error("there is no memory for the agent's answer (asked to {0})")]
    NoMemory(&'static str),
    #[error("the agent's answer makes no sense (asked to {0})")]
    Malformed(&'static str),
    /// Nothing came on the stream of events, not even a heartbeat: subscribe again.
    #[error("the agent has fallen silent")]
    Silent,
    /// Only this event is lost; the stream goes on.
    #[error(transparent)]
    Event(#[from] SseError),
    #[error("this id cannot be one of the agent's")]
    BadId,
    #[error("the agent's host, path or header has a character that cannot be in one")]
    BadPlace,
    #[error(
        "a prompt needs a part id for its text and each image, images as data URIs, and a model with its provider"
    )]
    BadPrompt,
}
