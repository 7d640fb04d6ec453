//! What a crash in the middle of a start leaves: processes of which no record tells yet.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::thread::sleep;
use std::time::Duration;

use super::identity;
use super::records::Folder;
use crate::error::SandboxError;

const TRIES: u32 = 500;
const STEP: Duration = Duration::from_millis(10);

/// Ends every process of a sandbox's own user, blocking this thread.
pub(super) fn end_user(uid: u32) -> Result<(), SandboxError> {
    end_all(|pid| uid != 0 && identity::owner(pid) == Some(uid))
}

/// Ends a launcher, and the bubblewrap that it became, whose gateway was killed before it knew PID 1: bubblewrap's child
/// would wait for ever, or run. They are known by where their errors go, which is the sandbox's log, and nobody else's.
pub(super) fn end_unknown(folder: &Folder) -> Result<(), SandboxError> {
    let Ok(log) = fs::metadata(folder.log()) else { return Ok(()) };
    let says_to = |pid: i32| fs::metadata(format!("/proc/{pid}/fd/2")).ok();
    end_all(|pid| says_to(pid).is_some_and(|to| (to.dev(), to.ino()) == (log.dev(), log.ino())))
}

/// Until none is left, since each may start others meanwhile. One that is just ending is not known any more and not over yet.
fn end_all(is_one: impl Fn(i32) -> bool) -> Result<(), SandboxError> {
    let mut ending = Vec::new();
    for _ in 0..TRIES {
        for pid in identity::all_pids() {
            // Once more when it is held, as its number may be another's by then.
            if is_one(pid)
                && let Ok(handle) = identity::open(pid)
                && is_one(pid)
                && !identity::ended(&handle)
            {
                identity::kill(&handle);
                ending.push(handle);
            }
        }
        ending.retain(|handle| !identity::ended(handle));
        if ending.is_empty() {
            return Ok(());
        }
        sleep(STEP);
    }
    Err(SandboxError::Timeout("to end"))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn only_who_writes_to_the_log_is_ended() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder(dir.path().to_owned());
        end_unknown(&folder).unwrap();
        let sleeper = |errors: Stdio| Command::new("sleep").arg("600").stderr(errors).spawn().unwrap();
        let mut theirs = sleeper(folder.open_log().unwrap().into());
        let other = fs::File::create(dir.path().join("other")).unwrap();
        let mut others = sleeper(other.into());
        end_unknown(&folder).unwrap();
        let ended = theirs.wait().unwrap();
        assert!(!ended.success() && others.try_wait().unwrap().is_none());
        others.kill().unwrap();
        others.wait().unwrap();
    }
}
