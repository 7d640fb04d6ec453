//! Which process is the PID 1 of a sandbox. A pid alone is reused; a pid with its start time and its namespaces is
//! not.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};
use serde::{Deserialize, Serialize};

/// How long a process may take from the loss of its namespaces to its end.
const ENDING: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) pid: i32,
    /// Field 22 of `/proc/<pid>/stat`: ticks since the host booted.
    pub(crate) started: u64,
    pub(crate) pid_namespace: u64,
    pub(crate) net_namespace: u64,
    pub(crate) uid: u32,
}

/// What became of a recorded process.
pub(crate) enum Found {
    /// It is this one and it lives; the handle stays with it whatever becomes of the pid.
    Alive(OwnedFd),
    Gone,
    /// The host does not let us look.
    Unknown,
}

impl Identity {
    /// What `/proc` says of a process now.
    pub(crate) fn of(pid: i32) -> io::Result<Self> {
        let folder = proc(pid);
        Ok(Self {
            pid,
            started: started(&fs::read_to_string(folder.join("stat"))?)?,
            pid_namespace: fs::metadata(folder.join("ns/pid"))?.ino(),
            net_namespace: fs::metadata(folder.join("ns/net"))?.ino(),
            uid: real_uid(&fs::read_to_string(folder.join("status"))?)?,
        })
    }

    /// Opens the process first and compares afterwards, so that it cannot be replaced in between.
    pub(crate) fn find(&self) -> Found {
        let handle = match open(self.pid) {
            Ok(handle) => handle,
            Err(error) if error.kind() == io::ErrorKind::NotFound || is_gone(&error) => return Found::Gone,
            Err(_) => return Found::Unknown,
        };
        if ended(&handle) {
            return Found::Gone;
        }
        match Self::of(self.pid) {
            Ok(now) if now == *self => Found::Alive(handle),
            Ok(_) => Found::Gone,
            // One that is just ending has no namespaces any more and is not over yet.
            Err(_) if wait(&handle, ENDING) => Found::Gone,
            // The start time can be read by everybody; when it differs, the process is another one.
            Err(_) => match fs::read_to_string(proc(self.pid).join("stat")).and_then(|text| started(&text)) {
                Ok(other) if other != self.started => Found::Gone,
                _ => Found::Unknown,
            },
        }
    }

    pub(crate) fn net_path(&self) -> PathBuf {
        proc(self.pid).join("ns/net")
    }
}

fn proc(pid: i32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}"))
}

fn is_gone(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

pub(crate) fn open(pid: i32) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::NotFound)?;
    Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?)
}

/// Whether the process is over. For a PID 1 that means that its whole namespace is empty.
pub(crate) fn ended(handle: &OwnedFd) -> bool {
    wait(handle, Duration::ZERO)
}

/// Waits for the end, blocking this thread; says whether it came.
pub(crate) fn wait(handle: &OwnedFd, most: Duration) -> bool {
    let most = Timespec::try_from(most).ok();
    let mut polled = [PollFd::new(handle, PollFlags::IN)];
    matches!(rustix::event::poll(&mut polled, most.as_ref()), Ok(1))
}

pub(crate) fn kill(handle: &OwnedFd) {
    // It fails only when the process is over.
    let _ = rustix::process::pidfd_send_signal(handle, Signal::KILL);
}

/// The name of the program may hold blanks and brackets, so fields are counted from its last bracket.
fn started(stat: &str) -> io::Result<u64> {
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    rest.split_ascii_whitespace().nth(19).and_then(|field| field.parse().ok()).ok_or_else(garbled)
}

fn real_uid(status: &str) -> io::Result<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    line.split_ascii_whitespace().next().and_then(|field| field.parse().ok()).ok_or_else(garbled)
}

fn garbled() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

/// Processes of the host, as far as they can be seen.
pub(crate) fn all_pids() -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Processes in a pid namespace.
pub(crate) fn inside(namespace: u64) -> Vec<i32> {
    let is_inside =
        |pid: &i32| fs::metadata(proc(*pid).join("ns/pid")).is_ok_and(|found| found.ino() == namespace);
    all_pids().into_iter().filter(is_inside).collect()
}

/// Who started a process, or adopted it.
pub(crate) fn parent(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(proc(pid).join("stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Whose process it is.
pub(crate) fn owner(pid: i32) -> Option<u32> {
    fs::metadata(proc(pid)).ok().map(|found| found.uid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_program_name_does_not_shift_the_fields() {
        let stat = "7 (a) R 1 2 3) S 1 7 7 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 4711 5 6";
        assert_eq!(started(stat).unwrap(), 4711);
        assert!(started("7 (a").is_err());
    }

    #[test]
    fn another_process_with_the_same_pid_is_not_the_one() {
        let own = Identity::of(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(matches!(own.find(), Found::Alive(_)));
        let changes: [fn(&mut Identity); 4] =
            [|i| i.started += 1, |i| i.pid_namespace += 1, |i| i.net_namespace += 1, |i| i.uid += 1];
        for change in changes {
            let mut other = own;
            change(&mut other);
            assert!(matches!(other.find(), Found::Gone));
        }
        assert!(matches!(Identity { pid: i32::MAX, ..own }.find(), Found::Gone));
    }
}
