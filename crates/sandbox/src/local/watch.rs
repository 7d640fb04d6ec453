//! Enforces limits that the host does not: the gateway measures what a sandbox uses and kills it when it exceeds a
//! limit. Between two checks it can use more, so these limits are called soft.
//!
//! Memory and processes are checked every second. So is the disk, by the usage of its file system; the files
//! themselves are only scanned when that requires it, in a separate task, because a scan of many files takes long:
//! see [`ScanSchedule`].

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
use super::disk::{DiskScan, FilesystemUsage, ScanSchedule};
use super::identity;
use super::netns::Broker;
use super::open_files;
use super::records::{Directory, LimitExceeded, MAX_LOG, Record};
use super::sockets;
use crate::tree::{self, Size, TreeError};

const TICK_INTERVAL: Duration = Duration::from_secs(1);
/// Terminals share one limit of the host, and no sandbox needs more of them.
const MAX_TERMINALS: usize = 128;
/// Descriptors are normally in flight only for a moment; if some are at this many checks in a row, they hide files.
const MAX_CHECKS_IN_FLIGHT: u32 = 120;

/// The capacity of a pipe, unless it was raised: the kernel gives each user 64 MiB in pipes and then next to
/// nothing.
const PIPE_CAPACITY: u64 = 64 * 1024;

/// The resource that was exceeded.
type Reason = &'static str;
type CheckFiles = fn(&WatchedSandbox) -> Result<Option<DiskScan>, Reason>;

/// The watcher tasks of a sandbox, which end on drop.
pub(crate) struct Watch {
    tasks: [JoinHandle<()>; 2],
    watched: Arc<WatchedSandbox>,
}

impl Watch {
    /// Bytes of memory and of files, as of the last check.
    pub(crate) fn last_usage(&self) -> (u64, u64) {
        (self.watched.memory.load(Ordering::Relaxed), self.watched.disk.load(Ordering::Relaxed))
    }

    pub(crate) fn has_exited(&self) -> bool {
        identity::has_exited(&self.watched.handle)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// How many sandboxes' files may be scanned at once: half of the cores, but at least two, so that one slow scan
/// does not block all others.
pub(crate) fn scan_permits() -> usize {
    std::thread::available_parallelism().map_or(2, |cores| (cores.get() / 2).max(2))
}

pub(crate) fn watch(watched: WatchedSandbox, scan_permits: Arc<Semaphore>) -> Watch {
    watch_with(watched, scan_permits, WatchedSandbox::check_resources, WatchedSandbox::check_files)
}

fn watch_with(
    watched: WatchedSandbox,
    scan_permits: Arc<Semaphore>,
    check_resources: fn(&WatchedSandbox) -> Option<Reason>,
    check_files: CheckFiles,
) -> Watch {
    let watched = Arc::new(watched);
    let files = watch_files(watched.clone(), scan_permits, check_files);
    let tasks = [tokio::spawn(watch_resources(watched.clone(), check_resources)), tokio::spawn(files)];
    Watch { tasks, watched }
}

async fn watch_resources(watched: Arc<WatchedSandbox>, check: fn(&WatchedSandbox) -> Option<Reason>) {
    watched.open_diag_socket().await;
    loop {
        tokio::time::sleep(TICK_INTERVAL).await;
        let found = check_on_thread(&watched, move |watched| check(watched).map_or(Ok(()), Err)).await;
        if found.is_none() {
            return;
        }
    }
}

async fn watch_files(watched: Arc<WatchedSandbox>, scan_permits: Arc<Semaphore>, check: CheckFiles) {
    let (clock, mut disk) = (Clock::system(), ScanSchedule::default());
    let most = watched.record.limits.disk_bytes;
    loop {
        tokio::time::sleep(TICK_INTERVAL).await;
        let Some(used) =
            check_on_thread(&watched, |watched| Ok(FilesystemUsage::of(&watched.directory.home()))).await
        else {
            return;
        };
        if !disk.is_due(used, most, clock.elapsed()) {
            continue;
        }
        let Ok(_permit) = scan_permits.acquire().await else { return };
        let began = clock.elapsed();
        let Some(scan) = check_on_thread(&watched, check).await else { return };
        disk.record_scan(scan, began, clock.elapsed());
    }
}

/// Runs one check on a blocking thread; `None` when the sandbox has ended.
async fn check_on_thread<T: Send + 'static>(
    watched: &Arc<WatchedSandbox>,
    check: impl FnOnce(&WatchedSandbox) -> Result<T, Reason> + Send + 'static,
) -> Option<T> {
    let watched = watched.clone();
    tokio::task::spawn_blocking(move || watched.enforce(check)).await.ok().flatten()
}

/// A sandbox under watch.
pub(crate) struct WatchedSandbox {
    directory: Directory,
    record: Record,
    handle: Arc<OwnedFd>,
    /// Whether a scan of its files has failed, which is logged once.
    scan_failed: AtomicBool,
    /// The number of consecutive checks at which descriptors were in flight.
    in_flight: AtomicU32,
    /// The helper program that opens the netlink socket for querying its sockets, and that socket, if it could be
    /// opened.
    helper: Option<PathBuf>,
    diag_socket: OnceLock<OwnedFd>,
    /// The results of the last checks.
    memory: AtomicU64,
    disk: AtomicU64,
}

impl WatchedSandbox {
    pub(crate) fn new(directory: Directory, record: Record, handle: Arc<OwnedFd>) -> Self {
        let (scan_failed, in_flight) = (AtomicBool::default(), AtomicU32::default());
        let (memory, disk) = (AtomicU64::default(), AtomicU64::default());
        Self {
            directory,
            record,
            handle,
            scan_failed,
            in_flight,
            helper: None,
            diag_socket: OnceLock::new(),
            memory,
            disk,
        }
    }

    pub(crate) fn with_helper(self, helper: &Path) -> Self {
        Self { helper: Some(helper.to_owned()), ..self }
    }

    /// Only a process in the sandbox's network namespace can open a socket that queries its sockets.
    async fn open_diag_socket(&self) {
        let (Some(helper), Some(identity)) = (&self.helper, self.record.identity) else { return };
        if self.record.group.has(Controller::Memory) {
            return;
        }
        let found = async {
            let mut broker = Broker::start(helper)?;
            broker.enter_network_of(&identity).await?;
            broker.diag_socket().await
        };
        match found.await {
            Ok(diag_socket) => drop(self.diag_socket.set(diag_socket)),
            Err(error) => {
                tracing::warn!(directory = %self.directory.0.display(), %error, "could not query the sockets of a sandbox: counting each as full");
            }
        }
    }

    /// Memory that belongs to no process: memfds, socket buffers (as reported by the kernel, otherwise the
    /// maximum), and pipes as if they were full.
    fn shared(&self, inside: &[i32]) -> u64 {
        let open_files::SharedMemory { bytes, pipes, sockets } = open_files::shared(inside);
        let measured = self.diag_socket.get().and_then(|diag_socket| sockets::memory(diag_socket).ok());
        let waiting = measured.unwrap_or(sockets * sockets::MAX_IN_FLIGHT);
        bytes.saturating_add(waiting).saturating_add(pipes * PIPE_CAPACITY)
    }

    /// Runs a check and kills the sandbox if it fails; `None` when the sandbox has ended.
    fn enforce<T>(&self, check: impl FnOnce(&Self) -> Result<T, Reason>) -> Option<T> {
        if identity::has_exited(&self.handle) {
            return None;
        }
        check(self)
            .inspect_err(|reason| {
                tracing::warn!(directory = %self.directory.0.display(), reason, "killing a sandbox that exceeded a limit");
                // Recorded before the kill, so that whoever notices the end finds the reason.
                let overuse = LimitExceeded { what: (*reason).to_owned(), restarted: false };
                if let Err(error) = self.directory.record_overuse(&overuse) {
                    tracing::warn!(directory = %self.directory.0.display(), %error, "could not record why a sandbox was killed");
                }
                identity::kill(&self.handle);
                let _ = self.record.group.freeze(false);
            })
            .ok()
    }

    /// Truncates its log and counts its terminals, and also memory and processes if no control group does.
    fn check_resources(&self) -> Option<Reason> {
        truncate_log(&self.directory);
        if self.record.identity.is_some_and(|identity| terminals(identity.pid) > MAX_TERMINALS) {
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
        let inside = identity::pids_in_namespace(identity.pid_namespace);
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

    /// Scans its files, including deleted ones that are still open.
    fn check_files(&self) -> Result<Option<DiskScan>, Reason> {
        let (home, most) = (self.directory.home(), self.record.limits.disk_bytes);
        // Taken before the scan: growth during the scan is then counted twice rather than missed.
        let used = FilesystemUsage::of(&home);
        let size = match tree::measure(&home, most) {
            Ok(size) => size,
            Err(TreeError::TooLarge(_)) => return Err(LimitExceeded::DISK),
            Err(TreeError::TooMany) => return Err("files"),
            Err(TreeError::TooDeep) => return Err("depth of directories"),
            // The gateway may be short of descriptors, or the sandbox is just ending. The next check shows.
            Err(TreeError::Io(kind)) => {
                if !identity::has_exited(&self.handle) && !self.scan_failed.swap(true, Ordering::SeqCst) {
                    tracing::warn!(directory = %self.directory.0.display(), ?kind, "could not scan the files of a sandbox");
                }
                return Ok(None);
            }
        };
        let unlinked = fs::metadata(&home)
            .map(|home| open_files::unlinked_files(&self.pids(), home.dev()))
            .unwrap_or_default();
        let bytes = size.bytes.saturating_add(unlinked.bytes);
        self.disk.store(bytes, Ordering::Relaxed);
        if bytes > most {
            return Err(LimitExceeded::DISK);
        }
        let incomplete = unlinked.in_flight > 0;
        if self.in_flight_too_long(incomplete) {
            Err("descriptors in flight")
        } else {
            Ok(Some(DiskScan { used, size: Size { bytes, ..size }, incomplete }))
        }
    }

    /// Whether descriptors have been in flight for too long. While the sandbox is paused, nobody can receive them.
    fn in_flight_too_long(&self, in_flight: bool) -> bool {
        if !in_flight {
            self.in_flight.store(0, Ordering::SeqCst);
            return false;
        }
        self.record.group.frozen() != Some(true)
            && self.in_flight.fetch_add(1, Ordering::SeqCst) >= MAX_CHECKS_IN_FLIGHT
    }

    fn pids(&self) -> Vec<i32> {
        let inside =
            || self.record.identity.map(|identity| identity::pids_in_namespace(identity.pid_namespace));
        self.record.group.pids().or_else(inside).unwrap_or_default()
    }
}

fn truncate_log(directory: &Directory) {
    if fs::metadata(directory.log()).is_ok_and(|log| log.len() > MAX_LOG)
        && let Ok(log) = fs::OpenOptions::new().write(true).open(directory.log())
    {
        let _ = log.set_len(0);
    }
}

/// Resident memory and number of threads of processes. Mapped files are excluded, because every process maps the
/// same ones; shared memory is included, or it would be a way around the limit.
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

/// The status of a process whose main thread has exited contains no memory.
fn resident_of_threads(pid: i32) -> Option<u64> {
    let mut statuses =
        open_files::threads(pid).map(|thread| fs::read_to_string(thread.join("status")).unwrap_or_default());
    statuses.find_map(|status| resident(&status))
}

/// The number of open terminals of a sandbox.
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
    fn watcher_counts_memory_processes_and_disk_without_cgroups() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory(dir.path().to_owned());
        fs::create_dir(directory.home()).unwrap();
        fs::write(directory.home().join("file"), vec![1; 100_000]).unwrap();
        let own = Identity::of(std::process::id().cast_signed()).unwrap();
        let of = |change: fn(&mut Limits)| {
            let mut limits = Limits { memory_bytes: u64::MAX, pids: u64::MAX, ..Limits::default() };
            change(&mut limits);
            let (group, injected) = (Group::default(), BTreeSet::new());
            let record = Record { version: 1, uid: None, group, identity: Some(own), injected, limits };
            let (directory, handle) = (directory.clone(), Arc::new(identity::open(own.pid).unwrap()));
            let watched = WatchedSandbox::new(directory, record, handle);
            watched.check_resources().or_else(|| watched.check_files().err())
        };
        assert_eq!(of(|_| {}), None);
        assert_eq!(of(|limits| limits.memory_bytes = 4096), Some("memory"));
        // The test runs on a thread next to the main one.
        assert_eq!(of(|limits| limits.pids = 1), Some("processes"));
        assert_eq!(of(|limits| limits.disk_bytes = 50_000), Some("disk"));
        // Files that cannot be scanned are no reason to kill the sandbox.
        fs::rename(directory.home(), dir.path().join("elsewhere")).unwrap();
        assert_eq!(of(|limits| limits.disk_bytes = 50_000), None);
        fs::create_dir_all(directory.home().join("d/".repeat(200))).unwrap();
        assert_eq!(of(|_| {}), Some("depth of directories"));
    }

    #[test]
    fn only_descriptors_that_stay_in_flight_exceed_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let own = Identity::of(std::process::id().cast_signed()).unwrap();
        let (group, injected, limits) = (Group::default(), BTreeSet::new(), Limits::default());
        let record = Record { version: 1, uid: None, group, identity: Some(own), injected, limits };
        let handle = Arc::new(identity::open(own.pid).unwrap());
        let watched = WatchedSandbox::new(Directory(dir.path().to_owned()), record, handle);
        assert!(!(0..MAX_CHECKS_IN_FLIGHT).any(|_| watched.in_flight_too_long(true)));
        assert!(!watched.in_flight_too_long(false));
        assert!(!(0..MAX_CHECKS_IN_FLIGHT).any(|_| watched.in_flight_too_long(true)));
        assert!(watched.in_flight_too_long(true));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn stuck_file_scan_does_not_block_the_other_check() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let own = Identity::of(child.id().cast_signed()).unwrap();
        let handle = Arc::new(identity::open(own.pid).unwrap());
        let (group, injected, limits) = (Group::default(), BTreeSet::new(), Limits::default());
        let record = Record { version: 1, uid: None, group, identity: Some(own), injected, limits };
        let directory = Directory(dir.path().to_owned());
        let watched = WatchedSandbox::new(directory, record, handle.clone());
        // Only ends with the process, so only the other check can end that.
        let stuck: CheckFiles = |watched| {
            identity::wait(&watched.handle, Duration::from_mins(1));
            Ok(None)
        };
        let _watch = watch_with(watched, Arc::new(Semaphore::new(1)), |_| Some("memory"), stuck);
        let ended = tokio::task::spawn_blocking(move || identity::wait(&handle, Duration::from_secs(30)));
        let ended = ended.await.unwrap();
        let _ = child.kill();
        child.wait().unwrap();
        assert!(ended);
    }
}
