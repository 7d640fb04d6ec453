//! Finds sandboxes that run although their data directory was deleted, so that no record leads to them. The kernel
//! still knows them: a PID 1 whose home is mounted from a deleted directory of a provider.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{identity, leaked_processes};
use crate::error::SandboxError;

/// Path of the home directory inside the sandbox.
const HOME: &str = "/home/user";
/// The suffix that the kernel appends to the path of a mounted directory that was removed.
const DELETED_SUFFIX: &str = "//deleted";
const CGROUP_ROOT: &str = "/sys/fs/cgroup";
/// Part of the names of our control groups.
const GROUP_PREFIX: &str = "/proliferate-";
/// The lowest user id that can belong to a sandbox.
const FIRST_UID: u32 = 65_536;
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// A sandbox on this host whose data directory is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeakedSandbox {
    /// The pid of its PID 1 on the host.
    pub pid: i32,
    pub uid: u32,
    /// The former directory of its home, relative to its file system.
    pub home: PathBuf,
}

/// Finds all leaked sandboxes that this user can see.
pub fn find_leaked_sandboxes() -> Vec<LeakedSandbox> {
    identity::all_pids().into_iter().filter_map(LeakedSandbox::at).collect()
}

impl LeakedSandbox {
    fn at(pid: i32) -> Option<Self> {
        let directory = PathBuf::from(format!("/proc/{pid}"));
        let status = fs::read_to_string(directory.join("status")).ok()?;
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
        let numbers: Vec<_> = numbers.split_ascii_whitespace().collect();
        if numbers.len() < 2 || numbers.last() != Some(&"1") {
            return None;
        }
        let mounts = fs::read_to_string(directory.join("mountinfo")).ok()?;
        Some(Self { pid, uid: identity::owner(pid)?, home: deleted_home(&mounts)? })
    }

    /// Kills all its processes and removes its control groups, blocking this thread.
    pub fn end(&self) -> Result<(), SandboxError> {
        let Ok(handle) = identity::open(self.pid) else { return Ok(()) };
        // Check again with the pidfd open, because the pid may have been reused.
        if Self::at(self.pid).as_ref() != Some(self) {
            return Ok(());
        }
        let groups = groups(self.pid);
        identity::kill(&handle);
        for group in &groups {
            // A frozen process dies when it is thawed.
            let _ = fs::write(group.join("freezer.state"), "THAWED");
            let _ = fs::write(group.join("cgroup.freeze"), "0");
        }
        if !identity::wait(&handle, KILL_TIMEOUT) {
            return Err(SandboxError::Timeout("stopping its processes"));
        }
        if self.uid >= FIRST_UID {
            leaked_processes::kill_user(self.uid)?;
        }
        for group in groups {
            let _ = fs::remove_dir(group);
        }
        Ok(())
    }
}

/// The directory that is mounted as the home, if it belonged to a sandbox and was removed.
fn deleted_home(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(3);
        let (root, place) = (fields.next()?, fields.next()?);
        let path = Path::new(root.strip_suffix(DELETED_SUFFIX)?);
        let of_provider = path.parent()?.parent()?.ends_with("sandboxes") && path.ends_with("home");
        (place == HOME && of_provider).then(|| path.to_owned())
    })
}

/// The control groups of a process that belong to us, in any hierarchy.
fn groups(pid: i32) -> Vec<PathBuf> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let paths =
        text.lines().filter_map(|line| line.splitn(3, ':').nth(2)).filter(|path| path.contains(GROUP_PREFIX));
    let tops = || {
        let below = fs::read_dir(CGROUP_ROOT).into_iter().flatten().flatten().map(|entry| entry.path());
        below.chain([PathBuf::from(CGROUP_ROOT)])
    };
    let all = paths.flat_map(|path| tops().map(move |top| top.join(path.trim_start_matches('/'))));
    all.filter(|group| group.is_dir()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_deleted_home_of_a_sandbox_counts() {
        let line = |root: &str, place: &str| {
            format!("1 0 254:0 / / rw - ext4 x rw\n36 35 254:0 {root} {place} rw - ext4 x rw")
        };
        let found = deleted_home(&line("/srv/data/sandboxes/a1/home//deleted", HOME));
        assert_eq!(found, Some(PathBuf::from("/srv/data/sandboxes/a1/home")));
        for (root, place) in [
            ("/srv/data/sandboxes/a1/home", HOME),
            ("/srv/data/sandboxes/a1/home//deleted", "/home/other"),
            ("/srv/data/boxes/a1/home//deleted", HOME),
            ("/home//deleted", HOME),
        ] {
            assert_eq!(deleted_home(&line(root, place)), None, "{root}");
        }
    }
}
