//! What a client says. Who speaks is known from the connection, so a `userId` in a message is ignored.

use serde::{Deserialize, Serialize};

use crate::words::words;

/// A message of a client. Read frames with [`ClientMessage::parse`], which tells the unknown from the
/// malformed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub enum ClientMessage {
    Ping,
    Prompt {
        content: String,
        /// Data URIs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        images: Option<Vec<String>>,
    },
    Cancel,
    GetStatus,
    GetMessages,
    SaveSnapshot {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<String>,
    },
    RunAutoStart {
        /// Chosen by the client; the answer carries it back.
        run_id: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mode: Option<AutoStartMode>,
        /// Absent means those of the configuration.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        commands: Option<Vec<AutoStartCommand>>,
    },
    GetGitStatus {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        workspace_path: Option<String>,
    },
    GitCreateBranch {
        branch_name: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        workspace_path: Option<String>,
    },
    GitCommit {
        message: String,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        include_untracked: bool,
        /// An empty list means the same as none: take what is tracked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        files: Option<Vec<String>>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        workspace_path: Option<String>,
    },
    GitPush {
        /// Absent: the branch that is checked out.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        branch_name: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        workspace_path: Option<String>,
    },
    GitCreatePr {
        title: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        body: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        base_branch: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        workspace_path: Option<String>,
    },
}

impl ClientMessage {
    /// Every type name; one that is not here is none of ours.
    pub const TYPES: &[&str] = &[
        "ping",
        "prompt",
        "cancel",
        "get_status",
        "get_messages",
        "save_snapshot",
        "run_auto_start",
        "get_git_status",
        "git_create_branch",
        "git_commit",
        "git_push",
        "git_create_pr",
    ];
}

words! {
    /// Why service commands are run.
    AutoStartMode as "auto start mode" {
        /// To see whether they work.
        Test = "test",
        /// To have them run.
        Start = "start",
    }
}

/// A command that starts a service in the sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AutoStartCommand {
    pub name: String,
    pub command: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_path: Option<String>,
}
