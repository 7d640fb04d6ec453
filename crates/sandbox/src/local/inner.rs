//! Operations on sandboxes; most require that the caller holds the lock of the sandbox id.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use super::cgroup::{Cgroups, Controller};
use super::config::LocalConfig;
use super::identity::{self, Identity, ProcessStatus};
use super::netns::Broker;
use super::records::{Directories, Directory, Record};
use super::uids::Uids;
use super::watch::{Watch, WatchedSandbox, watch};
use super::{blocking, leaked_processes};
use crate::error::{Capability, SandboxError};
use crate::provider::{CleanCopy, LeftOut, SandboxState};
use crate::spec::{SandboxId, SnapshotId};
use crate::tree::{self, Copy};

/// How long the kernel may take to kill all processes of a sandbox.
const KILL_TIMEOUT: Duration = Duration::from_secs(20);

/// A running sandbox to which this gateway holds sockets.
pub(super) struct AttachedSandbox {
    pub(super) identity: Identity,
    pub(super) broker: tokio::sync::Mutex<Broker>,
    pub(super) listeners: Vec<(u16, Arc<TcpListener>)>,
}

pub(super) struct Inner {
    pub(super) config: LocalConfig,
    pub(super) directories: Directories,
    pub(super) cgroups: Cgroups,
    /// `None` without root.
    pub(super) uids: Option<Uids>,
    pub(super) live: Mutex<HashMap<SandboxId, Arc<AttachedSandbox>>>,
    /// Separate from the sockets: after a restart, running sandboxes are watched before anybody uses them.
    pub(super) watches: Mutex<HashMap<SandboxId, Watch>>,
    /// Limits how many sandboxes' files are scanned at once.
    pub(super) scan_permits: Arc<Semaphore>,
    pub(super) locks: Mutex<HashMap<SandboxId, Arc<tokio::sync::Mutex<()>>>>,
}

impl Inner {
    pub(super) async fn lock(&self, id: &SandboxId) -> tokio::sync::OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.locks.lock();
            // Drop locks that nobody holds or waits for.
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            locks.entry(id.clone()).or_default().clone()
        };
        lock.lock_owned().await
    }

    pub(super) fn cached(&self, id: &SandboxId) -> Option<Arc<AttachedSandbox>> {
        self.live.lock().get(id).cloned()
    }

    pub(super) fn forget(&self, id: &SandboxId) {
        self.live.lock().remove(id);
        self.watches.lock().remove(id);
    }

    /// Watches the sandboxes that a previous gateway left running. A record that cannot be read now is read again
    /// when its sandbox is used.
    pub(super) fn watch_running(&self) -> Result<(), SandboxError> {
        for id in self.directories.ids()? {
            if let Ok((record, _, handle)) = self.running(&id) {
                self.watch(&id, &record, handle);
            }
        }
        Ok(())
    }

    fn watch(&self, id: &SandboxId, record: &Record, handle: OwnedFd) {
        let watched = WatchedSandbox::new(self.directories.sandbox(id), record.clone(), Arc::new(handle));
        let watch = watch(watched.with_helper(&self.config.helper), self.scan_permits.clone());
        self.watches.lock().insert(id.clone(), watch);
    }

    /// The recorded process, verified to be the same one.
    pub(super) fn running(&self, id: &SandboxId) -> Result<(Record, Identity, OwnedFd), SandboxError> {
        let gone = || SandboxError::NotFound(id.clone());
        let record = self.directories.sandbox(id).load()?.ok_or_else(gone)?;
        let identity = record.identity.ok_or_else(gone)?;
        match identity.find() {
            ProcessStatus::Alive(handle) => Ok((record, identity, handle)),
            ProcessStatus::Gone => Err(gone()),
            ProcessStatus::Unknown => {
                Err(SandboxError::Records("the host does not allow inspecting its process"))
            }
        }
    }

    /// The sandbox with its sockets: cached ones, or new ones. Needs the lock of the id.
    pub(super) async fn attached(&self, id: &SandboxId) -> Result<Arc<AttachedSandbox>, SandboxError> {
        let (record, identity, handle) = self.running(id)?;
        if let Some(live) = self.cached(id).filter(|live| live.identity == identity) {
            return Ok(live);
        }
        let broker = self.broker(&identity).await?;
        self.attach(id, &record, identity, handle, broker).await
    }

    pub(super) async fn attach(
        &self,
        id: &SandboxId,
        record: &Record,
        identity: Identity,
        handle: OwnedFd,
        mut broker: Broker,
    ) -> Result<Arc<AttachedSandbox>, SandboxError> {
        // Watch first: even if the broker fails, the sandbox must not exceed its limits.
        self.watch(id, record, handle);
        let mut listeners = Vec::new();
        for port in &record.injected {
            listeners.push((*port, Arc::new(broker.listen(*port).await?)));
        }
        let broker = tokio::sync::Mutex::new(broker);
        let live = Arc::new(AttachedSandbox { identity, broker, listeners });
        self.live.lock().insert(id.clone(), live.clone());
        Ok(live)
    }

    pub(super) async fn broker(&self, identity: &Identity) -> Result<Broker, SandboxError> {
        let mut broker = Broker::start(&self.config.helper)?;
        broker.enter_network_of(identity).await?;
        Ok(broker)
    }

    pub(super) fn state(&self, id: &SandboxId) -> SandboxState {
        let directory = self.directories.sandbox(id);
        let Ok(record) = directory.load() else { return SandboxState::Unknown };
        let over = || if directory.home().exists() { SandboxState::Dead } else { SandboxState::Incomplete };
        let Some((identity, group)) = record.and_then(|r| Some((r.identity?, r.group))) else {
            return over();
        };
        match identity.find() {
            ProcessStatus::Alive(_) if group.frozen() == Some(true) => SandboxState::Paused,
            ProcessStatus::Alive(_) => SandboxState::Running,
            ProcessStatus::Gone => over(),
            ProcessStatus::Unknown => SandboxState::Unknown,
        }
    }

    /// Kills all processes of a sandbox and removes its control groups; files and user id stay.
    pub(super) async fn end_processes(&self, id: &SandboxId, record: &Record) -> Result<(), SandboxError> {
        self.forget(id);
        let (record, directory) = (record.clone(), self.directories.sandbox(id));
        blocking(move || {
            match record.identity.map(|identity| identity.find()) {
                None => leaked_processes::kill_unrecorded(&directory)?,
                Some(ProcessStatus::Gone) => {}
                Some(ProcessStatus::Unknown) => {
                    return Err(SandboxError::Records("the host does not allow inspecting its process"));
                }
                Some(ProcessStatus::Alive(handle)) => {
                    identity::kill(&handle);
                    let _ = record.group.freeze(false);
                    if !identity::wait(&handle, KILL_TIMEOUT) {
                        return Err(SandboxError::Timeout("stopping its processes"));
                    }
                }
            }
            if let Some(uid) = record.uid {
                leaked_processes::kill_user(uid)?;
            }
            record.group.remove()
        })
        .await
    }

    pub(super) async fn terminate(&self, id: &SandboxId) -> Result<(), SandboxError> {
        let directory = self.directories.sandbox(id);
        if !directory.0.exists() {
            return Ok(());
        }
        let record = directory.load()?;
        if let Some(record) = &record {
            self.end_processes(id, record).await?;
        }
        self.forget(id);
        blocking(move || Ok(tree::remove(&directory.0)?)).await?;
        match (&self.uids, record) {
            (Some(uids), Some(Record { uid: Some(uid), .. })) => uids.release(uid, id),
            // A crash between allocating a user id and recording it leaves an id that only its own file knows.
            (Some(uids), _) => uids.sweep(|id| self.directories.sandbox(id).0.exists()),
            (None, _) => {}
        }
        Ok(())
    }

    pub(super) async fn snapshot(
        &self,
        id: &SandboxId,
        without: LeftOut,
        clean: CleanCopy,
    ) -> Result<SnapshotId, SandboxError> {
        let directory = self.directories.sandbox(id);
        let record = directory.load()?.ok_or_else(|| SandboxError::NotFound(id.clone()))?;
        let bytes = self.config.rng.bytes::<16>();
        let name = bytes.iter().fold(String::from("snap-"), |name, byte| format!("{name}{byte:02x}"));
        let snapshot = SnapshotId::new(name)?;
        let (draft, done) =
            (self.directories.snapshot_draft(&snapshot), self.directories.snapshot(&snapshot));
        let directories = self.directories.clone();
        blocking(move || {
            let _making =
                directories.lock_for_snapshot().map_err(SandboxError::host("lock the snapshots"))?;
            // A dead sandbox has nothing to freeze, and after a reboot no group either.
            let over = record.identity.is_none_or(|identity| matches!(identity.find(), ProcessStatus::Gone));
            let stop = !over && record.group.frozen() == Some(false);
            if stop {
                record.group.freeze(true)?;
            }
            let copied = copy_home(&directory, &draft, &record, without);
            if stop {
                record.group.freeze(false)?;
            }
            let cleaned =
                copied.and_then(|()| clean(&draft).map_err(SandboxError::host("clean the snapshot")));
            if let Err(error) = cleaned {
                let _ = tree::remove(&draft);
                return Err(error);
            }
            std::fs::rename(&draft, &done).map_err(SandboxError::host("keep the snapshot"))
        })
        .await?;
        Ok(snapshot)
    }

    pub(super) async fn freeze(&self, id: &SandboxId, stop: bool) -> Result<(), SandboxError> {
        if !self.cgroups.has(Controller::Freezer) {
            return Err(SandboxError::Unsupported(Capability::MemoryPause));
        }
        let (record, ..) = self.running(id)?;
        blocking(move || record.group.freeze(stop)).await
    }
}

fn copy_home(
    directory: &Directory,
    to: &Path,
    record: &Record,
    without: LeftOut,
) -> Result<(), SandboxError> {
    std::fs::create_dir(to).map_err(SandboxError::host("create the snapshot's directory"))?;
    let copy = Copy::new(None, record.limits.disk_bytes.saturating_mul(2));
    Ok(copy.without(without).run(&directory.home(), to)?)
}
