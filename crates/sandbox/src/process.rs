//! No isolation at all: the program runs as the gateway's user, sees the gateway's files and uses the host's network.
//! For trying things on a machine that has nothing to lose; says so loudly each time.

use std::collections::HashMap;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rustix::process::{Pid, Signal};
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

/// Says that whoever starts this provider knows that it protects nothing.
#[derive(Clone, Copy, Debug)]
pub struct Insecure;

/// Programs of this gateway's life only: after a restart they are not found again.
pub struct ProcessProvider {
    root: PathBuf,
    running: Mutex<HashMap<SandboxId, Running>>,
}

struct Running {
    group: Pid,
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
        let group = Pid::from_raw(pid).ok_or(SandboxError::InitExited)?;
        let handle = Arc::new(identity::open(pid).map_err(&host)?);
        if let Some(mut stdin) = child.stdin.take() {
            // A program that does not read it ends or goes on; both show later.
            let _ = stdin.write_all(&spec.stdin).await;
        }
        tokio::spawn(async move { child.wait().await });
        Ok(Running { group, handle, listeners })
    }
}

/// Ends the group of processes and waits, blocking this thread, for the first of them.
fn end(running: &Running) -> Result<(), SandboxError> {
    // The group's number is its first process's, which is still ours while its handle says that it lives.
    if !identity::ended(&running.handle) {
        let _ = rustix::process::kill_process_group(running.group, Signal::KILL);
    }
    if identity::wait(&running.handle, END) { Ok(()) } else { Err(SandboxError::Timeout("to end")) }
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
            return Ok(Ensured { id, recovered: true });
        }
        // The sockets of a dead one would keep its ports.
        self.running().remove(&id);
        let fresh = !self.root.join(id.as_str()).exists();
        match self.start(spec).await {
            Ok(running) => {
                self.running().insert(id.clone(), running);
                Ok(Ensured { id, recovered: false })
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

    async fn terminate(&self, id: &SandboxId) -> Result<(), SandboxError> {
        let running = self.running().remove(id);
        let folder = self.root.join(id.as_str());
        crate::local::blocking(move || {
            if let Some(running) = running {
                end(&running)?;
            }
            Ok(tree::remove(&folder)?)
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
