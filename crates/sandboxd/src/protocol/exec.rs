//! Running a program.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Place;

/// A program to run, in a process group of its own.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Exec {
    pub argv: Vec<String>,
    /// Defaults to the workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<Place>,
    /// Added to a clean environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Whether the caller sends input. Otherwise stdin is empty.
    #[serde(default)]
    pub stdin: bool,
    /// Sends stderr to stdout, in the order in which it was written.
    #[serde(default)]
    pub merge: bool,
    /// Output beyond this is read and dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_limit: Option<u64>,
    /// Uses a terminal of this size for stdin, stdout and stderr.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pty: Option<Size>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Size {
    pub cols: u16,
    pub rows: u16,
}

/// A control message from the caller to a running program.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Control {
    /// Sent to the process group; `SIGKILL` goes to all descendants of the program.
    Signal(i32),
    Resize(Size),
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct ExecDone {
    pub ended: ExitReason,
    /// Some output was dropped because of the limit.
    #[serde(default)]
    pub truncated: bool,
    /// The program left a process behind that still holds its output.
    #[serde(default)]
    pub detached: bool,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitReason {
    Exit(i32),
    Signal(i32),
    /// The program was killed by the time limit.
    TimedOut,
}
