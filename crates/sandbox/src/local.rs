//! Sandboxes on this host: bubblewrap in namespaces of its own, without a network device, under a user id that owns
//! nothing else.
//!
//! - bubblewrap never runs as root, and starts with an empty environment: [`launcher`].
//! - The inside and the gateway reach each other only through sockets that the gateway makes: [`broker`].
//! - A sandbox outlives the gateway and is known again by its [`identity::Identity`], never by pid alone.

mod broker;
mod bwrap;
mod cgroup;
mod config;
mod disk;
mod hidden;
pub(crate) mod identity;
mod inner;
mod launched;
mod launcher;
mod leaked;
mod netns;
mod open_files;
mod plan;
mod records;
mod seccomp;
mod sockets;
mod start;
mod strays;
mod uids;
mod watch;
mod wire;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};

pub use config::{LimitsReport, LocalConfig, Strength};
pub use hidden::hidden_main;
pub use leaked::{Leaked, leaked};

use self::cgroup::{Cgroups, Controller};
use self::inner::Inner;
use self::records::Folders;
use self::uids::Uids;
use crate::error::SandboxError;
use crate::provider::{
    ByteStream, Capabilities, Ensured, ExpiryOwner, Injected, Isolation, Listed, Provider,
};
use crate::spec::{SandboxId, SnapshotId, Spec};
use crate::tree;

/// The provider of sandboxes on this host.
#[derive(Clone)]
pub struct LocalProvider(Arc<Inner>);

impl LocalProvider {
    pub fn open(config: LocalConfig) -> Result<Self, SandboxError> {
        let folders = Folders::open(config.root.clone())?;
        let root = rustix::process::geteuid().is_root();
        let uids = root.then(|| Uids::open(&folders.uids(), config.uids.clone())).transpose()?;
        if let Some(uids) = &uids {
            uids.sweep(|id| folders.sandbox(id).0.exists());
        }
        let probe = format!("{}-probe-{}", folders.mark(), std::process::id());
        let cgroups = if config.cgroups { Cgroups::detect(&probe) } else { Cgroups::default() };
        let (live, watches, locks) = (Mutex::default(), Mutex::default(), Mutex::default());
        let turns = Arc::new(Semaphore::new(watch::turns()));
        let inner = Inner { config, folders, cgroups, uids, live, watches, turns, locks };
        // Who opens the folders outside of a runtime only wants to read them.
        if tokio::runtime::Handle::try_current().is_ok() {
            inner.watch_running()?;
        }
        Ok(Self(Arc::new(inner)))
    }

    pub fn limits_report(&self) -> LimitsReport {
        let held = |controller, otherwise| {
            if self.0.cgroups.has(controller) { Strength::Hard } else { otherwise }
        };
        LimitsReport {
            memory: held(Controller::Memory, Strength::Soft),
            // Held by a resource limit where there is no control group.
            pids: Strength::Hard,
            cpu: held(Controller::Cpu, Strength::None),
            disk: Strength::Soft,
            tmp: Strength::Hard,
            files: Strength::Hard,
        }
    }

    /// What the sandboxes that run here take together, as it was seen last.
    pub fn usage(&self) -> Usage {
        let watches = self.0.watches.lock().unwrap_or_else(PoisonError::into_inner);
        let running = watches.values().filter(|watch| !watch.is_over()).map(watch::Watch::seen);
        running.fold(Usage::default(), |sum, (memory, disk)| Usage {
            sandboxes: sum.sandboxes + 1,
            memory_bytes: sum.memory_bytes.saturating_add(memory),
            disk_bytes: sum.disk_bytes.saturating_add(disk),
        })
    }

    /// Runs to its end even if the caller stops waiting: half a start or half an end would leave something behind.
    async fn whole<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, SandboxError>> + Send + 'static,
    ) -> Result<T, SandboxError> {
        tokio::spawn(work).await.unwrap_or(Err(SandboxError::Records("the work on it broke off")))
    }
}

/// What sandboxes take of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub sandboxes: u64,
    pub memory_bytes: u64,
    pub disk_bytes: u64,
}

/// File work that would hold up other tasks.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SandboxError> + Send + 'static,
) -> Result<T, SandboxError> {
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(SandboxError::Records("the work on it broke off")))
}

/// Hands connections over until nobody takes them any more.
pub(crate) async fn accept(port: u16, listener: Arc<TcpListener>, to: mpsc::Sender<Injected>) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = to.closed() => return,
        };
        match accepted {
            Ok((stream, _)) => {
                if to.send(Injected { port, stream: Box::new(stream) }).await.is_err() {
                    return;
                }
            }
            // Out of descriptors, or the connection is gone already: neither is better at once.
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

    async fn ensure(&self, spec: &Spec) -> Result<Ensured, SandboxError> {
        spec.check()?;
        let (inner, spec) = (self.0.clone(), spec.clone());
        self.whole(async move {
            let _guard = inner.lock(&spec.id).await;
            inner.ensure(&spec).await
        })
        .await
    }

    async fn snapshot(&self, id: &SandboxId, without: &[PathBuf]) -> Result<SnapshotId, SandboxError> {
        let (inner, id, without) = (self.0.clone(), id.clone(), without.to_vec());
        self.whole(async move {
            let _guard = inner.lock(&id).await;
            inner.snapshot(&id, without).await
        })
        .await
    }

    async fn remove_snapshot(&self, id: &SnapshotId) -> Result<(), SandboxError> {
        let path = self.0.folders.snapshot(id);
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
        self.whole(async move {
            let _guard = inner.lock(&id).await;
            match inner.folders.sandbox(&id).load()? {
                Some(record) => inner.end_processes(&id, &record).await,
                None => Ok(()),
            }
        })
        .await
    }

    async fn terminate(&self, id: &SandboxId) -> Result<(), SandboxError> {
        let (inner, id) = (self.0.clone(), id.clone());
        self.whole(async move {
            let _guard = inner.lock(&id).await;
            inner.terminate(&id).await
        })
        .await
    }

    async fn ended_for(&self, id: &SandboxId) -> Option<String> {
        let folder = self.0.folders.sandbox(id);
        let noted = blocking(move || Ok((folder.last_overuse(), folder.load()?))).await.ok()?;
        let (Some(overuse), Some(record)) = noted else { return None };
        (!overuse.restarted).then(|| overuse.explain(record.limits.disk_bytes))
    }

    async fn list(&self) -> Result<Vec<Listed>, SandboxError> {
        let inner = self.0.clone();
        blocking(move || {
            let ids = inner.folders.ids()?;
            Ok(ids.into_iter().map(|id| Listed { state: inner.state(&id), id }).collect())
        })
        .await
    }

    async fn dial(&self, id: &SandboxId, port: u16) -> Result<Box<dyn ByteStream>, SandboxError> {
        let held = {
            let _guard = self.0.lock(id).await;
            let (_, identity, _) = self.0.running(id)?;
            match self.0.known(id).filter(|live| live.identity == identity) {
                Some(live) => Ok(live),
                None => Err(identity),
            }
        };
        // Somebody else may hold its injected ports, a gateway beside an operator's command: a broker for this once
        // leaves them alone.
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

    async fn listeners(&self, id: &SandboxId) -> Result<mpsc::Receiver<Injected>, SandboxError> {
        let _guard = self.0.lock(id).await;
        let live = self.0.attached(id).await?;
        let (to, from) = mpsc::channel(64);
        for (port, listener) in &live.listeners {
            tokio::spawn(accept(*port, listener.clone(), to.clone()));
        }
        Ok(from)
    }
}
