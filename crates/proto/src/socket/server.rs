//! What the server says. Old clients know most of it; what is ours is additive and may be ignored.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use super::{GitResult, GitState, Message, ToolStatus};
use crate::words::words;
use crate::{InvocationId, InvocationStatus, JsonObject, Risk, UserId, iso};

/// A message of the server; a [`Frame`](super::Frame) puts it on the wire.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", content = "payload", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub enum ServerMessage {
    /// The whole conversation, or its end; replaces all that a client has.
    Init {
        messages: Vec<Message>,
        /// How many messages came before these and are too much for one frame.
        #[serde(default, skip_serializing_if = "is_zero")]
        earlier: u64,
        /// Absent when there is no preview.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        config: Option<InitConfig>,
    },
    Status {
        status: WireStatus,
        /// Left out when empty.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        message: String,
    },
    /// A new message. An assistant's comes first as a stub without content, before its tokens and tools.
    Message(Message),
    /// The next piece of text of a part.
    Token {
        message_id: String,
        part_id: String,
        token: String,
    },
    /// The whole text of a part that has ended.
    TextPartComplete {
        message_id: String,
        part_id: String,
        text: String,
    },
    /// One step of the agent has ended; a turn may have several.
    MessageComplete {
        message_id: String,
    },
    MessageCancelled {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message_id: Option<String>,
    },
    /// A tool call has begun; sent again when its arguments are known only later.
    ToolStart {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message_id: Option<String>,
        part_id: String,
        tool_call_id: String,
        tool: String,
        args: Value,
    },
    ToolMetadata {
        tool_call_id: String,
        tool: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        title: Option<String>,
        /// The agent's own, passed on whole.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        metadata: Option<JsonObject>,
    },
    ToolEnd {
        part_id: String,
        tool_call_id: String,
        tool: String,
        /// Written as one space when empty, since old clients take an empty result for none.
        #[serde(serialize_with = "never_empty")]
        result: String,
        duration_ms: u64,
        /// Given only where the call failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        status: Option<ToolStatus>,
    },
    Error {
        message: String,
    },
    /// The answer to `ping`.
    Pong,
    PreviewUrl {
        url: String,
    },
    SnapshotResult {
        success: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        snapshot_id: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
        target: SnapshotTarget,
    },
    AutoStartOutput {
        run_id: String,
        entries: Vec<AutoStartEntry>,
    },
    GitStatus(GitState),
    GitResult(GitResult),
    /// A human is asked.
    ActionApprovalRequest {
        invocation_id: InvocationId,
        integration: String,
        action: String,
        risk_level: Risk,
        params: Value,
        /// The empty text on the wire when it never expires.
        #[serde(with = "iso::or_empty")]
        expires_at: Option<DateTime<Utc>>,
    },
    /// A human said no; a yes is seen by its `action_completed`.
    ActionApprovalResult {
        invocation_id: InvocationId,
        status: InvocationStatus,
        approved_by: UserId,
    },
    /// An approved action has run.
    ActionCompleted {
        invocation_id: InvocationId,
        #[serde(flatten)]
        outcome: ActionOutcome,
    },
    SessionPaused,
    SessionResumed,
    TitleUpdate {
        title: String,
    },
    /// Declared by the old gateway and never sent by it; kept so that the vocabulary is whole.
    FileEdit {
        path: String,
        diff: String,
    },
    /// As above.
    ArtifactCreated {
        path: String,
        title: String,
    },
    /// These numbers are lost to this client; an `init` follows.
    Gap {
        from: i64,
        to: i64,
    },
    /// The turn has ended; after the last `message_complete` of it.
    TurnComplete {
        message_ids: Vec<String>,
        outcome: TurnOutcome,
    },
    /// How many prompts wait for their turn.
    Queue {
        length: u64,
    },
}

impl ServerMessage {
    /// Every type name; one that is not here is of a later version.
    pub const TYPES: &[&str] = &[
        "init",
        "status",
        "message",
        "token",
        "text_part_complete",
        "message_complete",
        "message_cancelled",
        "tool_start",
        "tool_metadata",
        "tool_end",
        "error",
        "pong",
        "preview_url",
        "snapshot_result",
        "auto_start_output",
        "git_status",
        "git_result",
        "action_approval_request",
        "action_approval_result",
        "action_completed",
        "session_paused",
        "session_resumed",
        "title_update",
        "file_edit",
        "artifact_created",
        "gap",
        "turn_complete",
        "queue",
    ];
}

words! {
    /// What a client is told about the session; not what the database calls it.
    WireStatus as "socket status" {
        /// A sandbox is being made.
        Creating = "creating",
        /// The agent is being reached.
        Resuming = "resuming",
        /// The agent is there.
        Running = "running",
        /// The session sleeps.
        Paused = "paused",
        /// The session has ended.
        Stopped = "stopped",
        /// The agent could not be had.
        Error = "error",
        /// The session moves to a new sandbox.
        Migrating = "migrating",
    }

    /// What a snapshot belongs to.
    SnapshotTarget as "snapshot target" {
        /// The configuration, for all sessions to come.
        Configuration = "configuration",
        /// This session only.
        Session = "session",
    }

    /// How a turn ended.
    TurnOutcome as "turn outcome" {
        Ok = "ok",
        Cancelled = "cancelled",
        Error = "error",
    }
}

/// What a client needs beside the conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InitConfig {
    pub preview_tunnel_url: String,
}

/// What one service command did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AutoStartEntry {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_path: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    pub output: String,
    /// `null` while it runs.
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_file: Option<String>,
}

/// How an approved action went.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum ActionOutcome {
    Completed { result: Value },
    Failed { error: String },
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks by reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn never_empty<S: Serializer>(result: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(if result.is_empty() { " " } else { result })
}
