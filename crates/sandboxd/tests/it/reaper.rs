//! The real program: PID 1 and its worker as separate processes.

use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, getuid, kill_process};
use sandboxd::Sandboxd;
use sandboxd::protocol::{Restart, ServiceSpec};
use sandboxd::server::startup;
use tokio::net::TcpStream;

use crate::common::{KEY, connect, is_running, options, sh, wait_until};

struct Process {
    child: Running,
    client: Sandboxd,
    directory: tempfile::TempDir,
}

/// Kills the process when a test fails.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The uid to use if root runs the tests, because root could inspect any process.
const UNPRIVILEGED_UID: u32 = 12_345;

async fn launch() -> Process {
    let directory = tempfile::tempdir().unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let options = sandboxd::server::Options { port, ..options(&directory) };
    // An unprivileged user may not be able to read the build directory.
    let program = directory.path().join("program");
    // Copied by another process: a child that a parallel test forks meanwhile would inherit our file handle, and a
    // file that is open for writing cannot be executed (ETXTBSY).
    assert!(
        Command::new("cp").arg(env!("CARGO_BIN_EXE_sandboxd-test")).arg(&program).status().unwrap().success()
    );
    let mut command = Command::new(&program);
    command.arg(sandboxd::server::SUBCOMMAND);
    if getuid().is_root() {
        for path in ["", "home", "home/workspace"] {
            chown(directory.path().join(path), Some(UNPRIVILEGED_UID), Some(UNPRIVILEGED_UID)).unwrap();
        }
        command.uid(UNPRIVILEGED_UID).gid(UNPRIVILEGED_UID);
    }
    let mut child = Running(command.stdin(Stdio::piped()).spawn().unwrap());
    child.0.stdin.take().unwrap().write_all(&startup(&KEY, &options).unwrap()).unwrap();
    for _ in 0..500 {
        if TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
            return Process { child, client: connect(port).await, directory };
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the worker never listened");
}

/// The children of this process, with their states.
fn children_of(parent: u32) -> Vec<(u32, char)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let Some((_, rest)) = stat.rsplit_once(')') else { continue };
        let mut fields = rest.split_ascii_whitespace();
        let state = fields.next().unwrap().chars().next().unwrap();
        if fields.next().unwrap().parse() == Ok(parent) {
            found.push((pid, state));
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orphans_are_reaped_and_pid_1_ends_with_the_worker() {
    let mut process = launch().await;
    let init = process.child.0.id();
    // Each leaves a grandchild behind that exits later, or immediately.
    for _ in 0..20 {
        sh(&process.client, "(sleep 0.2 >/dev/null 2>&1 &); (true &); exit 0").await;
    }
    wait_until("only the worker is left", || children_of(init).len() == 1).await;
    let [(worker, _)] = children_of(init)[..] else { panic!("{:?}", children_of(init)) };
    assert_eq!(children_of(worker), [], "the worker must reap its own children");
    let memory = process.client.status().await.unwrap().memory_bytes;
    println!("resident memory of the worker: {} KiB", memory / 1024);
    kill_process(Pid::from_raw(worker.cast_signed()).unwrap(), Signal::KILL).unwrap();
    let status = process.child.0.wait().unwrap();
    assert_eq!(status.code(), Some(128 + 9));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_is_not_visible_to_other_processes() {
    let mut process = launch().await;
    let init = process.child.0.id();
    let [(worker, _)] = children_of(init)[..] else { panic!("{:?}", children_of(init)) };
    let hex = "07".repeat(32);
    for pid in [init, worker] {
        let of = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
        for name in ["cmdline", "environ"] {
            assert!(!of(name).windows(32).any(|part| part == KEY), "{name}");
        }
        match std::fs::read_link(format!("/proc/{pid}/fd/0")) {
            Ok(input) => assert_eq!(input.to_str(), Some("/dev/null")),
            // Only root may read the link.
            Err(error) => assert!(!getuid().is_root(), "{error}"),
        }
        // The `/proc` entries of a process that is not dumpable belong to root.
        let owner = std::fs::metadata(format!("/proc/{pid}/mem")).unwrap().uid();
        assert_eq!(owner, 0);
    }
    let seen = sh(&process.client, "env; ls -l /proc/$$/fd; cat /proc/$$/environ").await;
    let seen = String::from_utf8_lossy(&seen.stdout).into_owned();
    assert!(!seen.contains(&hex) && !seen.as_bytes().windows(32).any(|part| part == KEY));
    for pid in [init, worker] {
        let look =
            format!("id -u; head -c1 /proc/{pid}/mem; head -c1 /proc/{pid}/environ; ls /proc/{pid}/fd");
        let seen = sh(&process.client, &look).await;
        let errors = String::from_utf8_lossy(&seen.stderr).into_owned();
        assert_eq!(String::from_utf8_lossy(&seen.stdout).lines().count(), 1, "{seen:?}");
        assert_eq!(errors.matches("Permission denied").count(), 3, "{errors}");
    }
    kill_process(Pid::from_raw(worker.cast_signed()).unwrap(), Signal::KILL).unwrap();
    process.child.0.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_stops_the_services_first() {
    let mut process = launch().await;
    let command =
        "trap 'echo bye > ended; exit 0' TERM; echo $$ > pid; while :; do sleep 0.05; done".to_owned();
    let env = std::collections::BTreeMap::new();
    let spec = ServiceSpec { name: "web".to_owned(), command, cwd: None, env, restart: Restart::Always };
    process.client.service_start(spec).await.unwrap();
    let workspace = process.directory.path().join("home/workspace");
    let pid = || std::fs::read_to_string(workspace.join("pid")).unwrap_or_default();
    wait_until("the service runs", || pid().ends_with('\n')).await;
    let pid = pid();
    kill_process(Pid::from_child(&process.child.0), Signal::TERM).unwrap();
    assert_eq!(process.child.0.wait().unwrap().code(), Some(0));
    assert_eq!(std::fs::read_to_string(workspace.join("ended")).unwrap(), "bye\n");
    assert!(!is_running(&pid));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_worker_does_not_outlive_its_parent() {
    let process = launch().await;
    let [(worker, _)] = children_of(process.child.0.id())[..] else { panic!("expected exactly one worker") };
    drop(process);
    wait_until("the worker is gone", || !is_running(&worker.to_string())).await;
}
