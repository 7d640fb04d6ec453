//! Identifies the PID 1 of a sandbox. Pids are reused; a pid with its start time and namespaces is unique.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};
use serde::{Deserialize, Serialize};

/// How long a process may take to exit after it has lost its namespaces.
const EXIT_TIMEOUT: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) pid: i32,
    /// Field 22 of `/proc/<pid>/stat`: clock ticks since boot.
    pub(crate) started: u64,
    pub(crate) pid_namespace: u64,
    pub(crate) net_namespace: u64,
    pub(crate) uid: u32,
}

/// The status of a recorded process.
pub(crate) enum ProcessStatus {
    /// It is the same process and it is running; the pidfd stays valid even if the pid is reused.
    Alive(OwnedFd),
    Gone,
    /// The host does not let us inspect the process.
    Unknown,
}

impl Identity {
    /// Reads the current identity of a process from `/proc`.
    pub(crate) fn of(pid: i32) -> io::Result<Self> {
        let directory = proc(pid);
        Ok(Self {
            pid,
            started: parse_start_time(&fs::read_to_string(directory.join("stat"))?)?,
            pid_namespace: fs::metadata(directory.join("ns/pid"))?.ino(),
            net_namespace: fs::metadata(directory.join("ns/net"))?.ino(),
            uid: real_uid(&fs::read_to_string(directory.join("status"))?)?,
        })
    }

    /// Opens a pidfd first and compares afterwards, so that the process cannot be replaced in between.
    pub(crate) fn find(&self) -> ProcessStatus {
        let handle = match open(self.pid) {
            Ok(handle) => handle,
            Err(error) if error.kind() == io::ErrorKind::NotFound || is_gone(&error) => {
                return ProcessStatus::Gone;
            }
            Err(_) => return ProcessStatus::Unknown,
        };
        if has_exited(&handle) {
            return ProcessStatus::Gone;
        }
        match Self::of(self.pid) {
            Ok(now) if now == *self => ProcessStatus::Alive(handle),
            Ok(_) => ProcessStatus::Gone,
            // A process that is just exiting has lost its namespaces but is not gone yet.
            Err(_) if wait(&handle, EXIT_TIMEOUT) => ProcessStatus::Gone,
            // Everybody can read the start time; if it differs, this is another process.
            Err(_) => match fs::read_to_string(proc(self.pid).join("stat"))
                .and_then(|text| parse_start_time(&text))
            {
                Ok(other) if other != self.started => ProcessStatus::Gone,
                _ => ProcessStatus::Unknown,
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

/// Whether the process has exited. For a PID 1 this means that its entire namespace is empty.
pub(crate) fn has_exited(handle: &OwnedFd) -> bool {
    wait(handle, Duration::ZERO)
}

/// Waits for the exit, blocking this thread; returns whether it happened.
pub(crate) fn wait(handle: &OwnedFd, most: Duration) -> bool {
    let most = Timespec::try_from(most).ok();
    let mut polled = [PollFd::new(handle, PollFlags::IN)];
    matches!(rustix::event::poll(&mut polled, most.as_ref()), Ok(1))
}

pub(crate) fn kill(handle: &OwnedFd) {
    // This only fails if the process has already exited.
    let _ = rustix::process::pidfd_send_signal(handle, Signal::KILL);
}

/// The program's name may contain spaces and parentheses, so fields are counted from its last parenthesis.
fn parse_start_time(stat: &str) -> io::Result<u64> {
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    rest.split_ascii_whitespace().nth(19).and_then(|field| field.parse().ok()).ok_or_else(invalid_data)
}

fn real_uid(status: &str) -> io::Result<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    line.split_ascii_whitespace().next().and_then(|field| field.parse().ok()).ok_or_else(invalid_data)
}

fn invalid_data() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

/// All visible processes of the host.
pub(crate) fn all_pids() -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// All processes in a pid namespace.
pub(crate) fn pids_in_namespace(namespace: u64) -> Vec<i32> {
    let is_inside =
        |pid: &i32| fs::metadata(proc(*pid).join("ns/pid")).is_ok_and(|found| found.ino() == namespace);
    all_pids().into_iter().filter(is_inside).collect()
}

/// The parent of a process, which may have adopted it.
pub(crate) fn parent(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(proc(pid).join("stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// The uid that owns a process.
pub(crate) fn owner(pid: i32) -> Option<u32> {
    fs::metadata(proc(pid)).ok().map(|found| found.uid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_program_name_does_not_shift_the_fields() {
        let stat = "7 (a) R 1 2 3) S 1 7 7 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 4711 5 6";
        assert_eq!(parse_start_time(stat).unwrap(), 4711);
        assert!(parse_start_time("7 (a").is_err());
    }

    #[test]
    fn reused_pid_is_not_the_same_process() {
        let own = Identity::of(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(matches!(own.find(), ProcessStatus::Alive(_)));
        let changes: [fn(&mut Identity); 4] =
            [|i| i.started += 1, |i| i.pid_namespace += 1, |i| i.net_namespace += 1, |i| i.uid += 1];
        for change in changes {
            let mut other = own;
            change(&mut other);
            assert!(matches!(other.find(), ProcessStatus::Gone));
        }
        assert!(matches!(Identity { pid: i32::MAX, ..own }.find(), ProcessStatus::Gone));
    }
}
