//! A message of the conversation with the agent, as clients see it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::words::words;

words! {
    /// Who speaks.
    MessageRole as "message role" {
        User = "user",
        Assistant = "assistant",
    }

    /// Where a user's message came from.
    MessageSource as "message source" {
        Slack = "slack",
        Web = "web",
        Api = "api",
        Cli = "cli",
        Automation = "automation",
    }

    /// How far a tool call has come.
    ToolStatus as "tool status" {
        Pending = "pending",
        Running = "running",
        Completed = "completed",
        Error = "error",
    }
}

/// One message. Times are milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Message {
    pub id: String,
    pub role: MessageRole,
    /// All text parts, joined.
    pub content: String,
    pub is_complete: bool,
    pub created_at: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sender_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<MessageSource>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part>,
    /// The answer was cut off, and what is here is all there will be.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub interrupted: bool,
    /// Why the turn failed that ended with this message, or with this prompt where it was not answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A piece of a message, in the order of speaking.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub enum Part {
    Text {
        text: String,
        /// Under which its tokens and its end come; absent in a message as it is announced.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        part_id: Option<String>,
    },
    Image {
        /// A data URI or a URL.
        image: String,
    },
    Tool {
        tool_call_id: String,
        tool_name: String,
        args: Value,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        result: Option<String>,
        status: ToolStatus,
    },
}

/// A tool call of a message, with its times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolCall {
    pub id: String,
    pub tool: String,
    pub args: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    pub status: ToolStatus,
    pub started_at: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<i64>,
}
