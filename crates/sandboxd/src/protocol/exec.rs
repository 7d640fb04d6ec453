//! Running a program.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Place;

/// A program to run, in a process group of its own.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Exec {
    pub argv: Vec<String>,
    /// The workspace, if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<Place>,
    /// Added to a clean environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Without it, the program's input is empty.
    #[serde(default)]
    pub stdin: bool,
    /// Errors go where output goes, in the order in which they were written.
    #[serde(default)]
    pub merge: bool,
    /// What comes beyond this is read and dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_limit: Option<u64>,
    /// A terminal of this size, for input, output and errors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pty: Option<Size>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Size {
    pub cols: u16,
    pub rows: u16,
}

/// Said by the caller beside the input.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Control {
    /// Goes to the whole process group; `SIGKILL` to all that came of the program.
    Signal(i32),
    Resize(Size),
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct ExecDone {
    pub ended: Ended,
    /// Some output was dropped because of the limit.
    #[serde(default)]
    pub truncated: bool,
    /// The program left somebody behind who still holds its output.
    #[serde(default)]
    pub detached: bool,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    Exit(i32),
    Signal(i32),
    /// The time limit killed it.
    TimedOut,
}
