//! Starts a sandbox, in steps of which each can fail, and undoes a failed start.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, chown};
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit};
use tokio::time::timeout;

use super::blocking;
use super::identity::{self, Identity, ProcessStatus};
use super::inner::Inner;
use super::launcher_process::LauncherProcess;
use super::netns::Broker;
use super::plan::Plan;
use super::records::{Directory, LimitExceeded, Record};
use crate::error::SandboxError;
use crate::provider::EnsureOutcome;
use crate::spec::Spec;
use crate::tree::{self, Copy, Owner, TreeError};

/// The space that a sandbox over its disk limit gets, so that an agent can start and remove files.
const CLEANUP_BYTES: u64 = 64 * 1024 * 1024;
/// The interval at which we check whether PID 1 runs.
const CHECK_INTERVAL: Duration = Duration::from_micros(200);

impl Inner {
    pub(super) async fn ensure(&self, spec: &Spec) -> Result<EnsureOutcome, SandboxError> {
        let directory = self.directories.sandbox(&spec.id);
        let old = directory.load()?;
        if let Some(record) = &old {
            let found = record.identity.map_or(ProcessStatus::Gone, |identity| identity.find());
            match found {
                ProcessStatus::Alive(_) => {
                    let group = record.group.clone();
                    blocking(move || if group.frozen() == Some(true) { group.freeze(false) } else { Ok(()) })
                        .await?;
                    match self.attached(&spec.id).await {
                        // A program inside bound the gateway's port while no gateway ran. Stop its processes; the
                        // next call starts the sandbox again with the same files.
                        Err(error @ SandboxError::PortTaken(_)) => {
                            self.end_processes(&spec.id, record).await?;
                            return Err(error);
                        }
                        attached => drop(attached?),
                    }
                    return Ok(EnsureOutcome { id: spec.id.clone(), recovered: true, made_files: false });
                }
                ProcessStatus::Unknown => {
                    return Err(SandboxError::Records("the host does not allow inspecting its process"));
                }
                ProcessStatus::Gone => self.end_processes(&spec.id, record).await?,
            }
        }
        self.precheck(spec)?;
        let had_files = directory.home().exists();
        let started = self.start(spec, &directory, old.and_then(|record| record.uid)).await;
        if let Err(error) = started {
            self.undo(spec, &directory, had_files).await;
            return Err(error);
        }
        Ok(EnsureOutcome { id: spec.id.clone(), recovered: false, made_files: !had_files })
    }

    /// Checks everything that can be known to fail before anything is created.
    fn precheck(&self, spec: &Spec) -> Result<(), SandboxError> {
        if !self.config.bwrap.is_file() {
            return Err(SandboxError::BubblewrapMissing);
        }
        if spec.programs.values().any(|path| !path.is_file() && !path.is_dir()) {
            return Err(SandboxError::BadSpec("a program for the sandbox does not exist"));
        }
        if spec.rootfs.as_ref().is_some_and(|path| !path.join("usr").is_dir()) {
            return Err(SandboxError::BadSpec("the root filesystem has no directory `usr`"));
        }
        match &spec.snapshot {
            Some(id) if !self.directories.snapshot(id).is_dir() => Err(SandboxError::NoSnapshot(id.clone())),
            _ => Ok(()),
        }
    }

    /// Creates the first record, which lists what a failed start must release.
    fn record(&self, spec: &Spec, directory: &Directory, old: Option<u32>) -> Result<Record, SandboxError> {
        let uid = match (&self.uids, old) {
            (None, _) => None,
            (Some(uids), Some(uid)) => {
                uids.reclaim(uid, &spec.id)?;
                Some(uid)
            }
            (Some(uids), None) => Some(uids.allocate(&spec.id)?),
        };
        let record = Record {
            version: 1,
            uid,
            group: self.cgroups.group(&format!("{}-{}", self.directories.mark(), spec.id)),
            identity: None,
            injected: spec.injected.clone(),
            limits: spec.limits.clone(),
        };
        let saved = directory.save(&record);
        if let (Err(_), None, Some(uid), Some(uids)) = (&saved, old, uid, &self.uids) {
            uids.release(uid, &spec.id);
        }
        saved.map(|()| record)
    }

    async fn start(&self, spec: &Spec, directory: &Directory, uid: Option<u32>) -> Result<(), SandboxError> {
        directory.create().map_err(SandboxError::host("create the sandbox's directory"))?;
        // Spawned first because it takes a while to start; it does nothing before it has a plan, and exits without
        // one.
        let mut launcher = LauncherProcess::spawn(&self.config.helper, directory)?;
        let begun = self.prepare(spec, directory, uid, &mut launcher).await;
        if begun.is_err() {
            launcher.abort();
        }
        // A process that nobody waits for stays a zombie.
        tokio::spawn(launcher.wait());
        begun
    }

    /// The steps from the first record to a running PID 1.
    async fn prepare(
        &self,
        spec: &Spec,
        directory: &Directory,
        uid: Option<u32>,
        launcher: &mut LauncherProcess,
    ) -> Result<(), SandboxError> {
        let mut record = self.record(spec, directory, uid)?;
        record.group.make(&spec.limits)?;
        self.prepare_home(spec, directory, record.uid).await?;
        record.limits.disk_bytes = allow_cleanup(directory, spec.limits.disk_bytes).await?;
        if !launcher.plan(&self.plan(spec, directory, &record)).await? {
            return Err(start_error(directory));
        }
        // Started concurrently with the launcher, because it also takes a while.
        let broker = Broker::start(&self.config.helper)?;
        self.await_init(spec, directory, &mut record, launcher, broker).await
    }

    /// Assembles the home under another name, so that an existing home is always complete.
    async fn prepare_home(&self, spec: &Spec, directory: &Directory, uid: Owner) -> Result<(), SandboxError> {
        let (directory, most) = (directory.clone(), spec.limits.disk_bytes.saturating_mul(2));
        let snapshot = spec.snapshot.as_ref().map(|id| self.directories.snapshot(id));
        blocking(move || {
            let host = SandboxError::host("create the sandbox's home");
            if directory.home().exists() {
                return Ok(tree::ensure_directory(&directory.home(), c"workspace", uid)?);
            }
            let draft = directory.home_draft();
            tree::remove(&draft)?;
            private(&draft, None).map_err(&host)?;
            if let Some(snapshot) = snapshot {
                Copy::new(uid, most).run(&snapshot, &draft)?;
            } else {
                own(&draft, uid).map_err(&host)?;
            }
            tree::ensure_directory(&draft, c"workspace", uid)?;
            fs::rename(&draft, directory.home()).map_err(host)
        })
        .await
    }

    fn plan(&self, spec: &Spec, directory: &Directory, record: &Record) -> Plan {
        Plan {
            bwrap: self.config.bwrap.clone(),
            home: directory.home(),
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

    /// Continues from bubblewrap's report about its child.
    async fn await_init(
        &self,
        spec: &Spec,
        directory: &Directory,
        record: &mut Record,
        launcher: &mut LauncherProcess,
        mut broker: Broker,
    ) -> Result<(), SandboxError> {
        let limit = self.config.start_timeout;
        let pid = match timeout(limit, launcher.child_pid()).await {
            Err(_) => return Err(SandboxError::Timeout("bubblewrap")),
            Ok(None) => return Err(start_error(directory)),
            Ok(Some(pid)) => pid,
        };
        let ended = |_| start_error(directory);
        let handle = identity::open(pid).map_err(ended)?;
        launcher.kill_on_abort(handle.try_clone().map_err(SandboxError::host("hold PID 1"))?);
        let identity = Identity::of(pid).map_err(ended)?;
        if identity.uid == 0 || record.uid.is_some_and(|uid| uid != identity.uid) {
            return Err(SandboxError::StartFailed("it would run as another user: this is a bug".into()));
        }
        if record.uid.is_none() {
            limit_processes(pid, spec.limits.pids);
        }
        record.identity = Some(identity);
        directory.save(record)?;
        // The gateway binds the injected ports before any program inside runs that could take them.
        let attached = match (broker.enter_network_of(&identity).await, handle.try_clone()) {
            (Ok(()), Ok(copy)) => self.attach(&spec.id, record, identity, copy, broker).await,
            (Err(error), _) => Err(error),
            (_, Err(error)) => Err(SandboxError::host("hold PID 1")(error)),
        };
        if let Err(error) = attached {
            return Err(if identity::has_exited(&handle) { start_error(directory) } else { error });
        }
        launcher.start_init().await;
        let directory = directory.clone();
        blocking(move || wait_for_init(pid, &handle, limit).unwrap_or_else(|| Err(start_error(&directory))))
            .await
    }

    /// Undoes a failed start. Files that existed before stay.
    async fn undo(&self, spec: &Spec, directory: &Directory, keep_files: bool) {
        let undone = if keep_files {
            match directory.load() {
                Ok(Some(record)) => self.end_processes(&spec.id, &record).await,
                other => other.map(drop),
            }
        } else {
            self.terminate(&spec.id).await
        };
        if let Err(error) = undone {
            tracing::error!(sandbox = %spec.id, %error, "could not undo a failed start completely");
        }
    }
}

/// The disk limit of this start. A sandbox that was stopped for its disk usage gets a little more than it uses, so
/// that somebody can remove files in it; beyond the grace it does not start at all. Files are only counted after
/// such a stop.
async fn allow_cleanup(directory: &Directory, limit: u64) -> Result<u64, SandboxError> {
    let Some(overuse) = directory.last_overuse() else { return Ok(limit) };
    if overuse.what != LimitExceeded::DISK {
        directory.clear_overuse();
        return Ok(limit);
    }
    let directory = directory.clone();
    blocking(move || {
        let most = limit.saturating_add(limit / 2);
        let size = match tree::measure(&directory.home(), most) {
            Ok(size) => size,
            Err(TreeError::TooLarge(_)) => return Err(SandboxError::OverDisk { limit, most }),
            Err(error) => return Err(error.into()),
        };
        if size.bytes <= limit {
            directory.clear_overuse();
            return Ok(limit);
        }
        let recorded = directory.record_overuse(&LimitExceeded { restarted: true, ..overuse });
        recorded.map_err(SandboxError::host("record why the sandbox was stopped"))?;
        Ok(size.bytes.saturating_add(CLEANUP_BYTES).min(most))
    })
    .await
}

/// Why it did not start, according to bubblewrap's output.
fn start_error(directory: &Directory) -> SandboxError {
    match directory.last_error_line() {
        None => SandboxError::InitExited,
        Some(text) if text.contains("namespace") || text.contains("uid map") => {
            tracing::warn!(%text, "bubblewrap could not create namespaces");
            SandboxError::NamespacesForbidden
        }
        Some(text) => SandboxError::StartFailed(text),
    }
}

/// Without root the user has other processes too, which a limit set earlier would count. Set on PID 1 in its user
/// namespace, it only counts the sandbox's processes, and all of them inherit it.
fn limit_processes(pid: i32, most: u64) {
    let Some(pid) = Pid::from_raw(pid) else { return };
    let most = most.min(rustix::process::getrlimit(Resource::Nproc).maximum.unwrap_or(u64::MAX));
    let limit = Rlimit { current: Some(most), maximum: Some(most) };
    if let Err(error) = rustix::process::prlimit(Some(pid), Resource::Nproc, limit) {
        tracing::warn!(kind = ?error.kind(), "could not set the limit of processes: the watcher counts them instead");
    }
}

/// Waits, blocking this thread, until PID 1 has replaced bubblewrap; `None` if it exited. It takes two or three
/// milliseconds, for which the runtime's timer is too coarse.
fn wait_for_init(pid: i32, handle: &OwnedFd, most: Duration) -> Option<Result<(), SandboxError>> {
    for _ in 0..most.as_micros() / CHECK_INTERVAL.as_micros() {
        if identity::wait(handle, CHECK_INTERVAL) {
            return None;
        }
        if became_init(pid) {
            return Some(Ok(()));
        }
    }
    Some(Err(SandboxError::Timeout("PID 1")))
}

/// The process is named after bubblewrap until it execs PID 1.
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
