//! A message of the conversation with the agent, as clients see it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::string_enums::string_enums;

string_enums! {
    /// The author of a message.
    MessageRole as "message role" {
        User = "user",
        Assistant = "assistant",
    }

    /// The client from which a user's message came.
    MessageSource as "message source" {
        Slack = "slack",
        Web = "web",
        Api = "api",
        Cli = "cli",
        Automation = "automation",
    }

    /// The status of a tool call.
    ToolStatus as "tool status" {
        Pending = "pending",
        Running = "running",
        Completed = "completed",
        Error = "error",
    }
}

/// One message. Times are in milliseconds since the Unix epoch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Message {
    pub id: String,
    pub role: MessageRole,
    /// The text of the message: all text parts, concatenated.
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
    /// The answer was interrupted; no more content will follow.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub interrupted: bool,
    /// Why the turn that ended with this message, or with this unanswered prompt, failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A part of a message. Parts are in chronological order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub enum Part {
    Text {
        text: String,
        /// The id that the part's `token` and `text_part_complete` messages use; absent when the message is
        /// announced.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        part_id: Option<String>,
    },
    Image {
        /// The image as a data URI or a URL.
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

/// A tool call with its timestamps.
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
