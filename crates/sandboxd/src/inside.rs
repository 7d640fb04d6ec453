//! The part that runs inside the sandbox.
//!
//! Two processes. PID 1 (`reaper`) reads the key, splits off the worker (`serve`) and reaps whatever is orphaned. It is a
//! process of its own so that reaping everything never steals a child that the worker waits for. If the worker ends,
//! PID 1 ends, and the kernel ends everything else in the namespace.
//!
//! The agent runs with the same uid. So both processes are not dumpable (nobody reads their memory or opens their
//! files through `/proc`), the key comes on standard input and goes nowhere else, and the port answers only to the
//! key. A process that the agent hides well (own session, cleared environment, orphaned) survives the end of its exec;
//! it does not survive the sandbox. And the agent can kill or stop the worker, as anybody can his own processes: that
//! ends its own sandbox, or shows on the host as a channel that has fallen silent.

mod beneath;
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

/// The word by which the program that has this becomes PID 1.
pub const WORD: &str = "sandboxd";

/// Runs the inside, if this word is its name, and gives the exit code of this process. To be called first of all in
/// `main`: a process that splits in two must have one thread.
pub fn hidden_main(word: &OsStr) -> Option<ExitCode> {
    if word != WORD {
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

/// The longest [`Options`] as JSON.
const MAX_OPTIONS: usize = 256 * 1024;

/// How the inside is set up. It comes on standard input behind the key, so that nothing of it shows in `/proc`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// On 127.0.0.1; 0 for any.
    pub port: u16,
    pub home: PathBuf,
    pub workspace: PathBuf,
    /// Log files of services.
    pub logs: PathBuf,
    /// A file of submitted values that older tools leave behind; scrubbing removes it.
    pub env_store: PathBuf,
    /// What every program gets, beside and instead of what it gets anyway (`HOME`, `PATH` and the like).
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

/// Why the inside could not start. There is nobody to tell but the launcher, who sees it on standard error.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("standard input holds no key and options: {0}")]
    Input(io::Error),
    #[error("the options make no sense")]
    Options,
    #[error("{0} failed: {1}")]
    Step(&'static str, io::Error),
}

/// What the launcher writes to the standard input of PID 1.
pub fn startup(key: &[u8; 32], options: &Options) -> Result<Vec<u8>, StartError> {
    let options = serde_json::to_vec(options).map_err(|_| StartError::Options)?;
    let length = u32::try_from(options.len()).map_err(|_| StartError::Options)?;
    Ok([key.as_slice(), &length.to_be_bytes(), &options].concat())
}

/// Reads what [`startup`] made, and nothing behind it; then standard input is empty.
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

/// Nobody of the same uid may look into this process.
fn hide() -> Result<(), StartError> {
    use rustix::process::{DumpableBehavior, set_dumpable_behavior};
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|error| StartError::Step("becoming undumpable", error.into()))
}
