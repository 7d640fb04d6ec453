//! PID 1: starts the worker, reaps all orphans, forwards SIGTERM.

use std::thread;

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, wait};
use tokio::signal::unix::{SignalKind, signal};

use super::serve::worker;
use super::sys::fork;
use super::{StartError, forbid_inspection, read_startup};

/// Runs as PID 1 until the worker exits and returns the exit code of this process; in the worker, the worker's own.
pub(super) fn init() -> Result<u8, StartError> {
    forbid_inspection()?;
    let (key, options) = read_startup()?;
    // PID 1 adopts orphans anyway; elsewhere (tests, a provider without namespaces) it must be a subreaper.
    set_child_subreaper(Some(getpid()))
        .map_err(|error| StartError::Step("adopting orphans", error.into()))?;
    match fork().map_err(|error| StartError::Step("starting the worker", error))? {
        None => worker(key, &options),
        Some(pid) => {
            forward_sigterm(pid)?;
            reap_until(pid)
        }
    }
}

/// PID 1 ignores signals without a handler, so a thread of its own handles SIGTERM.
fn forward_sigterm(worker: Pid) -> Result<(), StartError> {
    let failed = |error| StartError::Step("watching for signals", error);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().map_err(failed)?;
    let mut asked = {
        let _guard = runtime.enter();
        signal(SignalKind::terminate()).map_err(failed)?
    };
    let watch = move || {
        runtime.block_on(async {
            while asked.recv().await.is_some() {
                let _ = kill_process(worker, Signal::TERM);
            }
        });
    };
    thread::Builder::new().stack_size(64 * 1024).spawn(watch).map_err(failed)?;
    Ok(())
}

fn reap_until(worker: Pid) -> Result<u8, StartError> {
    loop {
        let (pid, status) = match wait(WaitOptions::empty()) {
            Ok(Some(ended)) => ended,
            Ok(None) | Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(StartError::Step("waiting", error.into())),
        };
        if pid == worker && (status.exited() || status.signaled()) {
            let code = status.exit_status().or(status.terminating_signal().map(|signal| 128 + signal));
            return Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1));
        }
    }
}
