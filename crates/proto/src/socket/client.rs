//! Messages from clients. The sender is known from the connection, so a `userId` in a message is ignored.

use serde::{Deserialize, Serialize};

use crate::string_enums::string_enums;

/// A message from a client. [`ClientMessage::parse`] distinguishes unknown types from malformed messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub enum ClientMessage {
    Ping,
    Prompt {
        content: String,
        /// Images as data URIs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        images: Option<Vec<String>>,
    },
    Cancel,
    /// Changes the model from the next prompt on.
    SetModel {
        model_id: String,
    },
    AnswerQuestion {
        question_id: String,
        /// The chosen labels or a text, for each part of the question.
        answers: Vec<Vec<String>>,
    },
    GetStatus,
    GetMessages,
    SaveSnapshot {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<String>,
    },
    RunAutoStart {
        /// An id chosen by the client; the answer repeats it.
        run_id: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mode: Option<AutoStartMode>,
        /// The commands to run; absent means those of the configuration.
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
        /// An empty list means the same as an absent one: commit all tracked files.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        files: Option<Vec<String>>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        workspace_path: Option<String>,
    },
    GitPush {
        /// The branch to push; absent means the current one.
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
    /// All message types; any other type is unknown.
    pub const TYPES: &[&str] = &[
        "ping",
        "prompt",
        "cancel",
        "set_model",
        "answer_question",
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

string_enums! {
    /// Why service commands are run.
    AutoStartMode as "auto start mode" {
        /// Commands are run to test whether they work.
        Test = "test",
        /// Commands are run to start the services.
        Start = "start",
    }
}

/// A command that starts a service in the sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AutoStartCommand {
    pub name: String,
    pub command: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_path: Option<String>,
}
