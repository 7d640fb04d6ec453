//! A sandbox of temporary directories with a worker, for each test.

use std::path::PathBuf;
use std::time::Duration;

use channel::{Key, Limits};
use clock::{Clock, Rng};
use sandboxd::Sandboxd;
use sandboxd::client::{ClientError, ExecResult};
use sandboxd::protocol::{Code, Exec};
use sandboxd::server::{Options, Worker};
use tempfile::TempDir;
use tokio::net::TcpStream;

pub(crate) const KEY: [u8; 32] = [7; 32];

pub(crate) struct Sandbox {
    pub(crate) client: Sandboxd,
    pub(crate) port: u16,
    pub(crate) directory: TempDir,
}

impl Sandbox {
    pub(crate) fn workspace(&self) -> PathBuf {
        self.directory.path().join("home/workspace")
    }
}

pub(crate) fn options(directory: &TempDir) -> Options {
    let home = directory.path().join("home");
    let workspace = home.join("workspace");
    std::fs::create_dir_all(&workspace).unwrap();
    let (logs, env_store) = (directory.path().join("logs"), directory.path().join("store.json"));
    Options { port: 0, home, workspace, logs, env_store, ..Options::default() }
}

pub(crate) async fn start() -> Sandbox {
    let directory = tempfile::tempdir().unwrap();
    let options = options(&directory);
    let worker = Worker::bind(&options, Key::new(KEY), Clock::system(), Rng::system()).await.unwrap();
    let port = worker.port();
    tokio::spawn(worker.run());
    Sandbox { client: connect(port).await, port, directory }
}

pub(crate) async fn connect(port: u16) -> Sandboxd {
    let socket = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    socket.set_nodelay(true).unwrap();
    let limits = Limits { streams: 256, ..Limits::default() };
    Sandboxd::connect(socket, &Key::new(KEY), limits, &Rng::system()).await.unwrap()
}

pub(crate) fn shell(script: &str) -> Exec {
    let argv = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    Exec { argv, timeout_ms: Some(20_000), ..Exec::default() }
}

pub(crate) async fn sh(client: &Sandboxd, script: &str) -> ExecResult {
    client.run(shell(script), "", 64 * 1024 * 1024).await.unwrap()
}

pub(crate) fn code<T>(result: Result<T, ClientError>) -> Code {
    match result {
        Err(ClientError::Refused(refusal)) => refusal.code,
        Err(error) => panic!("no refusal: {error}"),
        Ok(_) => panic!("the request was not refused"),
    }
}

/// Waits until the condition holds, at most ten seconds.
pub(crate) async fn wait_until(what: &str, mut so: impl FnMut() -> bool) {
    for _ in 0..500 {
        if so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("never: {what}");
}

/// Whether a process is running; zombies do not count.
pub(crate) fn is_running(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}
