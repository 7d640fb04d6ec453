//! No isolation at all: the program runs as the gateway's user, sees the gateway's files and uses the host's network.
//! For trying things on a machine that has nothing to lose; says so loudly each time.

use std::collections::HashMap;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rustix::process::Signal;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::error::{Capability, SandboxError};
use crate::local::{accept, identity};
use crate::provider::{
    ByteStream, Capabilities, Ensured, ExpiryOwner, Injected, Isolation, Listed, Provider, SandboxState,
};
use crate::spec::{SandboxId, SnapshotId, Spec};
use crate::tree;

const CONNECT: Duration = Duration::from_secs(10);
const END: Duration = Duration::from_secs(10);
/// How often it is looked for what is left to end, and how long is between.
const TRIES: u32 = 1000;
const STEP: Duration = Duration::from_millis(10);

/// Says that whoever starts this provider knows that it protects nothing.
#[derive(Clone, Copy, Debug)]
pub struct Insecure;

/// Programs of this gateway's life only: after a restart they are not found again, but for their end.
pub struct ProcessProvider {
    root: PathBuf,
    running: Mutex<HashMap<SandboxId, Running>>,
}

#[derive(Clone)]
struct Running {
    pid: i32,
    handle: Arc<OwnedFd>,
    listeners: Vec<(u16, Arc<TcpListener>)>,
}

impl ProcessProvider {
    pub fn new(root: PathBuf, _: Insecure) -> Result<Self, SandboxError> {
        tracing::warn!(
            "sandboxes are plain processes: an agent can read and change all that the gateway can"
        );
        std::fs::create_dir_all(&root).map_err(SandboxError::host("make the provider's folder"))?;
        Ok(Self { root, running: Mutex::default() })
    }

    fn running(&self) -> MutexGuard<'_, HashMap<SandboxId, Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn alive(&self, id: &SandboxId) -> bool {
        self.running().get(id).is_some_and(|running| !identity::ended(&running.handle))
    }

    async fn start(&self, spec: &Spec) -> Result<Running, SandboxError> {
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
            // A program that does not read it ends or goes on; both show later.
            let _ = stdin.write_all(&spec.stdin).await;
        }
        tokio::spawn(async move { child.wait().await });
        Ok(Running { pid, handle, listeners })
    }
}

/// Ends what a program started, then the program itself, blocking this thread. What it started may have a group or a session
/// of its own and lose its parent, so the program is stopped first: as long as it is there, all of it stays below it, if it
/// adopts orphans as a supervisor does. Whoever has lost it all the same is known by its home.
fn end(running: Option<&Running>, home: &Path) -> Result<(), SandboxError> {
    let first = running.filter(|running| !identity::ended(&running.handle));
    if let Some(first) = first {
        let _ = rustix::process::pidfd_send_signal(&first.handle, Signal::STOP);
    }
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    for _ in 0..TRIES {
        let found = offspring(first.map(|first| first.pid), home);
        let handles = found.into_iter().filter(|pid| *pid != own).filter_map(|pid| identity::open(pid).ok());
        let left: Vec<_> = handles.filter(|handle| !identity::ended(handle)).collect();
        if left.is_empty() {
            let Some(first) = first else { return Ok(()) };
            identity::kill(&first.handle);
            return if identity::wait(&first.handle, END) {
                Ok(())
            } else {
                Err(SandboxError::Timeout("to end"))
            };
        }
        left.iter().for_each(identity::kill);
        std::thread::sleep(STEP);
    }
    Err(SandboxError::Timeout("to end"))
}

/// Who descends from a process, without it, and who has this home.
fn offspring(first: Option<i32>, home: &Path) -> Vec<i32> {
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

    async fn ensure(&self, spec: &Spec) -> Result<Ensured, SandboxError> {
        spec.check()?;
        if spec.snapshot.is_some() {
            return Err(SandboxError::Unsupported(Capability::Fork));
        }
        let id = spec.id.clone();
        if self.alive(&id) {
            return Ok(Ensured { id, recovered: true, made_files: false });
        }
        // What a dead one has left would keep its ports.
        self.halt(&id).await?;
        self.running().remove(&id);
        let fresh = !self.root.join(id.as_str()).exists();
        match self.start(spec).await {
            Ok(running) => {
                self.running().insert(id.clone(), running);
                Ok(Ensured { id, recovered: false, made_files: fresh })
            }
            Err(error) => {
                if fresh {
                    let _ = tree::remove(&self.root.join(id.as_str()));
                }
                Err(error)
            }
        }
    }

    async fn snapshot(&self, _: &SandboxId, _: &[PathBuf]) -> Result<SnapshotId, SandboxError> {
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
        crate::local::blocking(move || end(running.as_ref(), &home)).await
    }

    async fn terminate(&self, id: &SandboxId) -> Result<(), SandboxError> {
        let running = self.running().remove(id);
        let home = self.root.join(id.as_str());
        crate::local::blocking(move || {
            end(running.as_ref(), &home)?;
            Ok(tree::remove(&home)?)
        })
        .await
    }

    async fn list(&self) -> Result<Vec<Listed>, SandboxError> {
        let state = |running: &Running| {
            if identity::ended(&running.handle) { SandboxState::Dead } else { SandboxState::Running }
        };
        Ok(self.running().iter().map(|(id, r)| Listed { id: id.clone(), state: state(r) }).collect())
    }

    async fn dial(&self, id: &SandboxId, port: u16) -> Result<Box<dyn ByteStream>, SandboxError> {
        if !self.alive(id) {
            return Err(SandboxError::NotFound(id.clone()));
        }
        let refused = |kind| SandboxError::Refused { port, kind };
        match timeout(CONNECT, TcpStream::connect((Ipv4Addr::LOCALHOST, port))).await {
            Err(_) => Err(refused(io::ErrorKind::TimedOut)),
            Ok(Err(error)) => Err(refused(error.kind())),
            Ok(Ok(stream)) => Ok(Box::new(stream)),
        }
    }

    async fn listeners(&self, id: &SandboxId) -> Result<mpsc::Receiver<Injected>, SandboxError> {
        let (to, from) = mpsc::channel(64);
        let running = self.running();
        let found = running.get(id).ok_or_else(|| SandboxError::NotFound(id.clone()))?;
        for (port, listener) in &found.listeners {
            tokio::spawn(accept(*port, listener.clone(), to.clone()));
        }
        Ok(from)
    }
}
