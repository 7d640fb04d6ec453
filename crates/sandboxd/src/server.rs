//! The server that runs inside the sandbox.
//!
//! It has two processes. PID 1 (`reaper`) reads the key, forks the worker (`serve`) and reaps all orphans. The
//! worker is a separate process so that reaping never steals a child that the worker waits for. If the worker
//! exits, PID 1 exits, and the kernel kills everything else in the namespace.
//!
//! The agent runs with the same uid. Therefore both processes are not dumpable (nobody can read their memory or
//! open their files through `/proc`), the key arrives on standard input and is stored nowhere else, and the port
//! only accepts peers that prove the key. A process that the agent hides well (own session, cleared environment,
//! orphaned) survives the end of its exec, but not the sandbox. The agent can also kill or stop the worker, since
//! it has the same uid: that ends its own sandbox, or the gateway sees a silent channel.

mod dial;
mod dispatch;
mod envfiles;
mod exec;
mod files;
mod launch;
mod log;
mod output;
mod pty;
mod reaper;
mod remove;
mod roots;
mod serve;
mod services;
mod supervise;
mod sys;
mod tree;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{self, Read as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use serde::{Deserialize, Serialize};

pub use serve::Worker;

/// The subcommand that makes the program act as PID 1.
pub const SUBCOMMAND: &str = "sandboxd";

/// Runs the server if `word` is its subcommand, and returns the exit code. Call it first in `main`: the process
/// forks, so it must have only one thread.
pub fn hidden_main(word: &OsStr) -> Option<ExitCode> {
    if word != SUBCOMMAND {
        return None;
    }
    Some(reaper::init().map_or_else(
        |error| {
            let _ = writeln!(io::stderr(), "sandboxd: {error}");
            ExitCode::from(2)
        },
        ExitCode::from,
    ))
}

/// The search path of every program, unless the options have another.
pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The longest [`Options`] as JSON.
const MAX_OPTIONS: usize = 256 * 1024;

/// The configuration of the server. It arrives on standard input after the key, so that none of it is visible in
/// `/proc`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// The port on 127.0.0.1; 0 selects a free one.
    pub port: u16,
    pub home: PathBuf,
    pub workspace: PathBuf,
    /// The directory for the log files of services.
    pub logs: PathBuf,
    /// A file of submitted values that older tools leave behind; scrubbing removes it.
    pub env_store: PathBuf,
    /// Variables for every program, in addition to the defaults (`HOME`, `PATH` and so on), which they override.
    pub env: BTreeMap<String, String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            port: 4097,
            home: "/home/user".into(),
            workspace: "/home/user/workspace".into(),
            logs: "/tmp/proliferate/logs".into(),
            env_store: "/tmp/.proliferate_env.json".into(),
            env: BTreeMap::new(),
        }
    }
}

/// Why the server could not start. The launcher sees the message on standard error.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("could not read the key and the options from standard input: {0}")]
    Input(io::Error),
    #[error("the options are not valid")]
    Options,
    #[error("{0} failed: {1}")]
    Step(&'static str, io::Error),
}

/// Encodes what the launcher writes to the standard input of PID 1.
pub fn startup(key: &[u8; 32], options: &Options) -> Result<Vec<u8>, StartError> {
    let options = serde_json::to_vec(options).map_err(|_| StartError::Options)?;
    let length = u32::try_from(options.len()).map_err(|_| StartError::Options)?;
    Ok([key.as_slice(), &length.to_be_bytes(), &options].concat())
}

/// Reads exactly what [`startup`] encodes, then redirects standard input from `/dev/null`.
fn read_startup() -> Result<([u8; 32], Options), StartError> {
    let mut input = io::stdin().lock();
    let (mut key, mut length) = ([0; 32], [0; 4]);
    input.read_exact(&mut key).map_err(StartError::Input)?;
    input.read_exact(&mut length).map_err(StartError::Input)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > MAX_OPTIONS {
        return Err(StartError::Options);
    }
    let mut options = vec![0; length];
    input.read_exact(&mut options).map_err(StartError::Input)?;
    let null = std::fs::File::open("/dev/null").map_err(StartError::Input)?;
    rustix::stdio::dup2_stdin(null).map_err(|error| StartError::Input(error.into()))?;
    Ok((key, serde_json::from_slice(&options).map_err(|_| StartError::Options)?))
}

/// Prevents other processes of the same uid from inspecting this process.
fn forbid_inspection() -> Result<(), StartError> {
    use rustix::process::{DumpableBehavior, set_dumpable_behavior};
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|error| StartError::Step("making the process not dumpable", error.into()))
}
