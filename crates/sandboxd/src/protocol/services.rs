//! Long-running services, and the status of the server itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{ExitReason, Place};

/// A service to keep running. It replaces a service of the same name.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceSpec {
    /// Letters, digits, `-`, `_` and `.`; also the name of its log file.
    pub name: String,
    /// The command, for `sh -c`.
    pub command: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<Place>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    #[serde(default)]
    pub restart: Restart,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Restart {
    Never,
    /// The service restarts after a failure: an exit code other than 0, or a signal.
    #[default]
    OnFailure,
    Always,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ServiceInfo {
    pub name: String,
    pub command: String,
    pub state: ServiceState,
    pub pid: Option<u32>,
    pub restarts: u32,
    pub last_exit: Option<ExitReason>,
    /// Milliseconds since 1970, of the last start.
    pub started_at: Option<i64>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ServiceState {
    Running,
    /// It has exited, and will be restarted after a delay.
    Waiting,
    /// It was stopped, or has exited and is not to be restarted.
    Stopped,
    /// It failed and is not to be restarted, or could not be started.
    Failed,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct LogsDone {
    /// Bytes that were dropped from memory before they could be sent.
    pub skipped: u64,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Status {
    pub version: String,
    pub uptime_ms: u64,
    pub services: usize,
    /// Resident memory of the worker.
    pub memory_bytes: u64,
}
