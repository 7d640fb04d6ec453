//! Limits that the host does not hold are held by looking: every second the gateway counts what a sandbox takes and
//! ends it when that is too much. Between two looks it can take more, so these limits are called soft.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::time::Duration;

use clock::Clock;
use tokio::task::JoinHandle;

use super::cgroup::Controller;
use super::identity;
use super::records::{Folder, MAX_LOG, Record};
use crate::tree;

const TICK: Duration = Duration::from_secs(1);
/// A look at many files may take long; it then takes at most this share of one core.
const REST: u32 = 9;

/// A watcher that ends when it is dropped.
pub(crate) struct Watch(JoinHandle<()>);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub(crate) fn watch(folder: Folder, record: Record, handle: Arc<OwnedFd>) -> Watch {
    let clock = Clock::system();
    Watch(tokio::spawn(async move {
        let mut pause = TICK;
        loop {
            tokio::time::sleep(pause).await;
            let (folder, record, handle) = (folder.clone(), record.clone(), handle.clone());
            let before = clock.elapsed();
            let done = tokio::task::spawn_blocking(move || look(&folder, &record, &handle)).await;
            if !matches!(done, Ok(true)) {
                return;
            }
            pause = TICK.max(clock.elapsed().saturating_sub(before) * REST);
        }
    }))
}

/// One look; says whether there is anything left to look at.
fn look(folder: &Folder, record: &Record, handle: &OwnedFd) -> bool {
    if identity::ended(handle) {
        return false;
    }
    cut_log(folder);
    let Some(reason) = excess(folder, record) else { return true };
    tracing::warn!(folder = %folder.0.display(), reason, "a sandbox took too much and is ended");
    identity::kill(handle);
    let _ = record.group.freeze(false);
    false
}

fn cut_log(folder: &Folder) {
    if fs::metadata(folder.log()).is_ok_and(|log| log.len() > MAX_LOG)
        && let Ok(log) = fs::OpenOptions::new().write(true).open(folder.log())
    {
        let _ = log.set_len(0);
    }
}

fn excess(folder: &Folder, record: &Record) -> Option<&'static str> {
    let limits = &record.limits;
    if tree::measure(&folder.home(), limits.disk_bytes).is_err() {
        return Some("disk");
    }
    let counted = [Controller::Memory, Controller::Pids];
    if counted.iter().all(|controller| record.group.has(*controller)) {
        return None;
    }
    let (memory, pids) = usage(record.identity?.pid_namespace);
    if !record.group.has(Controller::Memory) && memory > limits.memory_bytes {
        return Some("memory");
    }
    (!record.group.has(Controller::Pids) && pids > limits.pids).then_some("processes")
}

/// Resident memory and number of all threads in a pid namespace. Mapped files are left out, as every process maps
/// the same ones; shared memory is not, or it would be the way around the limit.
fn usage(namespace: u64) -> (u64, u64) {
    let (mut memory, mut pids) = (0, 0);
    for pid in identity::all_pids() {
        if !fs::metadata(format!("/proc/{pid}/ns/pid")).is_ok_and(|found| found.ino() == namespace) {
            continue;
        }
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            line.split_ascii_whitespace().next().and_then(|word| word.parse::<u64>().ok()).unwrap_or_default()
        };
        memory += (field("RssAnon:") + field("RssShmem:")) * 1024;
        pids += field("Threads:").max(1);
    }
    (memory, pids)
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
            excess(&folder, &record)
        };
        assert_eq!(of(|_| {}), None);
        assert_eq!(of(|limits| limits.memory_bytes = 4096), Some("memory"));
        // The test runs in a thread beside the main one.
        assert_eq!(of(|limits| limits.pids = 1), Some("processes"));
        assert_eq!(of(|limits| limits.disk_bytes = 50_000), Some("disk"));
    }
}
