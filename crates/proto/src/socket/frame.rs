//! What stands around a message: the numbers that let a client go on where it was, and the reading of frames.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{ClientMessage, ServerMessage};

/// A server message with its place in the session's stream.
///
/// Broadcast messages are numbered without holes; messages to one client have no number, except `init`,
/// whose number is the last one that it already contains.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Frame {
    #[serde(flatten)]
    pub message: ServerMessage,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<i64>,
    /// The first number of several that were joined into one `token`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq_from: Option<i64>,
    /// Which generation of owner speaks; on `init`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<i64>,
}

impl Frame {
    /// A message to one client, without a number.
    pub const fn to_one(message: ServerMessage) -> Self {
        Self { message, seq: None, seq_from: None, epoch: None }
    }

    /// A message to everyone, with its number.
    pub const fn broadcast(message: ServerMessage, seq: i64) -> Self {
        Self { message, seq: Some(seq), seq_from: None, epoch: None }
    }

    /// Reads a frame of the server.
    pub fn parse(text: &str) -> Result<Self, FrameError> {
        read(text, ServerMessage::TYPES)
    }
}

impl ClientMessage {
    /// Reads a frame of a client.
    pub fn parse(text: &str) -> Result<Self, FrameError> {
        read(text, Self::TYPES)
    }
}

/// Why a frame could not be read.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// It is well formed and of a type that is not ours, perhaps of a later version: ignore it.
    #[error("unknown message type")]
    UnknownType,
    /// It is not JSON, has no type, or its fields are not those of its type.
    #[error("malformed message: {0}")]
    Malformed(#[from] serde_json::Error),
}

#[derive(Deserialize)]
struct Tag {
    r#type: String,
}

fn read<T: DeserializeOwned>(text: &str, known: &[&str]) -> Result<T, FrameError> {
    let Tag { r#type } = serde_json::from_str(text)?;
    if !known.contains(&r#type.as_str()) {
        return Err(FrameError::UnknownType);
    }
    Ok(serde_json::from_str(text)?)
}
