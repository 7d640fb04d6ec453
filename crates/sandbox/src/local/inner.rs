//! The work on sandboxes, done by whoever holds the lock of the id.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use super::cgroup::{Cgroups, Controller};
use super::config::LocalConfig;
use super::identity::{self, Found, Identity};
use super::netns::Broker;
use super::records::{Folder, Folders, Record};
use super::uids::Uids;
use super::watch::{Watch, Watched, watch};
use super::{blocking, strays};
use crate::error::{Capability, SandboxError};
use crate::provider::SandboxState;
use crate::spec::{SandboxId, SnapshotId};
use crate::tree::{self, Copy};

/// How long the kernel may take to end all processes of a sandbox.
const END: Duration = Duration::from_secs(20);

/// A sandbox that this gateway holds sockets of.
pub(super) struct Live {
    pub(super) identity: Identity,
    pub(super) broker: tokio::sync::Mutex<Broker>,
    pub(super) listeners: Vec<(u16, Arc<TcpListener>)>,
}

pub(super) struct Inner {
    pub(super) config: LocalConfig,
    pub(super) folders: Folders,
    pub(super) cgroups: Cgroups,
    /// `None` without root.
    pub(super) uids: Option<Uids>,
    pub(super) live: Mutex<HashMap<SandboxId, Arc<Live>>>,
    /// Apart from the sockets: who is alive is watched also when nobody has asked for it since a restart.
    pub(super) watches: Mutex<HashMap<SandboxId, Watch>>,
    /// How many sandboxes' files are looked at at a time.
    pub(super) turns: Arc<Semaphore>,
    pub(super) locks: Mutex<HashMap<SandboxId, Arc<tokio::sync::Mutex<()>>>>,
}

impl Inner {
    pub(super) async fn lock(&self, id: &SandboxId) -> tokio::sync::OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
            // Locks that nobody holds or waits for are forgotten.
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            locks.entry(id.clone()).or_default().clone()
        };
        lock.lock_owned().await
    }

    pub(super) fn known(&self, id: &SandboxId) -> Option<Arc<Live>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    pub(super) fn forget(&self, id: &SandboxId) {
        self.live.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
        self.watches.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    /// Watches what another gateway has left running. A record that cannot be read now is read again when its sandbox is
    /// asked for.
    pub(super) fn watch_running(&self) -> Result<(), SandboxError> {
        for id in self.folders.ids()? {
            if let Ok((record, _, handle)) = self.running(&id) {
                self.watch(&id, &record, handle);
            }
        }
        Ok(())
    }

    fn watch(&self, id: &SandboxId, record: &Record, handle: OwnedFd) {
        let watched = Watched::new(self.folders.sandbox(id), record.clone(), Arc::new(handle));
        let watch = watch(watched.asking_by(&self.config.helper), self.turns.clone());
        self.watches.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone(), watch);
    }

    /// The recorded process, checked to be the one.
    pub(super) fn running(&self, id: &SandboxId) -> Result<(Record, Identity, OwnedFd), SandboxError> {
        let gone = || SandboxError::NotFound(id.clone());
        let record = self.folders.sandbox(id).load()?.ok_or_else(gone)?;
        let identity = record.identity.ok_or_else(gone)?;
        match identity.find() {
            Found::Alive(handle) => Ok((record, identity, handle)),
            Found::Gone => Err(gone()),
            Found::Unknown => Err(SandboxError::Records("the host hides its process")),
        }
    }

    /// The sandbox with its sockets: those that we hold, else new ones. Needs the lock of the id.
    pub(super) async fn attached(&self, id: &SandboxId) -> Result<Arc<Live>, SandboxError> {
        let (record, identity, handle) = self.running(id)?;
        if let Some(live) = self.known(id).filter(|live| live.identity == identity) {
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
    ) -> Result<Arc<Live>, SandboxError> {
        // First, since a broker that fails is no reason to let the sandbox take what it likes.
        self.watch(id, record, handle);
        let mut listeners = Vec::new();
        for port in &record.injected {
            listeners.push((*port, Arc::new(broker.listen(*port).await?)));
        }
        let broker = tokio::sync::Mutex::new(broker);
        let live = Arc::new(Live { identity, broker, listeners });
        self.live.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone(), live.clone());
        Ok(live)
    }

    pub(super) async fn broker(&self, identity: &Identity) -> Result<Broker, SandboxError> {
        let mut broker = Broker::start(&self.config.helper)?;
        broker.enter_network_of(identity).await?;
        Ok(broker)
    }

    pub(super) fn state(&self, id: &SandboxId) -> SandboxState {
        let folder = self.folders.sandbox(id);
        let Ok(record) = folder.load() else { return SandboxState::Unknown };
        let over = || if folder.home().exists() { SandboxState::Dead } else { SandboxState::Unmade };
        let Some((identity, group)) = record.and_then(|r| Some((r.identity?, r.group))) else {
            return over();
        };
        match identity.find() {
            Found::Alive(_) if group.frozen() == Some(true) => SandboxState::Paused,
            Found::Alive(_) => SandboxState::Running,
            Found::Gone => over(),
            Found::Unknown => SandboxState::Unknown,
        }
    }

    /// Ends all processes of a sandbox and removes its control groups; files and user id stay.
    pub(super) async fn end_processes(&self, id: &SandboxId, record: &Record) -> Result<(), SandboxError> {
        self.forget(id);
        let (record, folder) = (record.clone(), self.folders.sandbox(id));
        blocking(move || {
            match record.identity.map(|identity| identity.find()) {
                None => strays::end_unknown(&folder)?,
                Some(Found::Gone) => {}
                Some(Found::Unknown) => return Err(SandboxError::Records("the host hides its process")),
                Some(Found::Alive(handle)) => {
                    identity::kill(&handle);
                    let _ = record.group.freeze(false);
                    if !identity::wait(&handle, END) {
                        return Err(SandboxError::Timeout("to end"));
                    }
                }
            }
            if let Some(uid) = record.uid {
                strays::end_user(uid)?;
            }
            record.group.remove()
        })
        .await
    }

    pub(super) async fn terminate(&self, id: &SandboxId) -> Result<(), SandboxError> {
        let folder = self.folders.sandbox(id);
        if !folder.0.exists() {
            return Ok(());
        }
        let record = folder.load()?;
        if let Some(record) = &record {
            self.end_processes(id, record).await?;
        }
        self.forget(id);
        blocking(move || Ok(tree::remove(&folder.0)?)).await?;
        match (&self.uids, record) {
            (Some(uids), Some(Record { uid: Some(uid), .. })) => uids.give_back(uid, id),
            // A crash between taking an id and recording it leaves one that only its own file knows of.
            (Some(uids), _) => uids.sweep(|id| self.folders.sandbox(id).0.exists()),
            (None, _) => {}
        }
        Ok(())
    }

    pub(super) async fn snapshot(
        &self,
        id: &SandboxId,
        without: Vec<PathBuf>,
    ) -> Result<SnapshotId, SandboxError> {
        let folder = self.folders.sandbox(id);
        let record = folder.load()?.ok_or_else(|| SandboxError::NotFound(id.clone()))?;
        let bytes = self.config.rng.bytes::<16>();
        let name = bytes.iter().fold(String::from("snap-"), |name, byte| format!("{name}{byte:02x}"));
        let snapshot = SnapshotId::new(name)?;
        let (draft, done) = (self.folders.snapshot_draft(&snapshot), self.folders.snapshot(&snapshot));
        let folders = self.folders.clone();
        blocking(move || {
            let _making =
                folders.making_snapshot().map_err(SandboxError::host("say that a snapshot is being made"))?;
            // What is over has nothing to stop, and after a reboot no group either.
            let over = record.identity.is_none_or(|identity| matches!(identity.find(), Found::Gone));
            let stop = !over && record.group.frozen() == Some(false);
            if stop {
                record.group.freeze(true)?;
            }
            let copied = copy_home(&folder, &draft, &record, without);
            if stop {
                record.group.freeze(false)?;
            }
            if let Err(error) = copied {
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

fn copy_home(folder: &Folder, to: &Path, record: &Record, without: Vec<PathBuf>) -> Result<(), SandboxError> {
    std::fs::create_dir(to).map_err(SandboxError::host("make the snapshot's folder"))?;
    let copy = Copy::new(None, record.limits.disk_bytes.saturating_mul(2));
    Ok(copy.without(without).run(&folder.home(), to)?)
}
