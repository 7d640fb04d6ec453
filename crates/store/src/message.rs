//! A message of the transcript, with ids and times that its wire format omits.

use chrono::{DateTime, Utc};
use proto::socket::{Message, MessageRole, MessageSource, Part, ToolCall, ToolStatus};
use sqlx::types::JsonValue;

/// One message. It keeps the position of its first save.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredMessage {
    pub id: String,
    pub role: MessageRole,
    /// All text parts, joined.
    pub content: String,
    pub is_complete: bool,
    /// The message was interrupted and stays incomplete.
    pub interrupted: bool,
    /// Why the turn that ended with this message failed.
    pub error: Option<String>,
    pub sender_id: Option<String>,
    pub source: Option<MessageSource>,
    pub created_at: DateTime<Utc>,
    pub parts: Vec<StoredPart>,
}

/// A part of a message. Its id is unique within the message.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredPart {
    pub id: String,
    pub body: PartBody,
}

/// The content of a part.
#[derive(Clone, Debug, PartialEq)]
pub enum PartBody {
    Text(String),
    /// A data URI or a URL.
    Image(String),
    Tool(StoredTool),
}

/// A tool call.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredTool {
    pub call_id: String,
    pub tool: String,
    pub args: JsonValue,
    pub result: Option<String>,
    pub status: ToolStatus,
    pub started_at: DateTime<Utc>,
    pub completed_at: Option<DateTime<Utc>>,
}

impl StoredMessage {
    /// The stored form of a message. Its parts get these ids in order; a part without an id is named by its index.
    /// A tool call has the times of its entry in the list of calls, or those of the message.
    pub fn from_message(message: Message, part_ids: impl IntoIterator<Item = String>) -> Self {
        let mut ids = part_ids.into_iter();
        let calls = message.tool_calls;
        let created_at = time(message.created_at);
        let parts = message.parts.into_iter().enumerate().map(|(place, part)| StoredPart {
            id: ids.next().unwrap_or_else(|| format!("part-{place}")),
            body: PartBody::from_part(part, &calls, created_at),
        });
        Self {
            id: message.id,
            role: message.role,
            content: message.content,
            is_complete: message.is_complete,
            interrupted: message.interrupted,
            error: message.error,
            sender_id: message.sender_id,
            source: message.source,
            created_at,
            parts: parts.collect(),
        }
    }
}

impl PartBody {
    fn from_part(part: Part, calls: &[ToolCall], created_at: DateTime<Utc>) -> Self {
        match part {
            Part::Text { text, .. } => Self::Text(text),
            Part::Image { image } => Self::Image(image),
            Part::Tool { tool_call_id, tool_name, args, result, status } => {
                let call = calls.iter().find(|call| call.id == tool_call_id);
                Self::Tool(StoredTool {
                    call_id: tool_call_id,
                    tool: tool_name,
                    args,
                    result,
                    status,
                    started_at: call.map_or(created_at, |call| time(call.started_at)),
                    completed_at: call.and_then(|call| call.completed_at).map(time),
                })
            }
        }
    }
}

/// A message as clients see it. Each text is sent once if the wire format allows it: a message with text only is sent as
/// content without parts.
impl From<StoredMessage> for Message {
    fn from(stored: StoredMessage) -> Self {
        let has_more = stored.parts.iter().any(|part| !matches!(part.body, PartBody::Text(_)));
        let mut tool_calls = Vec::new();
        let mut parts = Vec::with_capacity(stored.parts.len());
        for part in stored.parts {
            parts.push(match part.body {
                PartBody::Text(_) if !has_more => continue,
                PartBody::Text(text) => Part::Text { text, part_id: Some(part.id) },
                PartBody::Image(image) => Part::Image { image },
                PartBody::Tool(tool) => {
                    tool_calls.push(ToolCall::from(tool.clone()));
                    Part::Tool {
                        tool_call_id: tool.call_id,
                        tool_name: tool.tool,
                        args: tool.args,
                        result: tool.result,
                        status: tool.status,
                    }
                }
            });
        }
        Self {
            id: stored.id,
            role: stored.role,
            content: stored.content,
            is_complete: stored.is_complete,
            created_at: stored.created_at.timestamp_millis(),
            sender_id: stored.sender_id,
            source: stored.source,
            tool_calls,
            parts,
            interrupted: stored.interrupted,
            error: stored.error,
        }
    }
}

impl From<StoredTool> for ToolCall {
    fn from(tool: StoredTool) -> Self {
        Self {
            id: tool.call_id,
            tool: tool.tool,
            args: tool.args,
            result: tool.result,
            status: tool.status,
            started_at: tool.started_at.timestamp_millis(),
            completed_at: tool.completed_at.map(|at| at.timestamp_millis()),
        }
    }
}

/// A time from the wire. An agent may send any number, so it is clamped to what both databases can store.
fn time(millis: i64) -> DateTime<Utc> {
    const MAX_MILLIS: i64 = 253_402_300_799_999;
    DateTime::from_timestamp_millis(millis.clamp(0, MAX_MILLIS)).unwrap_or_default()
}
