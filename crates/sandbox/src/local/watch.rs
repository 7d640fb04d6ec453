//! Limits that the host does not hold are held by looking: the gateway counts what a sandbox takes and ends it when
//! that is too much. Between two looks it can take more, so these limits are called soft.
//!
//! Memory and processes are looked at every second, files beside that: a look at many of them takes its time.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clock::Clock;
use tokio::task::JoinHandle;

use super::cgroup::Controller;
use super::identity;
use super::open_files;
use super::records::{Folder, MAX_LOG, Record};
use crate::tree::{self, TreeError};

const TICK: Duration = Duration::from_secs(1);
/// A look at many files may take long; it then takes at most this share of one core.
const REST: u32 = 9;

/// Terminals come from one store of the host's, and no sandbox needs more of them.
const MOST_TERMINALS: usize = 128;

/// One kind of look, which says what there is too much of, and how long to rest after it.
type Look = (fn(&Watched) -> Option<&'static str>, u32);

/// Watchers that end when they are dropped.
pub(crate) struct Watch(Vec<JoinHandle<()>>);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

pub(crate) fn watch(folder: Folder, record: Record, handle: Arc<OwnedFd>) -> Watch {
    let watched = Watched { folder, record, handle, unseen: AtomicBool::default() };
    watch_by(watched, [(Watched::taken, 0), (Watched::stored, REST)])
}

fn watch_by(watched: Watched, looks: [Look; 2]) -> Watch {
    let watched = Arc::new(watched);
    Watch(looks.map(|look| tokio::spawn(repeat(watched.clone(), look))).into())
}

async fn repeat(watched: Arc<Watched>, (look, rest): Look) {
    let clock = Clock::system();
    let mut pause = TICK;
    loop {
        tokio::time::sleep(pause).await;
        let (watched, before) = (watched.clone(), clock.elapsed());
        let done = tokio::task::spawn_blocking(move || watched.goes_on_after(look)).await;
        if !matches!(done, Ok(true)) {
            return;
        }
        pause = TICK.max(clock.elapsed().saturating_sub(before) * rest);
    }
}

/// What is watched.
struct Watched {
    folder: Folder,
    record: Record,
    handle: Arc<OwnedFd>,
    /// Whether its files could not be looked at, which is said once.
    unseen: AtomicBool,
}

impl Watched {
    /// One look; says whether there is anything left to look at.
    fn goes_on_after(&self, look: fn(&Self) -> Option<&'static str>) -> bool {
        if identity::ended(&self.handle) {
            return false;
        }
        let Some(reason) = look(self) else { return true };
        tracing::warn!(folder = %self.folder.0.display(), reason, "a sandbox took too much and is ended");
        identity::kill(&self.handle);
        let _ = self.record.group.freeze(false);
        false
    }

    /// Its log is cut, its terminals are counted, and memory and processes where no control group does.
    fn taken(&self) -> Option<&'static str> {
        cut_log(&self.folder);
        if self.record.identity.is_some_and(|identity| terminals(identity.pid) > MOST_TERMINALS) {
            return Some("terminals");
        }
        let (limits, group) = (&self.record.limits, &self.record.group);
        if [Controller::Memory, Controller::Pids].iter().all(|controller| group.has(*controller)) {
            return None;
        }
        let identity = self.record.identity?;
        let inside = identity::inside(identity.pid_namespace);
        let (memory, pids) = usage(&inside);
        let memory = memory + open_files::memory(&inside) + open_files::tmpfs(identity.pid);
        if !group.has(Controller::Memory) && memory > limits.memory_bytes {
            return Some("memory");
        }
        (!group.has(Controller::Pids) && pids > limits.pids).then_some("processes")
    }

    /// Its files, also those that have no name any more.
    fn stored(&self) -> Option<&'static str> {
        let (home, most) = (self.folder.home(), self.record.limits.disk_bytes);
        match tree::measure(&home, most) {
            Ok(bytes) => {
                let nameless =
                    fs::metadata(&home).map_or(0, |home| open_files::nameless(&self.pids(), home.dev()));
                (bytes.saturating_add(nameless) > most).then_some("disk")
            }
            Err(TreeError::TooLarge(_)) => Some("disk"),
            Err(TreeError::TooMany) => Some("files"),
            Err(TreeError::TooDeep) => Some("depth of folders"),
            // The gateway may be short of descriptors, or the sandbox just ends. The next look tells.
            Err(TreeError::Io(kind)) => {
                if !identity::ended(&self.handle) && !self.unseen.swap(true, Ordering::SeqCst) {
                    tracing::warn!(folder = %self.folder.0.display(), ?kind, "a sandbox's files cannot be counted now");
                }
                None
            }
        }
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
            let watched = Watched { folder, record, handle, unseen: AtomicBool::default() };
            watched.taken().or_else(|| watched.stored())
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

    #[tokio::test(flavor = "multi_thread")]
    async fn a_look_at_files_that_does_not_end_holds_up_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let own = Identity::of(child.id().cast_signed()).unwrap();
        let handle = Arc::new(identity::open(own.pid).unwrap());
        let (group, injected, limits) = (Group::default(), BTreeSet::new(), Limits::default());
        let record = Record { version: 1, uid: None, group, identity: Some(own), injected, limits };
        let folder = Folder(dir.path().to_owned());
        let watched = Watched { folder, record, handle: handle.clone(), unseen: AtomicBool::default() };
        // Ends with the process, so only the other look can end that.
        let stuck: Look = (
            |watched| {
                identity::wait(&watched.handle, Duration::from_mins(1));
                None
            },
            REST,
        );
        let _watch = watch_by(watched, [stuck, (|_| Some("memory"), 0)]);
        let ended = tokio::task::spawn_blocking(move || identity::wait(&handle, Duration::from_secs(30)));
        let ended = ended.await.unwrap();
        let _ = child.kill();
        child.wait().unwrap();
        assert!(ended);
    }
}
