//! What is said on the channel: one JSON request opens a conversation, one JSON answer ends it.
//!
//! The inside refuses fields that it does not know, since a request that means more than it understands must not be
//! half done; the host ignores them in answers. New optional fields of requests come with a new channel version.
//!
//! What else flows in a conversation:
//!
//! | request | caller → inside | inside → caller |
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

pub use exec::{Control, Ended, Exec, ExecDone, Size};
pub use files::{
    Entry, EnvApplied, EnvBody, EnvFile, EnvFormat, EnvKey, EnvMode, EnvScrubbed, EnvWritten, Kind, Listing,
    Place, ReadDone, Root, Stat,
};
pub use services::{LogsDone, Restart, ServiceInfo, ServiceSpec, ServiceState, Status};

/// The longest answer that is not a stream of its own.
pub const MAX_DOCUMENT: usize = 8 * 1024 * 1024;
/// The largest file that is read or written by one request.
pub const MAX_FILE: u64 = 256 * 1024 * 1024;
/// The most entries that one listing gives.
pub const MAX_ENTRIES: usize = 10_000;
/// The longest [`EnvBody`].
pub const MAX_ENV_BODY: usize = 1024 * 1024;
/// What the inside says beside the bytes once a dialled port has answered.
pub const CONNECTED: &[u8] = b"{\"connected\":true}";

/// What the host asks for.
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
    ServiceStop(Named),
    ServiceRestart(Named),
    ServiceList(Nothing),
    Logs(Logs),
    Dial(Dial),
}

/// The words that `op` can be; a test holds this against [`Request`].
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

/// A request or an answer that says all by being there.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Read {
    pub place: Place,
    #[serde(default)]
    pub offset: u64,
    /// No more than this is sent. Without it the whole file is, or the request is refused if that is too large.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Write {
    pub place: Place,
    /// Without it, the mode of the file that is replaced, or 0644.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// Missing folders are made.
    #[serde(default)]
    pub parents: bool,
    /// Refused above this, while it streams; [`MAX_FILE`] at most.
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
pub struct Named {
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

/// How a conversation ends.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer<T> {
    Ok(T),
    /// The answer was sent on the main lane, in so many bytes.
    Document(usize),
    Refused(Refusal),
}

/// Why the inside did not do it. It never repeats a value of the request, except names and paths.
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
    /// The request or a message beside it makes no sense.
    BadRequest,
    UnknownOp,
    NotFound,
    Exists,
    NotADirectory,
    IsADirectory,
    NotEmpty,
    /// A fifo, a device or a socket.
    NotAFile,
    /// The path leaves its root, or passes through a link where none is followed.
    Escapes,
    TooLarge,
    /// There are too many already.
    Limit,
    /// Required variables have no value: see [`Refusal::missing`].
    Missing,
    Denied,
    /// The program could not be started, or the port does not answer.
    Unreachable,
    Io,
    /// A code of a newer version.
    #[serde(other)]
    Other,
}

/// Reads a request. The refusal never holds a word of it.
pub fn parse(bytes: &[u8]) -> Result<Request, Refusal> {
    let error = match serde_json::from_slice(bytes) {
        Ok(request) => return Ok(request),
        Err(error) => error,
    };
    // Serde's own text quotes what it did not like, and that may be a secret.
    if !error.is_data() {
        return Err(Refusal::new(Code::BadRequest, "the request is not JSON, or nested too deep"));
    }
    let op = serde_json::from_slice::<Op>(bytes).ok().map(|op| op.op);
    match op.and_then(|op| OPS.iter().find(|known| **known == op)) {
        Some(op) => Err(Refusal::new(Code::BadRequest, format!("not what {op} takes"))),
        None => Err(Refusal::new(Code::UnknownOp, "no such operation here")),
    }
}

#[derive(Deserialize)]
struct Op {
    op: String,
}
