//! The start of a sandbox, in steps that each can fail, and the way back from every one of them.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, chown};
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit};
use tokio::time::timeout;

use super::blocking;
use super::identity::{self, Found, Identity};
use super::inner::Inner;
use super::launched::Launched;
use super::netns::Broker;
use super::plan::Plan;
use super::records::{Folder, Overuse, Record};
use crate::error::SandboxError;
use crate::provider::Ensured;
use crate::spec::Spec;
use crate::tree::{self, Copy, Owner, TreeError};

/// What a sandbox over its disk limit may add: what an agent writes to start and to remove files.
const CLEANUP: u64 = 64 * 1024 * 1024;
/// How long to wait between two looks whether PID 1 runs.
const LOOK: Duration = Duration::from_micros(200);

impl Inner {
    pub(super) async fn ensure(&self, spec: &Spec) -> Result<Ensured, SandboxError> {
        let folder = self.folders.sandbox(&spec.id);
        let old = folder.load()?;
        if let Some(record) = &old {
            let found = record.identity.map_or(Found::Gone, |identity| identity.find());
            match found {
                Found::Alive(_) => {
                    let group = record.group.clone();
                    blocking(move || if group.frozen() == Some(true) { group.freeze(false) } else { Ok(()) })
                        .await?;
                    match self.attached(&spec.id).await {
                        // A program inside has taken the gateway's place while there was none. Its processes end, and
                        // whoever asks again starts anew with the same files.
                        Err(error @ SandboxError::PortTaken(_)) => {
                            self.end_processes(&spec.id, record).await?;
                            return Err(error);
                        }
                        attached => drop(attached?),
                    }
                    return Ok(Ensured { id: spec.id.clone(), recovered: true, made_files: false });
                }
                Found::Unknown => return Err(SandboxError::Records("the host hides its process")),
                Found::Gone => self.end_processes(&spec.id, record).await?,
            }
        }
        self.precheck(spec)?;
        let had_files = folder.home().exists();
        let started = self.start(spec, &folder, old.and_then(|record| record.uid)).await;
        if let Err(error) = started {
            self.undo(spec, &folder, had_files).await;
            return Err(error);
        }
        Ok(Ensured { id: spec.id.clone(), recovered: false, made_files: !had_files })
    }

    /// What can be known to fail before anything is made.
    fn precheck(&self, spec: &Spec) -> Result<(), SandboxError> {
        if !self.config.bwrap.is_file() {
            return Err(SandboxError::BubblewrapMissing);
        }
        if spec.programs.values().any(|path| !path.is_file()) {
            return Err(SandboxError::BadSpec("a program for the inside is no file"));
        }
        if spec.rootfs.as_ref().is_some_and(|path| !path.join("usr").is_dir()) {
            return Err(SandboxError::BadSpec("the root filesystem has no folder `usr`"));
        }
        match &spec.snapshot {
            Some(id) if !self.folders.snapshot(id).is_dir() => Err(SandboxError::NoSnapshot(id.clone())),
            _ => Ok(()),
        }
    }

    /// The first record, which says what has to be taken back from here on.
    fn record(&self, spec: &Spec, folder: &Folder, old: Option<u32>) -> Result<Record, SandboxError> {
        let uid = match (&self.uids, old) {
            (None, _) => None,
            (Some(uids), Some(uid)) => {
                uids.keep(uid, &spec.id)?;
                Some(uid)
            }
            (Some(uids), None) => Some(uids.take(&spec.id)?),
        };
        let record = Record {
            version: 1,
            uid,
            group: self.cgroups.group(&format!("{}-{}", self.folders.mark(), spec.id)),
            identity: None,
            injected: spec.injected.clone(),
            limits: spec.limits.clone(),
        };
        let saved = folder.save(&record);
        if let (Err(_), None, Some(uid), Some(uids)) = (&saved, old, uid, &self.uids) {
            uids.give_back(uid, &spec.id);
        }
        saved.map(|()| record)
    }

    async fn start(&self, spec: &Spec, folder: &Folder, uid: Option<u32>) -> Result<(), SandboxError> {
        folder.create().map_err(SandboxError::host("make the sandbox's folder"))?;
        // First of all, since it takes a while to come up; it does nothing before it has a plan, and ends without one.
        let mut launched = Launched::spawn(&self.config.helper, folder)?;
        let begun = self.prepare(spec, folder, uid, &mut launched).await;
        if begun.is_err() {
            launched.abort();
        }
        // Somebody has to take note of its end, or it stays as a zombie.
        tokio::spawn(launched.ended());
        begun
    }

    /// From the first record to a running PID 1.
    async fn prepare(
        &self,
        spec: &Spec,
        folder: &Folder,
        uid: Option<u32>,
        launched: &mut Launched,
    ) -> Result<(), SandboxError> {
        let mut record = self.record(spec, folder, uid)?;
        record.group.make(&spec.limits)?;
        self.files(spec, folder, record.uid).await?;
        record.limits.disk_bytes = allow_cleanup(folder, spec.limits.disk_bytes).await?;
        if !launched.plan(&self.plan(spec, folder, &record)).await? {
            return Err(failed(folder));
        }
        // Beside the launcher, since this takes a while to come up, too.
        let broker = Broker::start(&self.config.helper)?;
        self.begin(spec, folder, &mut record, launched, broker).await
    }

    /// Puts the home together under another name, so that a home that is there is complete.
    async fn files(&self, spec: &Spec, folder: &Folder, uid: Owner) -> Result<(), SandboxError> {
        let (folder, most) = (folder.clone(), spec.limits.disk_bytes.saturating_mul(2));
        let snapshot = spec.snapshot.as_ref().map(|id| self.folders.snapshot(id));
        blocking(move || {
            let host = SandboxError::host("make the sandbox's home");
            if folder.home().exists() {
                return Ok(tree::keep_folder(&folder.home(), c"workspace", uid)?);
            }
            let draft = folder.home_draft();
            tree::remove(&draft)?;
            private(&draft, None).map_err(&host)?;
            if let Some(snapshot) = snapshot {
                Copy::new(uid, most).run(&snapshot, &draft)?;
            } else {
                own(&draft, uid).map_err(&host)?;
            }
            tree::keep_folder(&draft, c"workspace", uid)?;
            fs::rename(&draft, folder.home()).map_err(host)
        })
        .await
    }

    fn plan(&self, spec: &Spec, folder: &Folder, record: &Record) -> Plan {
        Plan {
            bwrap: self.config.bwrap.clone(),
            home: folder.home(),
            init: spec.init.clone(),
            programs: spec.programs.clone(),
            rootfs: spec.rootfs.clone(),
            stdin: spec.stdin.clone(),
            env: spec.env.clone(),
            limits: spec.limits.clone(),
            uid: record.uid,
            join: record.group.join_files(),
        }
    }

    /// From bubblewrap's first word on.
    async fn begin(
        &self,
        spec: &Spec,
        folder: &Folder,
        record: &mut Record,
        launched: &mut Launched,
        mut broker: Broker,
    ) -> Result<(), SandboxError> {
        let limit = self.config.start_timeout;
        let pid = match timeout(limit, launched.child_pid()).await {
            Err(_) => return Err(SandboxError::Timeout("bubblewrap")),
            Ok(None) => return Err(failed(folder)),
            Ok(Some(pid)) => pid,
        };
        let ended = |_| failed(folder);
        let handle = identity::open(pid).map_err(ended)?;
        launched.hold(handle.try_clone().map_err(SandboxError::host("hold PID 1"))?);
        let identity = Identity::of(pid).map_err(ended)?;
        if identity.uid == 0 || record.uid.is_some_and(|uid| uid != identity.uid) {
            return Err(SandboxError::StartFailed("it would have run as another user: this is a bug".into()));
        }
        if record.uid.is_none() {
            limit_processes(pid, spec.limits.pids);
        }
        record.identity = Some(identity);
        folder.save(record)?;
        // The ports are ours before anything inside runs that could take them.
        let attached = match (broker.enter_network_of(&identity).await, handle.try_clone()) {
            (Ok(()), Ok(copy)) => self.attach(&spec.id, record, identity, copy, broker).await,
            (Err(error), _) => Err(error),
            (_, Err(error)) => Err(SandboxError::host("hold PID 1")(error)),
        };
        if let Err(error) = attached {
            return Err(if identity::ended(&handle) { failed(folder) } else { error });
        }
        launched.go().await;
        let folder = folder.clone();
        blocking(move || wait_for_init(pid, &handle, limit).unwrap_or_else(|| Err(failed(&folder)))).await
    }

    /// Takes back a start that failed. Files that were there before stay.
    async fn undo(&self, spec: &Spec, folder: &Folder, keep_files: bool) {
        let undone = if keep_files {
            match folder.load() {
                Ok(Some(record)) => self.end_processes(&spec.id, &record).await,
                other => other.map(drop),
            }
        } else {
            self.terminate(&spec.id).await
        };
        if let Err(error) = undone {
            tracing::error!(sandbox = %spec.id, %error, "a failed start left something behind");
        }
    }
}

/// The disk limit of this start. A sandbox that was ended for its disk gets a little more than it has, so that somebody can
/// remove files in it; above the grace it does not start at all. Files are counted only after such an end.
async fn allow_cleanup(folder: &Folder, limit: u64) -> Result<u64, SandboxError> {
    let Some(overuse) = folder.last_overuse() else { return Ok(limit) };
    if overuse.what != Overuse::DISK {
        folder.forget_overuse();
        return Ok(limit);
    }
    let folder = folder.clone();
    blocking(move || {
        let most = limit.saturating_add(limit / 2);
        let size = match tree::measure(&folder.home(), most) {
            Ok(size) => size,
            Err(TreeError::TooLarge(_)) => return Err(SandboxError::OverDisk { limit, most }),
            Err(error) => return Err(error.into()),
        };
        if size.bytes <= limit {
            folder.forget_overuse();
            return Ok(limit);
        }
        let noted = folder.note_overuse(&Overuse { restarted: true, ..overuse });
        noted.map_err(SandboxError::host("note why the sandbox was ended"))?;
        Ok(size.bytes.saturating_add(CLEANUP).min(most))
    })
    .await
}

/// Why it did not start, from what bubblewrap said.
fn failed(folder: &Folder) -> SandboxError {
    match folder.complaint() {
        None => SandboxError::InitExited,
        Some(text) if text.contains("namespace") || text.contains("uid map") => {
            tracing::warn!(%text, "bubblewrap got no namespaces");
            SandboxError::NamespacesForbidden
        }
        Some(text) => SandboxError::StartFailed(text),
    }
}

/// Without root the user has other processes, too, and a limit set before would count them. Set on PID 1 in its user
/// namespace it counts those of the sandbox only, and all of them inherit it.
fn limit_processes(pid: i32, most: u64) {
    let Some(pid) = Pid::from_raw(pid) else { return };
    let most = most.min(rustix::process::getrlimit(Resource::Nproc).maximum.unwrap_or(u64::MAX));
    let limit = Rlimit { current: Some(most), maximum: Some(most) };
    if let Err(error) = rustix::process::prlimit(Some(pid), Resource::Nproc, limit) {
        tracing::warn!(kind = ?error.kind(), "the host refused a limit of processes, the watcher counts");
    }
}

/// Waits, blocking this thread, until PID 1 has taken bubblewrap's place; `None` if it ended. It takes two or three
/// milliseconds, for which the runtime's timer is too coarse.
fn wait_for_init(pid: i32, handle: &OwnedFd, most: Duration) -> Option<Result<(), SandboxError>> {
    for _ in 0..most.as_micros() / LOOK.as_micros() {
        if identity::wait(handle, LOOK) {
            return None;
        }
        if became_init(pid) {
            return Some(Ok(()));
        }
    }
    Some(Err(SandboxError::Timeout("PID 1")))
}

/// The name of the process is bubblewrap's until PID 1 takes its place.
fn became_init(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim_end() != "bwrap")
}

fn private(path: &Path, uid: Owner) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)?;
    own(path, uid)
}

fn own(path: &Path, uid: Owner) -> io::Result<()> {
    if uid.is_some() { chown(path, uid, uid) } else { Ok(()) }
}
