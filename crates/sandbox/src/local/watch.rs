//! Limits that the host does not hold are held by looking: the gateway counts what a sandbox takes and ends it when
//! that is too much. Between two looks it can take more, so these limits are called soft.
//!
//! Memory and processes are looked at every second. So is the disk, by what its file system holds; the files themselves
//! are looked at when that says so, beside it, as a look at many of them takes its time: see [`Disk`].

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use clock::Clock;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::cgroup::Controller;
use super::disk::{Disk, Seen, Used};
use super::identity;
use super::netns::Broker;
use super::open_files;
use super::records::{Folder, MAX_LOG, Overuse, Record};
use super::sockets;
use crate::tree::{self, Size, TreeError};

const TICK: Duration = Duration::from_secs(1);
/// Terminals come from one store of the host's, and no sandbox needs more of them.
const MOST_TERMINALS: usize = 128;
/// Descriptors are on their way for a moment; where some are at every one of so many looks, files are hidden there.
const MOST_IN_FLIGHT: u32 = 120;

/// What a pipe holds, unless somebody asked for more: the kernel gives each user 64 MiB in pipes and then next to nothing.
const PIPE: u64 = 64 * 1024;

/// What there is too much of.
type Reason = &'static str;
type LookAtFiles = fn(&Watched) -> Result<Option<Seen>, Reason>;

/// Watchers that end when they are dropped.
pub(crate) struct Watch {
    tasks: [JoinHandle<()>; 2],
    watched: Arc<Watched>,
}

impl Watch {
    /// Bytes of memory and of files, as they were seen last.
    pub(crate) fn seen(&self) -> (u64, u64) {
        (self.watched.memory.load(Ordering::Relaxed), self.watched.disk.load(Ordering::Relaxed))
    }

    pub(crate) fn is_over(&self) -> bool {
        identity::ended(&self.watched.handle)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// How many sandboxes' files may be looked at at a time: on half of the cores, and one alone holds up no other.
pub(crate) fn turns() -> usize {
    std::thread::available_parallelism().map_or(2, |cores| (cores.get() / 2).max(2))
}

pub(crate) fn watch(watched: Watched, turns: Arc<Semaphore>) -> Watch {
    watch_by(watched, turns, Watched::taken, Watched::stored)
}

fn watch_by(
    watched: Watched,
    turns: Arc<Semaphore>,
    taken: fn(&Watched) -> Option<Reason>,
    stored: LookAtFiles,
) -> Watch {
    let watched = Arc::new(watched);
    let files = keep_files(watched.clone(), turns, stored);
    let tasks = [tokio::spawn(keep_memory(watched.clone(), taken)), tokio::spawn(files)];
    Watch { tasks, watched }
}

async fn keep_memory(watched: Arc<Watched>, look: fn(&Watched) -> Option<Reason>) {
    watched.find_asker().await;
    loop {
        tokio::time::sleep(TICK).await;
        let found = on_thread(&watched, move |watched| look(watched).map_or(Ok(()), Err)).await;
        if found.is_none() {
            return;
        }
    }
}

async fn keep_files(watched: Arc<Watched>, turns: Arc<Semaphore>, look: LookAtFiles) {
    let (clock, mut disk) = (Clock::system(), Disk::default());
    let most = watched.record.limits.disk_bytes;
    loop {
        tokio::time::sleep(TICK).await;
        let Some(used) = on_thread(&watched, |watched| Ok(Used::of(&watched.folder.home()))).await else {
            return;
        };
        if !disk.is_due(used, most, clock.elapsed()) {
            continue;
        }
        let Ok(_turn) = turns.acquire().await else { return };
        let began = clock.elapsed();
        let Some(seen) = on_thread(&watched, look).await else { return };
        disk.looked(seen, began, clock.elapsed());
    }
}

/// One look; `None` when there is nothing left to look at.
async fn on_thread<T: Send + 'static>(
    watched: &Arc<Watched>,
    look: impl FnOnce(&Watched) -> Result<T, Reason> + Send + 'static,
) -> Option<T> {
    let watched = watched.clone();
    tokio::task::spawn_blocking(move || watched.unless_over(look)).await.ok().flatten()
}

/// What is watched.
pub(crate) struct Watched {
    folder: Folder,
    record: Record,
    handle: Arc<OwnedFd>,
    /// Whether its files could not be looked at, which is said once.
    unseen: AtomicBool,
    /// At how many looks in a row descriptors were in flight.
    in_flight: AtomicU32,
    /// By which program the kernel is asked about its sockets, and over which socket, if it could be made.
    helper: Option<PathBuf>,
    asker: OnceLock<OwnedFd>,
    /// What the last looks found, for whoever counts.
    memory: AtomicU64,
    disk: AtomicU64,
}

impl Watched {
    pub(crate) fn new(folder: Folder, record: Record, handle: Arc<OwnedFd>) -> Self {
        let (unseen, in_flight) = (AtomicBool::default(), AtomicU32::default());
        let (memory, disk) = (AtomicU64::default(), AtomicU64::default());
        Self { folder, record, handle, unseen, in_flight, helper: None, asker: OnceLock::new(), memory, disk }
    }

    pub(crate) fn asking_by(self, helper: &Path) -> Self {
        Self { helper: Some(helper.to_owned()), ..self }
    }

    /// Only a process in the sandbox's network can make the socket that asks about its sockets.
    async fn find_asker(&self) {
        let (Some(helper), Some(identity)) = (&self.helper, self.record.identity) else { return };
        if self.record.group.has(Controller::Memory) {
            return;
        }
        let found = async {
            let mut broker = Broker::start(helper)?;
            broker.enter_network_of(&identity).await?;
            broker.asker().await
        };
        match found.await {
            Ok(asker) => drop(self.asker.set(asker)),
            Err(error) => {
                tracing::warn!(folder = %self.folder.0.display(), %error, "sockets are only numbered");
            }
        }
    }

    /// Memory that belongs to no process: files in memory, what waits in sockets, as the kernel tells it or else as much as
    /// can, and pipes as if they were full.
    fn shared(&self, inside: &[i32]) -> u64 {
        let open_files::Shared { bytes, pipes, sockets } = open_files::shared(inside);
        let told = self.asker.get().and_then(|asker| sockets::memory(asker).ok());
        let waiting = told.unwrap_or(sockets * sockets::MOST_SENT);
        bytes.saturating_add(waiting).saturating_add(pipes * PIPE)
    }

    /// What a look finds, unless there is nothing left to look at afterwards.
    fn unless_over<T>(&self, look: impl FnOnce(&Self) -> Result<T, Reason>) -> Option<T> {
        if identity::ended(&self.handle) {
            return None;
        }
        look(self)
            .inspect_err(|reason| {
                tracing::warn!(folder = %self.folder.0.display(), reason, "a sandbox took too much and is ended");
                // Before the end, so that whoever learns of the end finds the reason.
                let overuse = Overuse { what: (*reason).to_owned(), restarted: false };
                if let Err(error) = self.folder.note_overuse(&overuse) {
                    tracing::warn!(folder = %self.folder.0.display(), %error, "the reason could not be noted");
                }
                identity::kill(&self.handle);
                let _ = self.record.group.freeze(false);
            })
            .ok()
    }

    /// Its log is cut, its terminals are counted, and memory and processes where no control group does.
    fn taken(&self) -> Option<Reason> {
        cut_log(&self.folder);
        if self.record.identity.is_some_and(|identity| terminals(identity.pid) > MOST_TERMINALS) {
            return Some("terminals");
        }
        let (limits, group) = (&self.record.limits, &self.record.group);
        if let Some(memory) = group.memory() {
            self.memory.store(memory, Ordering::Relaxed);
        }
        if [Controller::Memory, Controller::Pids].iter().all(|controller| group.has(*controller)) {
            return None;
        }
        let identity = self.record.identity?;
        let inside = identity::inside(identity.pid_namespace);
        let (memory, pids) = usage(&inside);
        let memory =
            memory.saturating_add(self.shared(&inside)).saturating_add(open_files::tmpfs(identity.pid));
        if !group.has(Controller::Memory) {
            self.memory.store(memory, Ordering::Relaxed);
            if memory > limits.memory_bytes {
                return Some("memory");
            }
        }
        (!group.has(Controller::Pids) && pids > limits.pids).then_some("processes")
    }

    /// Its files, also those that have no name any more.
    fn stored(&self) -> Result<Option<Seen>, Reason> {
        let (home, most) = (self.folder.home(), self.record.limits.disk_bytes);
        // First of all: what comes while this looks is then seen twice, and not never.
        let used = Used::of(&home);
        let size = match tree::measure(&home, most) {
            Ok(size) => size,
            Err(TreeError::TooLarge(_)) => return Err(Overuse::DISK),
            Err(TreeError::TooMany) => return Err("files"),
            Err(TreeError::TooDeep) => return Err("depth of folders"),
            // The gateway may be short of descriptors, or the sandbox just ends. The next look tells.
            Err(TreeError::Io(kind)) => {
                if !identity::ended(&self.handle) && !self.unseen.swap(true, Ordering::SeqCst) {
                    tracing::warn!(folder = %self.folder.0.display(), ?kind, "a sandbox's files cannot be counted now");
                }
                return Ok(None);
            }
        };
        let nameless = fs::metadata(&home)
            .map(|home| open_files::nameless(&self.pids(), home.dev()))
            .unwrap_or_default();
        let bytes = size.bytes.saturating_add(nameless.bytes);
        self.disk.store(bytes, Ordering::Relaxed);
        if bytes > most {
            return Err(Overuse::DISK);
        }
        let hidden = nameless.in_flight > 0;
        if self.hides(hidden) {
            Err("descriptors in flight")
        } else {
            Ok(Some(Seen { used, size: Size { bytes, ..size }, hidden }))
        }
    }

    /// Whether descriptors have been in flight for too long. Nobody takes them while the sandbox is paused.
    fn hides(&self, in_flight: bool) -> bool {
        if !in_flight {
            self.in_flight.store(0, Ordering::SeqCst);
            return false;
        }
        self.record.group.frozen() != Some(true)
            && self.in_flight.fetch_add(1, Ordering::SeqCst) >= MOST_IN_FLIGHT
    }

    fn pids(&self) -> Vec<i32> {
        let inside = || self.record.identity.map(|identity| identity::inside(identity.pid_namespace));
        self.record.group.pids().or_else(inside).unwrap_or_default()
    }
}

fn cut_log(folder: &Folder) {
    if fs::metadata(folder.log()).is_ok_and(|log| log.len() > MAX_LOG)
        && let Ok(log) = fs::OpenOptions::new().write(true).open(folder.log())
    {
        let _ = log.set_len(0);
    }
}

/// Resident memory and number of all threads of processes. Mapped files are left out, as every process maps the same
/// ones; shared memory is not, or it would be the way around the limit.
fn usage(pids: &[i32]) -> (u64, u64) {
    let (mut memory, mut threads) = (0, 0);
    for pid in pids {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        threads += field(&status, "Threads:").unwrap_or_default().max(1);
        memory += resident(&status).or_else(|| resident_of_threads(*pid)).unwrap_or_default();
    }
    (memory, threads)
}

fn resident(status: &str) -> Option<u64> {
    Some((field(status, "RssAnon:")? + field(status, "RssShmem:")?) * 1024)
}

/// A process whose first thread has ended has no memory by its own name.
fn resident_of_threads(pid: i32) -> Option<u64> {
    let mut statuses =
        open_files::threads(pid).map(|thread| fs::read_to_string(thread.join("status")).unwrap_or_default());
    statuses.find_map(|status| resident(&status))
}

/// Terminals that a sandbox has open.
fn terminals(pid: i32) -> usize {
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    fs::read_dir(root.join("dev/pts")).map_or(0, Iterator::count)
}

fn field(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::cgroup::Group;
    use super::super::identity::Identity;
    use super::*;
    use crate::spec::Limits;

    #[test]
    fn where_nothing_else_holds_them_memory_processes_and_disk_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder(dir.path().to_owned());
        fs::create_dir(folder.home()).unwrap();
        fs::write(folder.home().join("file"), vec![1; 100_000]).unwrap();
        let own = Identity::of(std::process::id().cast_signed()).unwrap();
        let of = |change: fn(&mut Limits)| {
            let mut limits = Limits { memory_bytes: u64::MAX, pids: u64::MAX, ..Limits::default() };
            change(&mut limits);
            let (group, injected) = (Group::default(), BTreeSet::new());
            let record = Record { version: 1, uid: None, group, identity: Some(own), injected, limits };
            let (folder, handle) = (folder.clone(), Arc::new(identity::open(own.pid).unwrap()));
            let watched = Watched::new(folder, record, handle);
            watched.taken().or_else(|| watched.stored().err())
        };
        assert_eq!(of(|_| {}), None);
        assert_eq!(of(|limits| limits.memory_bytes = 4096), Some("memory"));
        // The test runs in a thread beside the main one.
        assert_eq!(of(|limits| limits.pids = 1), Some("processes"));
        assert_eq!(of(|limits| limits.disk_bytes = 50_000), Some("disk"));
        // What cannot be looked at is no reason to end anything.
        fs::rename(folder.home(), dir.path().join("elsewhere")).unwrap();
        assert_eq!(of(|limits| limits.disk_bytes = 50_000), None);
        fs::create_dir_all(folder.home().join("d/".repeat(200))).unwrap();
        assert_eq!(of(|_| {}), Some("depth of folders"));
    }

    #[test]
    fn descriptors_that_are_always_in_flight_end_it_and_those_that_arrive_do_not() {
        let dir = tempfile::tempdir().unwrap();
        let own = Identity::of(std::process::id().cast_signed()).unwrap();
        let (group, injected, limits) = (Group::default(), BTreeSet::new(), Limits::default());
        let record = Record { version: 1, uid: None, group, identity: Some(own), injected, limits };
        let handle = Arc::new(identity::open(own.pid).unwrap());
        let watched = Watched::new(Folder(dir.path().to_owned()), record, handle);
        assert!(!(0..MOST_IN_FLIGHT).any(|_| watched.hides(true)));
        assert!(!watched.hides(false));
        assert!(!(0..MOST_IN_FLIGHT).any(|_| watched.hides(true)));
        assert!(watched.hides(true));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_look_at_files_that_does_not_end_holds_up_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let own = Identity::of(child.id().cast_signed()).unwrap();
        let handle = Arc::new(identity::open(own.pid).unwrap());
        let (group, injected, limits) = (Group::default(), BTreeSet::new(), Limits::default());
        let record = Record { version: 1, uid: None, group, identity: Some(own), injected, limits };
        let folder = Folder(dir.path().to_owned());
        let watched = Watched::new(folder, record, handle.clone());
        // Ends with the process, so only the other look can end that.
        let stuck: LookAtFiles = |watched| {
            identity::wait(&watched.handle, Duration::from_mins(1));
            Ok(None)
        };
        let _watch = watch_by(watched, Arc::new(Semaphore::new(1)), |_| Some("memory"), stuck);
        let ended = tokio::task::spawn_blocking(move || identity::wait(&handle, Duration::from_secs(30)));
        let ended = ended.await.unwrap();
        let _ = child.kill();
        child.wait().unwrap();
        assert!(ended);
    }
}
