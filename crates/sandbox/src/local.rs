//! Sandboxes on this host: bubblewrap in separate namespaces, without a network device, under a user id that owns
//! nothing else.
//!
//! - bubblewrap never runs as root, and starts with an empty environment: [`launcher`].
//! - The sandbox and the gateway reach each other only through sockets that the gateway creates: [`broker`].
//! - A sandbox outlives the gateway and is recognised by its [`identity::Identity`], never by its pid alone.

mod broker;
mod bwrap;
mod cgroup;
mod config;
mod disk;
mod hidden;
pub(crate) mod identity;
mod inner;
mod launcher;
mod launcher_process;
mod leaked;
mod leaked_processes;
mod netns;
mod open_files;
mod plan;
mod records;
mod seccomp;
mod sockets;
mod start;
mod uids;
mod watch;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};

pub use config::{Enforcement, LimitsReport, LocalConfig};
pub use hidden::hidden_main;
pub use leaked::{LeakedSandbox, find_leaked_sandboxes};

use self::cgroup::{Cgroups, Controller};
use self::inner::Inner;
use self::records::Directories;
use self::uids::Uids;
use crate::error::SandboxError;
use crate::provider::{
    ByteStream, Capabilities, CleanCopy, EnsureOutcome, ExpiryOwner, InjectedConnection, Isolation, LeftOut,
    Provider, SandboxInfo,
};
use crate::spec::{SandboxId, SnapshotId, Spec};
use crate::tree;

/// The provider of sandboxes on this host.
#[derive(Clone)]
pub struct LocalProvider(Arc<Inner>);

impl LocalProvider {
    pub fn open(config: LocalConfig) -> Result<Self, SandboxError> {
        let directories = Directories::open(config.root.clone())?;
        let root = rustix::process::geteuid().is_root();
        let uids = root.then(|| Uids::open(&directories.uids(), config.uids.clone())).transpose()?;
        if let Some(uids) = &uids {
            uids.sweep(|id| directories.sandbox(id).0.exists());
        }
        let probe = format!("{}-probe-{}", directories.mark(), std::process::id());
        let cgroups = if config.cgroups { Cgroups::detect(&probe) } else { Cgroups::default() };
        let (live, watches, locks) = (Mutex::default(), Mutex::default(), Mutex::default());
        let scan_permits = Arc::new(Semaphore::new(watch::scan_permits()));
        let inner = Inner { config, directories, cgroups, uids, live, watches, scan_permits, locks };
        // A caller outside of a runtime (a CLI command) only reads the directories.
        if tokio::runtime::Handle::try_current().is_ok() {
            inner.watch_running()?;
        }
        Ok(Self(Arc::new(inner)))
    }

    pub fn limits_report(&self) -> LimitsReport {
        let strength = |controller, otherwise| {
            if self.0.cgroups.has(controller) { Enforcement::Hard } else { otherwise }
        };
        LimitsReport {
            memory: strength(Controller::Memory, Enforcement::Soft),
            // Without a control group, a resource limit (RLIMIT_NPROC) enforces this.
            pids: Enforcement::Hard,
            cpu: strength(Controller::Cpu, Enforcement::None),
            disk: Enforcement::Soft,
            tmp: Enforcement::Hard,
            files: Enforcement::Hard,
        }
    }

    /// The resources that all running sandboxes use together, as of the last check.
    pub fn usage(&self) -> Usage {
        let watches = self.0.watches.lock();
        let running = watches.values().filter(|watch| !watch.has_exited()).map(watch::Watch::last_usage);
        running.fold(Usage::default(), |sum, (memory, disk)| Usage {
            sandboxes: sum.sandboxes + 1,
            memory_bytes: sum.memory_bytes.saturating_add(memory),
            disk_bytes: sum.disk_bytes.saturating_add(disk),
        })
    }

    /// Runs `work` to completion even if the caller stops waiting: half a start or half a stop would leave
    /// something behind.
    async fn run_to_completion<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, SandboxError>> + Send + 'static,
    ) -> Result<T, SandboxError> {
        tokio::spawn(work).await.unwrap_or(Err(SandboxError::Records("an operation on it was aborted")))
    }
}

/// The resources of a host that sandboxes use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub sandboxes: u64,
    pub memory_bytes: u64,
    pub disk_bytes: u64,
}

/// Runs file operations on a blocking thread, so that they do not delay other tasks.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SandboxError> + Send + 'static,
) -> Result<T, SandboxError> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or(Err(SandboxError::Records("an operation on it was aborted")))
}

/// Forwards accepted connections until the receiver is dropped.
pub(crate) async fn accept(port: u16, listener: Arc<TcpListener>, to: mpsc::Sender<InjectedConnection>) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = to.closed() => return,
        };
        match accepted {
            Ok((stream, _)) => {
                if to.send(InjectedConnection { port, stream: Box::new(stream) }).await.is_err() {
                    return;
                }
            }
            // Out of descriptors, or the connection is already gone: retrying immediately would not help.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

#[async_trait]
impl Provider for LocalProvider {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            memory_pause: self.0.cgroups.has(Controller::Freezer),
            durable_snapshot: true,
            fork: true,
            injected_ports: true,
            owns_processes: true,
            expiry: ExpiryOwner::Gateway,
            isolation: Isolation::Namespaces,
        }
    }

    async fn ensure(&self, spec: &Spec) -> Result<EnsureOutcome, SandboxError> {
        spec.check()?;
        let (inner, spec) = (self.0.clone(), spec.clone());
        self.run_to_completion(async move {
            let _guard = inner.lock(&spec.id).await;
            inner.ensure(&spec).await
        })
        .await
    }

    async fn snapshot(
        &self,
        id: &SandboxId,
        without: &LeftOut,
        clean: CleanCopy,
    ) -> Result<SnapshotId, SandboxError> {
        let (inner, id, without) = (self.0.clone(), id.clone(), without.clone());
        self.run_to_completion(async move {
            let _guard = inner.lock(&id).await;
            inner.snapshot(&id, without, clean).await
        })
        .await
    }

    async fn remove_snapshot(&self, id: &SnapshotId) -> Result<(), SandboxError> {
        let path = self.0.directories.snapshot(id);
        blocking(move || Ok(tree::remove(&path)?)).await
    }

    async fn pause(&self, id: &SandboxId) -> Result<(), SandboxError> {
        let _guard = self.0.lock(id).await;
        self.0.freeze(id, true).await
    }

    async fn resume(&self, id: &SandboxId) -> Result<(), SandboxError> {
        let _guard = self.0.lock(id).await;
        self.0.freeze(id, false).await
    }

    async fn halt(&self, id: &SandboxId) -> Result<(), SandboxError> {
        let (inner, id) = (self.0.clone(), id.clone());
        self.run_to_completion(async move {
            let _guard = inner.lock(&id).await;
            match inner.directories.sandbox(&id).load()? {
                Some(record) => inner.end_processes(&id, &record).await,
                None => Ok(()),
            }
        })
        .await
    }

    async fn terminate(&self, id: &SandboxId) -> Result<(), SandboxError> {
        let (inner, id) = (self.0.clone(), id.clone());
        self.run_to_completion(async move {
            let _guard = inner.lock(&id).await;
            inner.terminate(&id).await
        })
        .await
    }

    async fn stop_reason(&self, id: &SandboxId) -> Option<String> {
        let directory = self.0.directories.sandbox(id);
        let recorded = blocking(move || Ok((directory.last_overuse(), directory.load()?))).await.ok()?;
        let (Some(overuse), Some(record)) = recorded else { return None };
        (!overuse.restarted).then(|| overuse.explain(record.limits.disk_bytes))
    }

    async fn list(&self) -> Result<Vec<SandboxInfo>, SandboxError> {
        let inner = self.0.clone();
        blocking(move || {
            let ids = inner.directories.ids()?;
            Ok(ids.into_iter().map(|id| SandboxInfo { state: inner.state(&id), id }).collect())
        })
        .await
    }

    async fn dial(&self, id: &SandboxId, port: u16) -> Result<Box<dyn ByteStream>, SandboxError> {
        let held = {
            let _guard = self.0.lock(id).await;
            let (_, identity, _) = self.0.running(id)?;
            match self.0.cached(id).filter(|live| live.identity == identity) {
                Some(live) => Ok(live),
                None => Err(identity),
            }
        };
        // Another process, such as a gateway next to an operator's command, may hold its injected ports: a
        // temporary broker does not touch them.
        let live = match held {
            Ok(live) => live,
            Err(identity) => {
                let socket = self.0.broker(&identity).await?.connect(port).await?;
                return Ok(Box::new(netns::connected(socket, port).await?));
            }
        };
        let socket = {
            let mut broker = live.broker.lock().await;
            match broker.connect(port).await {
                Err(SandboxError::BrokerDied) => {
                    *broker = self.0.broker(&live.identity).await?;
                    broker.connect(port).await?
                }
                other => other?,
            }
        };
        Ok(Box::new(netns::connected(socket, port).await?))
    }

    async fn listeners(&self, id: &SandboxId) -> Result<mpsc::Receiver<InjectedConnection>, SandboxError> {
        let _guard = self.0.lock(id).await;
        let live = self.0.attached(id).await?;
        let (to, from) = mpsc::channel(64);
        for (port, listener) in &live.listeners {
            tokio::spawn(accept(*port, listener.clone(), to.clone()));
        }
        Ok(from)
    }
}
