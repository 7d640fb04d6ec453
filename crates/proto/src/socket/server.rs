//! Messages from the server. Old clients know most of them; the others are additions that clients may ignore.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use super::{GitResult, GitState, Message, OpenQuestion, ToolStatus};
use crate::string_enums::string_enums;
use crate::{InvocationId, InvocationStatus, JsonObject, Risk, UserId, iso};

/// A message from the server; a [`Frame`](super::Frame) puts it on the wire.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", content = "payload", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub enum ServerMessage {
    /// The complete conversation, or its most recent part. Replaces everything that the client has.
    Init {
        messages: Vec<Message>,
        /// The number of earlier messages that did not fit into the frame.
        #[serde(default, skip_serializing_if = "is_zero")]
        earlier: u64,
        /// The preview settings; absent if there is no preview.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        config: Option<InitConfig>,
        /// The questions that wait for an answer.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        questions: Vec<OpenQuestion>,
        /// The invocations that wait for approval.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        approvals: Vec<OpenApproval>,
    },
    Status {
        status: WireStatus,
        /// A message for people; omitted if empty.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        message: String,
    },
    /// A new message. An assistant's message is first announced without content, before its tokens and tool
    /// calls.
    Message(Message),
    /// The next piece of a text part.
    Token {
        message_id: String,
        part_id: String,
        token: String,
    },
    /// The complete text of a part that has ended.
    TextPartComplete {
        message_id: String,
        part_id: String,
        text: String,
    },
    /// One step of the agent is complete; a turn may have several.
    MessageComplete {
        message_id: String,
    },
    MessageCancelled {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message_id: Option<String>,
    },
    /// A tool call has started. Sent again if its arguments become known later.
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
        /// The agent's own metadata, forwarded unchanged.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        metadata: Option<JsonObject>,
    },
    ToolEnd {
        part_id: String,
        tool_call_id: String,
        tool: String,
        /// An empty result is sent as a single space, because old clients treat an empty result as missing.
        #[serde(serialize_with = "serialize_non_empty")]
        result: String,
        duration_ms: u64,
        /// `Error` if the call failed, otherwise absent.
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
    /// A human is asked to approve an action.
    ActionApprovalRequest(OpenApproval),
    /// A human denied the action. An approval is announced by `action_completed` instead.
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
    /// Somebody changed the model of the session, from its next prompt on.
    ModelUpdate {
        model_id: String,
    },
    /// Declared but never sent by the old gateway; part of the vocabulary for compatibility.
    FileEdit {
        path: String,
        diff: String,
    },
    /// Declared but never sent by the old gateway; part of the vocabulary for compatibility.
    ArtifactCreated {
        path: String,
        title: String,
    },
    /// Messages with these sequence numbers are lost for this client; an `init` follows.
    Gap {
        from: i64,
        to: i64,
    },
    /// The turn has ended. Sent after its last `message_complete`.
    TurnComplete {
        message_ids: Vec<String>,
        outcome: TurnOutcome,
    },
    /// The number of queued prompts.
    Queue {
        length: u64,
    },
    /// The agent asks people something, and waits for the answer.
    Question(OpenQuestion),
    /// A question is settled. Without answers it was rejected: somebody cancelled, or nobody answered in time.
    QuestionAnswered {
        question_id: String,
        answers: Vec<Vec<String>>,
        /// The user or service that answered.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    },
}

impl ServerMessage {
    /// All message types; any other type is from a later version.
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
        "model_update",
        "file_edit",
        "artifact_created",
        "gap",
        "turn_complete",
        "queue",
        "question",
        "question_answered",
    ];
}

string_enums! {
    /// The status of a session as clients see it, which differs from the status in the database.
    WireStatus as "socket status" {
        /// A sandbox is being created.
        Creating = "creating",
        /// The gateway is connecting to the agent.
        Resuming = "resuming",
        /// The agent is connected.
        Running = "running",
        /// The session is paused.
        Paused = "paused",
        /// The session has ended.
        Stopped = "stopped",
        /// The agent could not be started or reached.
        Error = "error",
        /// The session is moving to a new sandbox.
        Migrating = "migrating",
    }

    /// The owner of a snapshot.
    SnapshotTarget as "snapshot target" {
        /// The configuration: all future sessions use it.
        Configuration = "configuration",
        /// The snapshot belongs to this session only.
        Session = "session",
    }

    /// The outcome of a turn.
    TurnOutcome as "turn outcome" {
        Ok = "ok",
        Cancelled = "cancelled",
        Error = "error",
    }
}

/// Settings that a client needs in addition to the conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InitConfig {
    pub preview_tunnel_url: String,
}

/// An invocation that waits for a person's approval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct OpenApproval {
    pub invocation_id: InvocationId,
    pub integration: String,
    pub action: String,
    pub risk_level: Risk,
    /// Why a person is asked although the mode that was set would not: `definition_drift` if nobody has reviewed the
    /// definition of the action as it is now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode_reason: Option<String>,
    /// Redacted and truncated.
    pub params: Value,
    /// The empty string on the wire if it never expires.
    #[serde(with = "iso::or_empty")]
    pub expires_at: Option<DateTime<Utc>>,
    /// Whether two people must approve it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub two_person: bool,
    /// Who approved it first; another person must approve it too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_approved_by: Option<UserId>,
    /// Identifies the request with its present parameters, for [`crate::http::ApproveInvocation`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_hash: Option<String>,
}

/// The result of one service command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AutoStartEntry {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_path: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    pub output: String,
    /// The exit code; `null` while the command is running.
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_file: Option<String>,
}

/// The result of an approved action.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum ActionOutcome {
    Completed { result: Value },
    Failed { error: String },
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde prescribes the signature")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn serialize_non_empty<S: Serializer>(result: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(if result.is_empty() { " " } else { result })
}
