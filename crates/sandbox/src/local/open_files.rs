//! What processes hold open and no folder shows: files without a name, and files that are only memory.

use std::collections::HashSet;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The magic number of a filesystem in memory.
const TMPFS: u64 = 0x0102_1994;
/// Where a sandbox has such filesystems that it may write to.
const IN_MEMORY: [&str; 3] = ["tmp", "dev/shm", "run"];

/// What files on a device take that were removed while open.
pub(super) fn nameless(pids: &[i32], device: u64) -> u64 {
    sum(pids, |_, found| found.dev() == device)
}

/// What files take that never had a name and no place but memory. Where one is mapped as well it counts twice, as its
/// pages do in every process that maps them.
pub(super) fn memory(pids: &[i32]) -> u64 {
    let is_memory = |path: PathBuf| path.as_os_str().as_encoded_bytes().starts_with(b"/memfd:");
    sum(pids, |descriptor, _| fs::read_link(descriptor).is_ok_and(is_memory))
}

/// What the filesystems in memory hold that a process can write to.
pub(super) fn tmpfs(pid: i32) -> u64 {
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    let used = |name: &str| {
        let found = rustix::fs::statfs(root.join(name)).ok()?;
        let in_memory = u64::try_from(found.f_type).is_ok_and(|kind| kind == TMPFS);
        let block = u64::try_from(found.f_bsize).unwrap_or_default();
        in_memory.then(|| found.f_blocks.saturating_sub(found.f_bfree).saturating_mul(block))
    };
    IN_MEMORY.into_iter().filter_map(used).sum()
}

/// Each thread may have descriptors of its own.
pub(super) fn threads(pid: i32) -> impl Iterator<Item = PathBuf> {
    entries(&PathBuf::from(format!("/proc/{pid}/task")))
}

fn sum(pids: &[i32], wanted: impl Fn(&Path, &Metadata) -> bool) -> u64 {
    let (mut seen, mut bytes) = (HashSet::new(), 0_u64);
    let threads = pids.iter().flat_map(|pid| threads(*pid));
    for descriptor in threads.flat_map(|thread| entries(&thread.join("fd"))) {
        let Ok(found) = fs::metadata(&descriptor) else { continue };
        if found.is_file()
            && found.nlink() == 0
            && wanted(&descriptor, &found)
            && seen.insert((found.dev(), found.ino()))
        {
            bytes = bytes.saturating_add(found.blocks().saturating_mul(512));
        }
    }
    bytes
}

/// None of what is gone meanwhile.
fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}
