//! A temporary data dir, the binary in a clean environment, and a server that is killed with its test.

use std::ffi::OsStr;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::deadline::{Lines, finish, output_of, wait_for_end};

pub(crate) const BIN: &str = env!("CARGO_BIN_EXE_proliferate");

/// A data dir, and the environment of the commands that use it.
pub(crate) struct Machine {
    dir: TempDir,
    env: Vec<(String, String)>,
    program: PathBuf,
}

/// The exit code and output of a command.
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Machine {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), env: Vec::new(), program: BIN.into() }
    }

    /// Copies the program into an empty directory. In its build directory it would find the tools that were installed there.
    pub(crate) fn moved_to(mut self, directory: &Path) -> Self {
        // Sandboxes run as other users, and execute the program too.
        std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o755)).unwrap();
        self.program = directory.join("proliferate");
        std::fs::copy(BIN, &self.program).unwrap();
        self
    }

    /// Adds a setting to the environment.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn command<S: AsRef<OsStr>>(&self, args: &[S]) -> Command {
        let mut command = Command::new(&self.program);
        command.env_clear().env("PATH", path()).env("HOME", self.dir.path());
        command.env("PROLIFERATE_DATA_DIR", self.data_dir());
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command.args(args);
        command
    }

    /// Runs a command to its end.
    pub(crate) fn run(&self, args: &[&str]) -> Ended {
        ended(&output_of(self.command(args).stdin(Stdio::null())))
    }

    /// A service token for the first organization.
    pub(crate) fn service(&self) -> String {
        let org = self.first_org();
        self.run(&["token", "service", "--name", "worker", "--org", &org]).out.trim().to_owned()
    }

    pub(crate) fn first_org(&self) -> String {
        self.json(&["orgs", "ls"])[0]["id"].as_str().unwrap().to_owned()
    }

    /// Runs a command to its end with this standard input.
    pub(crate) fn feed(&self, args: &[&str], input: &str) -> Ended {
        feed(self.command(args), input)
    }

    /// Runs a command that must succeed and returns the one JSON value it prints.
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let ended = self.run(&[args, &["--json"]].concat());
        assert_eq!(ended.code, 0, "{args:?}: {}", ended.err);
        serde_json::from_str(&ended.out).unwrap_or_else(|error| panic!("{error} in {}", ended.out))
    }

    /// Starts the gateway on a free port and waits until it prints its address.
    pub(crate) fn serve(&self) -> Server {
        self.serve_at("127.0.0.1:0")
    }

    /// Starts the gateway on this address.
    pub(crate) fn serve_at(&self, address: &str) -> Server {
        start(self.command(&["serve", "--json", "--listen", address]))
    }

    /// Starts the gateway on a free port with additional settings for this start only.
    pub(crate) fn serve_with(&self, settings: &[(&str, &str)]) -> Server {
        let mut command = self.command(&["serve", "--json", "--listen", "127.0.0.1:0"]);
        command.envs(settings.iter().copied());
        start(command)
    }

    /// Starts the gateway on a free port, and writes its complete log to this file.
    pub(crate) fn serve_logging_to(&self, file: &Path) -> Server {
        let mut command = self.command(&["serve", "--json", "--listen", "127.0.0.1:0"]);
        command.env("PROLIFERATE_LOG", "trace").stderr(std::fs::File::create(file).unwrap());
        start(command)
    }

    /// Starts the gateway with a soft limit of 256 open files.
    pub(crate) fn serve_short_of_descriptors(&self) -> Server {
        let plain = self.command(&["serve", "--json", "--listen", "127.0.0.1:0"]);
        let mut shell = Command::new("/bin/sh");
        shell
            .args(["-c", "ulimit -S -n 256; exec \"$@\"", "sh"])
            .arg(plain.get_program())
            .args(plain.get_args());
        shell.env_clear().envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        start(shell)
    }
}

fn start(mut command: Command) -> Server {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = Lines::of(child.stdout.take().unwrap());
    let line = out.next().unwrap_or_default();
    let said = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error} in {line:?}"));
    Server { child, said, _out: out }
}

/// A running gateway; killed when it is dropped.
pub(crate) struct Server {
    pub(crate) child: Child,
    /// The JSON value that it printed at startup.
    pub(crate) said: Value,
    _out: Lines,
}

impl Server {
    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.said["url"].as_str().unwrap().trim_end_matches('/'))
    }

    /// The status and body of a GET with this token.
    pub(crate) fn get(&self, path: &str, token: &str) -> (u16, Value) {
        let client = reqwest::blocking::Client::builder().no_proxy().build().unwrap();
        let answer = client.get(self.url(path)).bearer_auth(token).send().unwrap();
        (answer.status().as_u16(), answer.json().unwrap_or_default())
    }

    /// The status and body of a POST with this token.
    pub(crate) fn post(&self, path: &str, token: &str, body: &Value) -> (u16, Value) {
        let client = reqwest::blocking::Client::builder().no_proxy().build().unwrap();
        let answer = client.post(self.url(path)).bearer_auth(token).json(body).send().unwrap();
        (answer.status().as_u16(), answer.json().unwrap_or_default())
    }

    /// The status of a PUT with this token.
    pub(crate) fn put(&self, path: &str, token: &str, body: &Value) -> u16 {
        let client = reqwest::blocking::Client::builder().no_proxy().build().unwrap();
        client.put(self.url(path)).bearer_auth(token).json(body).send().unwrap().status().as_u16()
    }

    /// Sends SIGTERM, waits for the end, and returns the exit code.
    pub(crate) fn stop(mut self) -> i32 {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        wait_for_end("the gateway to stop", &mut self.child).code().unwrap_or(-1)
    }

    /// Kills the server without a chance to clean up, as a power failure would.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command to its end with this standard input.
pub(crate) fn feed(mut command: Command, input: &str) -> Ended {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    ended(&finish(&format!("{command:?}"), child))
}

pub(crate) fn ended(output: &Output) -> Ended {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    Ended { code: output.status.code().unwrap_or(-1), out: text(&output.stdout), err: text(&output.stderr) }
}

/// The `PATH` of the test run, which has bubblewrap and PostgreSQL's tools.
#[expect(clippy::disallowed_methods, reason = "a test run finds programs as its user does")]
pub(crate) fn path() -> String {
    std::env::var("PATH").unwrap_or_default()
}

/// The URL of the PostgreSQL server that `make test` starts.
#[expect(clippy::disallowed_methods, reason = "the test run says where its servers are")]
pub(crate) fn postgres() -> String {
    std::env::var("TEST_DATABASE_URL").unwrap_or_else(|_| panic!("run `make test`, which starts PostgreSQL"))
}

/// All files below a directory that contain these bytes.
pub(crate) fn files_with(directory: &Path, needle: &[u8]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            found.extend(files_with(&entry.path(), needle));
        } else if std::fs::read(entry.path()).unwrap().windows(needle.len()).any(|window| window == needle) {
            found.push(entry.path());
        }
    }
    found
}
