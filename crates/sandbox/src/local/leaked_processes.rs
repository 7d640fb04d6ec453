//! Kills processes that a crash in the middle of a start leaves behind, before they are on record.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::thread::sleep;
use std::time::Duration;

use super::identity;
use super::records::Directory;
use crate::error::SandboxError;

const MAX_TRIES: u32 = 500;
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Kills all processes of a sandbox's user, blocking this thread.
pub(super) fn kill_user(uid: u32) -> Result<(), SandboxError> {
    kill_all(|pid| uid != 0 && identity::owner(pid) == Some(uid))
}

/// Kills a launcher, or the bubblewrap that it became, if the gateway was killed before it knew PID 1: bubblewrap's
/// child would wait for ever, or run. Their stderr identifies them: it is the sandbox's log, which nobody else
/// writes to.
pub(super) fn kill_unrecorded(directory: &Directory) -> Result<(), SandboxError> {
    let Ok(log) = fs::metadata(directory.log()) else { return Ok(()) };
    let stderr_of = |pid: i32| fs::metadata(format!("/proc/{pid}/fd/2")).ok();
    kill_all(|pid| stderr_of(pid).is_some_and(|to| (to.dev(), to.ino()) == (log.dev(), log.ino())))
}

/// Repeats until none is left, because each may start others meanwhile. A process that is just exiting no longer
/// matches but is not gone yet.
fn kill_all(matches: impl Fn(i32) -> bool) -> Result<(), SandboxError> {
    let mut killed = Vec::new();
    for _ in 0..MAX_TRIES {
        for pid in identity::all_pids() {
            // Check again with the pidfd open, because the pid may have been reused.
            if matches(pid)
                && let Ok(handle) = identity::open(pid)
                && matches(pid)
                && !identity::has_exited(&handle)
            {
                identity::kill(&handle);
                killed.push(handle);
            }
        }
        killed.retain(|handle| !identity::has_exited(handle));
        if killed.is_empty() {
            return Ok(());
        }
        sleep(RETRY_INTERVAL);
    }
    Err(SandboxError::Timeout("stopping its processes"))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn only_processes_that_log_there_are_killed() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory(dir.path().to_owned());
        kill_unrecorded(&directory).unwrap();
        let sleeper = |errors: Stdio| Command::new("sleep").arg("600").stderr(errors).spawn().unwrap();
        let mut theirs = sleeper(directory.open_log().unwrap().into());
        let other = fs::File::create(dir.path().join("other")).unwrap();
        let mut others = sleeper(other.into());
        kill_unrecorded(&directory).unwrap();
        let ended = theirs.wait().unwrap();
        assert!(!ended.success() && others.try_wait().unwrap().is_none());
        others.kill().unwrap();
        others.wait().unwrap();
    }
}
