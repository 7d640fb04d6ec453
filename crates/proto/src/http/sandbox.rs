//! Work in the sandbox of a session: commands, files, differences and logs.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::iso;
use crate::string_enums::string_enums;

/// A command to run in the sandbox of a session.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExecCommand {
    /// The program and its arguments; no shell reads them.
    #[schema(min_items = 1, max_items = 1000)]
    pub command: Vec<String>,
    /// The working directory: a path in the workspace, or in the home directory after `~/`; defaults to the workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 4096)]
    pub cwd: Option<String>,
    /// The standard input, in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// Kill the command after this time; defaults to 600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 3600)]
    pub timeout_seconds: Option<u64>,
}

/// One line of the answer to a command. Output is base64, because it may be any bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ExecFrame {
    Stdout {
        data: String,
    },
    Stderr {
        data: String,
    },
    /// The command has ended. This is the last line.
    #[serde(rename_all = "camelCase")]
    Exit {
        /// The exit code; 128 and the signal if one ended the command, 124 if the time was over.
        exit_code: i32,
        timed_out: bool,
        /// Some output was dropped, because there was too much.
        truncated: bool,
    },
    /// The command could not be run, or was killed before its end. This is the last line.
    Error {
        message: String,
    },
}

/// A file or directory in the sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct FileQuery {
    /// A path in the workspace, or in the home directory after `~/`. It must not contain `..`.
    #[param(max_length = 4096)]
    pub path: String,
    /// The permissions of a new file, in octal; defaults to 644.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(max_length = 4)]
    pub mode: Option<String>,
}

string_enums! {
    FileKind as "kind of file" {
        File = "file",
        Directory = "directory",
        Symlink = "symlink",
        /// A fifo, a device or a socket.
        Other = "other",
    }
}

/// An entry of a directory, or the file itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FileEntry {
    pub name: String,
    pub kind: FileKind,
    pub size: u64,
    /// The permissions, in octal.
    pub mode: String,
    #[serde(with = "iso")]
    pub modified_at: DateTime<Utc>,
}

/// The content of a path: the entries of a directory, or one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileListing {
    pub kind: FileKind,
    pub entries: Vec<FileEntry>,
    /// The directory has more entries.
    pub truncated: bool,
}

/// The commit to compare the workspace with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct DiffQuery {
    /// A commit, branch or tag of the repository; defaults to the last commit.
    #[param(max_length = 200)]
    pub base: Option<String>,
}

/// The changes in one repository of the workspace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RepoDiff {
    /// The directory of the repository in the workspace; `.` is the workspace itself.
    pub path: String,
    /// The difference as `git diff` prints it, including files that git does not track yet.
    pub diff: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionDiff {
    pub repositories: Vec<RepoDiff>,
}

/// The log to read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct LogQuery {
    /// The name of a service; defaults to the agent.
    #[param(max_length = 100)]
    pub service: Option<String>,
    /// Whether to continue with new output until the service ends.
    #[serde(default)]
    pub follow: bool,
}
