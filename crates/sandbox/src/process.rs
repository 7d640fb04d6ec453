//! A provider without isolation: the program runs as the gateway's user, sees the gateway's files and uses the
//! host's network. For experiments on a machine that has nothing to lose; it logs a warning at each start.

use std::collections::HashMap;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::{Mutex, MutexGuard};
use rustix::process::Signal;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::error::{Capability, SandboxError};
use crate::local::{accept, identity};
use crate::provider::{
    ByteStream, Capabilities, CleanCopy, EnsureOutcome, ExpiryOwner, InjectedConnection, Isolation, LeftOut,
    Provider, SandboxInfo, SandboxState,
};
use crate::spec::{SandboxId, SnapshotId, Spec};
use crate::tree;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// How many times, and how far apart, we look for leftover processes.
const MAX_TRIES: u32 = 1000;
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Confirms that the caller knows that this provider protects nothing.
#[derive(Clone, Copy, Debug)]
pub struct Insecure;

/// Programs live only as long as this gateway: after a restart they are not recovered, only killed.
pub struct ProcessProvider {
    root: PathBuf,
    running: Mutex<HashMap<SandboxId, RunningProgram>>,
}

#[derive(Clone)]
struct RunningProgram {
    pid: i32,
    handle: Arc<OwnedFd>,
    listeners: Vec<(u16, Arc<TcpListener>)>,
}

impl ProcessProvider {
    pub fn new(root: PathBuf, _: Insecure) -> Result<Self, SandboxError> {
        tracing::warn!(
            "sandboxes are plain processes: an agent can read and change everything that the gateway can"
        );
        std::fs::create_dir_all(&root).map_err(SandboxError::host("create the provider's directory"))?;
        Ok(Self { root, running: Mutex::default() })
    }

    fn running(&self) -> MutexGuard<'_, HashMap<SandboxId, RunningProgram>> {
        self.running.lock()
    }

    fn alive(&self, id: &SandboxId) -> bool {
        self.running().get(id).is_some_and(|running| !identity::has_exited(&running.handle))
    }

    async fn start(&self, spec: &Spec) -> Result<RunningProgram, SandboxError> {
        let host = SandboxError::host("start the program");
        let home = self.root.join(spec.id.as_str());
        let workspace = home.join("workspace");
        std::fs::create_dir_all(&workspace).map_err(&host)?;
        let mut listeners = Vec::new();
        for port in &spec.injected {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).await;
            listeners.push((*port, Arc::new(listener.map_err(|_| SandboxError::PortTaken(*port))?)));
        }
        let (program, arguments) = spec.init.split_first().ok_or(SandboxError::InitExited)?;
        let mut child = Command::new(program)
            .args(arguments)
            .env_clear()
            .env("HOME", &home)
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .envs(&spec.env)
            .current_dir(&workspace)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(&host)?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).ok_or(SandboxError::InitExited)?;
        let handle = Arc::new(identity::open(pid).map_err(&host)?);
        if let Some(mut stdin) = child.stdin.take() {
            // A program that does not read its input exits or continues; both show later.
            let _ = stdin.write_all(&spec.stdin).await;
        }
        tokio::spawn(async move { child.wait().await });
        Ok(RunningProgram { pid, handle, listeners })
    }
}

/// Kills all descendants of a program, then the program itself, blocking this thread. A descendant may have its own
/// group or session and lose its parent, so the program is stopped (SIGSTOP) first: while it exists, all
/// descendants stay below it, if it adopts orphans as a supervisor does. Others are recognised by their `HOME`.
fn kill_all(running: Option<&RunningProgram>, home: &Path) -> Result<(), SandboxError> {
    let first = running.filter(|running| !identity::has_exited(&running.handle));
    if let Some(first) = first {
        let _ = rustix::process::pidfd_send_signal(&first.handle, Signal::STOP);
    }
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    for _ in 0..MAX_TRIES {
        let found = descendants(first.map(|first| first.pid), home);
        let handles = found.into_iter().filter(|pid| *pid != own).filter_map(|pid| identity::open(pid).ok());
        let left: Vec<_> = handles.filter(|handle| !identity::has_exited(handle)).collect();
        if left.is_empty() {
            let Some(first) = first else { return Ok(()) };
            identity::kill(&first.handle);
            return if identity::wait(&first.handle, KILL_TIMEOUT) {
                Ok(())
            } else {
                Err(SandboxError::Timeout("stopping its processes"))
            };
        }
        left.iter().for_each(identity::kill);
        std::thread::sleep(RETRY_INTERVAL);
    }
    Err(SandboxError::Timeout("stopping its processes"))
}

/// The descendants of a process, without itself, and all processes with this home.
fn descendants(first: Option<i32>, home: &Path) -> Vec<i32> {
    let mark = [b"HOME=", home.as_os_str().as_encoded_bytes()].concat();
    let has_home = |pid: i32| {
        let variables = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        variables.split(|byte| *byte == 0).any(|variable| variable == mark)
    };
    let parents: HashMap<i32, i32> =
        identity::all_pids().into_iter().filter_map(|pid| Some((pid, identity::parent(pid)?))).collect();
    let descends = |pid: i32| {
        let line = std::iter::successors(parents.get(&pid), |parent| parents.get(parent));
        first.is_some() && line.take(parents.len()).any(|parent| Some(*parent) == first)
    };
    parents.keys().copied().filter(|pid| Some(*pid) != first && (descends(*pid) || has_home(*pid))).collect()
}

#[async_trait]
impl Provider for ProcessProvider {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            memory_pause: false,
            durable_snapshot: false,
            fork: false,
            injected_ports: true,
            owns_processes: true,
            expiry: ExpiryOwner::Gateway,
            isolation: Isolation::None,
        }
    }

    async fn ensure(&self, spec: &Spec) -> Result<EnsureOutcome, SandboxError> {
        spec.check()?;
        if spec.snapshot.is_some() {
            return Err(SandboxError::Unsupported(Capability::Fork));
        }
        let id = spec.id.clone();
        if self.alive(&id) {
            return Ok(EnsureOutcome { id, recovered: true, made_files: false });
        }
        // Leftover processes of a dead program would hold its ports.
        self.halt(&id).await?;
        self.running().remove(&id);
        let fresh = !self.root.join(id.as_str()).exists();
        match self.start(spec).await {
            Ok(running) => {
                self.running().insert(id.clone(), running);
                Ok(EnsureOutcome { id, recovered: false, made_files: fresh })
            }
            Err(error) => {
                if fresh {
                    let _ = tree::remove(&self.root.join(id.as_str()));
                }
                Err(error)
            }
        }
    }

    async fn snapshot(&self, _: &SandboxId, _: &LeftOut, _: CleanCopy) -> Result<SnapshotId, SandboxError> {
        Err(SandboxError::Unsupported(Capability::DurableSnapshot))
    }

    async fn remove_snapshot(&self, _: &SnapshotId) -> Result<(), SandboxError> {
        Err(SandboxError::Unsupported(Capability::DurableSnapshot))
    }

    async fn pause(&self, _: &SandboxId) -> Result<(), SandboxError> {
        Err(SandboxError::Unsupported(Capability::MemoryPause))
    }

    async fn resume(&self, _: &SandboxId) -> Result<(), SandboxError> {
        Err(SandboxError::Unsupported(Capability::MemoryPause))
    }

    async fn halt(&self, id: &SandboxId) -> Result<(), SandboxError> {
        let (running, home) = (self.running().get(id).cloned(), self.root.join(id.as_str()));
        crate::local::blocking(move || kill_all(running.as_ref(), &home)).await
    }

    async fn terminate(&self, id: &SandboxId) -> Result<(), SandboxError> {
        let running = self.running().remove(id);
        let home = self.root.join(id.as_str());
        crate::local::blocking(move || {
            kill_all(running.as_ref(), &home)?;
            Ok(tree::remove(&home)?)
        })
        .await
    }

    async fn list(&self) -> Result<Vec<SandboxInfo>, SandboxError> {
        let state = |running: &RunningProgram| {
            if identity::has_exited(&running.handle) { SandboxState::Dead } else { SandboxState::Running }
        };
        Ok(self.running().iter().map(|(id, r)| SandboxInfo { id: id.clone(), state: state(r) }).collect())
    }

    async fn dial(&self, id: &SandboxId, port: u16) -> Result<Box<dyn ByteStream>, SandboxError> {
        if !self.alive(id) {
            return Err(SandboxError::NotFound(id.clone()));
        }
        let refused = |kind| SandboxError::Refused { port, kind };
        match timeout(CONNECT_TIMEOUT, TcpStream::connect((Ipv4Addr::LOCALHOST, port))).await {
            Err(_) => Err(refused(io::ErrorKind::TimedOut)),
            Ok(Err(error)) => Err(refused(error.kind())),
            Ok(Ok(stream)) => Ok(Box::new(stream)),
        }
    }

    async fn listeners(&self, id: &SandboxId) -> Result<mpsc::Receiver<InjectedConnection>, SandboxError> {
        let (to, from) = mpsc::channel(64);
        let running = self.running();
        let found = running.get(id).ok_or_else(|| SandboxError::NotFound(id.clone()))?;
        for (port, listener) in &found.listeners {
            tokio::spawn(accept(*port, listener.clone(), to.clone()));
        }
        Ok(from)
    }
}
