//! Starts programs with a clean environment, in their own process group, with a mark that identifies their
//! descendants.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::Arc;

use clock::Rng;
use rustix::process::Pid;
use tokio::process::{Child, Command};

use super::roots::{Roots, io_refusal};
use super::tree::{MARK_VARIABLE, ProcessTree};
use super::{DEFAULT_PATH, Options};
use crate::protocol::{Code, Place, Refusal};

/// The kernel's limit for a single argument.
const MAX_TEXT: usize = 128 * 1024;

/// The environment and directories with which all programs start.
pub(super) struct Launcher {
    pub(super) roots: Arc<Roots>,
    env: BTreeMap<String, String>,
    rng: Rng,
}

/// A running program, and how to kill it.
pub(super) struct RunningProgram {
    pub(super) child: Child,
    pub(super) tree: ProcessTree,
}

/// How stdin, stdout and stderr of a program are connected.
pub(super) struct StandardStreams {
    pub(super) stdin: Stdio,
    pub(super) stdout: Stdio,
    pub(super) stderr: Stdio,
    /// They are a terminal, which becomes the program's controlling terminal.
    pub(super) terminal: bool,
}

impl Launcher {
    pub(super) fn new(roots: Arc<Roots>, options: &Options, rng: Rng) -> Self {
        let mut env = BTreeMap::new();
        let home = roots.home().display().to_string();
        for (name, value) in [
            ("HOME", home.as_str()),
            ("PATH", DEFAULT_PATH),
            ("USER", "user"),
            ("LOGNAME", "user"),
            ("SHELL", "/bin/bash"),
            ("LANG", "C.UTF-8"),
            ("TERM", "xterm-256color"),
        ] {
            env.insert(name.to_owned(), value.to_owned());
        }
        env.extend(options.env.clone());
        Self { roots, env, rng }
    }

    pub(super) fn start(
        &self,
        argv: &[String],
        cwd: Option<&Place>,
        env: &BTreeMap<String, String>,
        streams: StandardStreams,
    ) -> Result<RunningProgram, Refusal> {
        check(argv, env)?;
        let cwd = cwd.map_or(Ok(self.roots.workspace().to_owned()), |place| self.roots.path_of(place))?;
        let mark = u128::from_le_bytes(self.rng.bytes());
        let mark = format!("{mark:032x}");
        let mut words = argv.iter();
        let mut command = if streams.terminal {
            // Rust has no safe API to acquire a controlling terminal, so util-linux's `setsid` does it. It does not
            // fork, because it is not a group leader: leader, group and session have the same number.
            let mut command = Command::new("/usr/bin/setsid");
            command.args(["--ctty", "--"]);
            command
        } else {
            let mut command = Command::new(words.next().map_or("", String::as_str));
            command.process_group(0);
            command
        };
        command.args(words).env_clear().envs(&self.env).envs(env).env(MARK_VARIABLE, &mark).current_dir(&cwd);
        command.stdin(streams.stdin).stdout(streams.stdout).stderr(streams.stderr);
        let child = command.spawn().map_err(|error| start_refusal(&error))?;
        let pid = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        let pid = pid.ok_or_else(|| Refusal::new(Code::Unreachable, "the program exited immediately"))?;
        Ok(RunningProgram { child, tree: ProcessTree::new(pid, &mark) })
    }
}

fn check(argv: &[String], env: &BTreeMap<String, String>) -> Result<(), Refusal> {
    let bad = |text: &str| Err(Refusal::new(Code::BadRequest, text));
    if argv.first().is_none_or(String::is_empty) {
        return bad("argv does not name a program");
    }
    let texts = argv.iter().chain(env.values()).chain(env.keys());
    if texts.into_iter().any(|text| text.contains('\0') || text.len() > MAX_TEXT) {
        return bad("an argument or a variable is too long, or contains a NUL");
    }
    if env.keys().any(|name| name.is_empty() || name.contains('=')) {
        return bad("a variable name is not valid");
    }
    Ok(())
}

fn start_refusal(error: &std::io::Error) -> Refusal {
    let why = io_refusal(error);
    let code = match error.kind() {
        std::io::ErrorKind::NotFound => Code::NotFound,
        std::io::ErrorKind::PermissionDenied => Code::Denied,
        _ => Code::Unreachable,
    };
    Refusal::new(code, format!("the program could not be started: {}", why.message))
}
