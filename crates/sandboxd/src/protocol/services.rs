//! Programs that are kept running, and how the inside itself is.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Ended, Place};

/// What to keep running. A service of the same name is replaced.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceSpec {
    /// Letters, digits, `-`, `_` and `.`; also the name of its log file.
    pub name: String,
    /// For `sh -c`.
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
    /// After a failure: an exit code other than 0, or a signal.
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
    pub last_exit: Option<Ended>,
    /// Milliseconds since 1970, of the last start.
    pub started_at: Option<i64>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ServiceState {
    Running,
    /// It ended, and is started again after a while.
    Waiting,
    /// It was stopped, or ended and is not to be restarted.
    Stopped,
    /// It ended with a failure and is not to be restarted, or could not be started.
    Failed,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct LogsDone {
    /// Bytes that had left the memory before they could be sent.
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
