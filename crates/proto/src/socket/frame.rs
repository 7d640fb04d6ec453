//! Frames: a message with the sequence number from which a client can resume, and the parser for frames.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{ClientMessage, ServerMessage};

/// A server message with its position in the session's stream.
///
/// Broadcast messages are numbered without gaps. Messages to a single client have no number, except `init`,
/// whose number is that of the last message it includes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Frame {
    #[serde(flatten)]
    pub message: ServerMessage,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<i64>,
    /// The first sequence number, if several messages were merged into one `token`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq_from: Option<i64>,
    /// The epoch of the session's owner; present in `init`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<i64>,
}

impl Frame {
    /// A message to a single client, without a sequence number.
    pub const fn to_one(message: ServerMessage) -> Self {
        Self { message, seq: None, seq_from: None, epoch: None }
    }

    /// A message to all clients, with its sequence number.
    pub const fn broadcast(message: ServerMessage, seq: i64) -> Self {
        Self { message, seq: Some(seq), seq_from: None, epoch: None }
    }

    /// Parses a frame from the server.
    pub fn parse(text: &str) -> Result<Self, FrameError> {
        read(text, ServerMessage::TYPES)
    }
}

impl ClientMessage {
    /// Parses a frame from a client.
    pub fn parse(text: &str) -> Result<Self, FrameError> {
        read(text, Self::TYPES)
    }
}

/// Why a frame could not be parsed.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The message is well formed but of an unknown type, perhaps from a later version. Ignore it.
    #[error("unknown message type")]
    UnknownType,
    /// The message is not JSON, has no type, or has the wrong fields for its type.
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
