//! The one call that the compiler cannot check: splitting PID 1 from its worker. Starting the program a second time
//! instead would take as long as all else that happens inside until the supervisor answers.
#![expect(unsafe_code, reason = "fork has no safe wrapper")]

use std::io;

use rustix::process::Pid;

/// `None` in the new process, and its pid in the old one. Refused to a process with more than one thread, since what the
/// others held locked would stay so in the new one.
pub(super) fn fork() -> io::Result<Option<Pid>> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("there is more than one thread"));
    }
    // SAFETY: this process has one thread, as was just seen, and only that thread could start another; so the new
    // process is a whole copy in which nothing is half done.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok(Pid::from_raw(pid)),
    }
}
