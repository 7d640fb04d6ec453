//! The messages on the channel: one JSON request opens a stream, one JSON answer finishes it.
//!
//! The server refuses unknown fields, because it must not half-perform a request that it does not fully understand;
//! the client ignores them in answers. New optional request fields need a new channel version.
//!
//! What else a stream carries:
//!
//! | request | client → server | server → client |
//! |---|---|---|
//! | exec | Main: input, End closes it; control: [`Control`] | Main: output, Errors: errors |
//! | read | | Main: content |
//! | write | Main: content, then End | |
//! | env apply, env scrub | Main: an [`EnvBody`], then End | |
//! | logs | | Main: the log, as it grows if followed |
//! | dial | Main: bytes | control: [`CONNECTED`], then Main: bytes |
//! | others | | Main: the answer, if it is too long for one frame |

mod exec;
mod files;
mod services;

use serde::{Deserialize, Serialize};

pub use exec::{Control, Exec, ExecDone, ExitReason, Size};
pub use files::{
    Entry, EnvApplyResult, EnvBody, EnvFile, EnvFormat, EnvKey, EnvMode, EnvScrubResult, Kind, Listing,
    Place, ReadDone, Root, Stat, WrittenEnvFile,
};
pub use services::{LogsDone, Restart, ServiceInfo, ServiceSpec, ServiceState, Status};

/// The longest answer that is sent as a single document.
pub const MAX_DOCUMENT: usize = 8 * 1024 * 1024;
/// The largest file that one request can read or write.
pub const MAX_FILE: u64 = 256 * 1024 * 1024;
/// The most entries that one listing returns.
pub const MAX_ENTRIES: usize = 10_000;
/// The longest [`EnvBody`].
pub const MAX_ENV_BODY: usize = 1024 * 1024;
/// The file in the home directory with the names of the variables that env apply wrote, by the path of their file in the
/// workspace. It is in our own directory, which is in no snapshot.
pub const ENV_RECORD: &str = ".proliferate/env-files.json";
/// The control message that the server sends once a dialled port has accepted the connection.
pub const CONNECTED: &[u8] = b"{\"connected\":true}";

/// A request from the gateway.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Request {
    Status(Nothing),
    Exec(Exec),
    Read(Read),
    Write(Write),
    List(List),
    Stat(Place),
    Remove(Remove),
    Mkdir(Place),
    Rename(Rename),
    EnvApply(Nothing),
    EnvScrub(Nothing),
    ServiceStart(ServiceSpec),
    ServiceStop(ServiceName),
    ServiceRestart(ServiceName),
    ServiceList(Nothing),
    Logs(Logs),
    Dial(Dial),
}

/// All values of `op`; a test compares this with [`Request`].
pub const OPS: [&str; 17] = [
    "status",
    "exec",
    "read",
    "write",
    "list",
    "stat",
    "remove",
    "mkdir",
    "rename",
    "env_apply",
    "env_scrub",
    "service_start",
    "service_stop",
    "service_restart",
    "service_list",
    "logs",
    "dial",
];

/// A request or an answer without fields.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Read {
    pub place: Place,
    #[serde(default)]
    pub offset: u64,
    /// At most this many bytes are sent. Without it the entire file is sent, or the request is refused if it is too
    /// large.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Write {
    pub place: Place,
    /// Defaults to the mode of the replaced file, or 0644.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// Creates missing directories.
    #[serde(default)]
    pub parents: bool,
    /// The write is refused once it exceeds this; [`MAX_FILE`] at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most: Option<u64>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct List {
    pub place: Place,
    /// [`MAX_ENTRIES`] at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most: Option<usize>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Remove {
    pub place: Place,
    #[serde(default)]
    pub recursive: bool,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Rename {
    pub from: Place,
    pub to: Place,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceName {
    pub name: String,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Logs {
    pub name: String,
    #[serde(default)]
    pub follow: bool,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Dial {
    pub port: u16,
}

/// The final message of a stream.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer<T> {
    Ok(T),
    /// The answer was sent on the main lane and has this many bytes.
    Document(usize),
    Refused(Refusal),
}

/// Why the server refused a request. It never repeats values from the request, except names and paths.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{code:?}: {message}")]
pub struct Refusal {
    pub code: Code,
    #[serde(default)]
    pub message: String,
    /// The names of required variables that have no value.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
}

impl Refusal {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), missing: Vec::new() }
    }
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// The request or a control message is invalid.
    BadRequest,
    UnknownOp,
    NotFound,
    Exists,
    NotADirectory,
    IsADirectory,
    NotEmpty,
    /// A fifo, a device or a socket.
    NotAFile,
    /// The path leaves its root, or passes a symlink where none may be followed.
    Escapes,
    TooLarge,
    /// A limit on the number of something is reached.
    Limit,
    /// Required variables have no value: see [`Refusal::missing`].
    Missing,
    Denied,
    /// The program could not be started, or the port does not accept connections.
    Unreachable,
    Io,
    /// A code from a newer version.
    #[serde(other)]
    Other,
}

/// Parses a request. The refusal never quotes it.
pub fn parse(bytes: &[u8]) -> Result<Request, Refusal> {
    let error = match serde_json::from_slice(bytes) {
        Ok(request) => return Ok(request),
        Err(error) => error,
    };
    // Serde's own message quotes the input, which may contain a secret.
    if !error.is_data() {
        return Err(Refusal::new(Code::BadRequest, "the request is not valid JSON, or nested too deeply"));
    }
    let op = serde_json::from_slice::<Op>(bytes).ok().map(|op| op.op);
    match op.and_then(|op| OPS.iter().find(|known| **known == op)) {
        Some(op) => Err(Refusal::new(Code::BadRequest, format!("the fields of {op} are not valid"))),
        None => Err(Refusal::new(Code::UnknownOp, "unknown operation")),
    }
}

#[derive(Deserialize)]
struct Op {
    op: String,
}
