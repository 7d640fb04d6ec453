//! The only unsafe call: `fork`, which splits the worker from PID 1. Executing the program a second time instead
//! would double the startup time of the sandbox.
#![expect(unsafe_code, reason = "fork has no safe wrapper")]

use std::io;

use rustix::process::Pid;

/// Returns `None` in the child and the child's pid in the parent. Refuses to fork a process with several threads,
/// because locks held by the others would stay locked in the child.
pub(super) fn fork() -> io::Result<Option<Pid>> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("the process has more than one thread"));
    }
    // SAFETY: this process has one thread, as was just checked, and only that thread could start another; so the
    // child is a complete copy in a consistent state.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok(Pid::from_raw(pid)),
    }
}
