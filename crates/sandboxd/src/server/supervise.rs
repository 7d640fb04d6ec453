//! Supervises one service: starts it, keeps its output, and restarts it after a failure with exponential backoff.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use clock::Clock;
use parking_lot::{Mutex, MutexGuard};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::exec::exit_reason;
use super::launch::{Launcher, RunningProgram, StandardStreams};
use super::log::Log;
use super::roots::io_refusal;
use crate::protocol::{ExitReason, Refusal, Restart, ServiceInfo, ServiceSpec, ServiceState};

/// The time between SIGTERM and SIGKILL.
const KILL_DELAY: Duration = Duration::from_secs(5);
/// How long to wait for the remaining output of a service that has exited.
const FINAL_OUTPUT_TIMEOUT: Duration = Duration::from_millis(100);

/// The delays between restarts: doubled up to half a minute, and reset after a run that was long enough.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    const FIRST_RESTART_DELAY: Duration = Duration::from_millis(250);
    const MAX_RESTART_DELAY: Duration = Duration::from_secs(30);
    const HEALTHY_AFTER: Duration = Duration::from_secs(30);

    pub(super) fn pause_after(&mut self, ran_for: Duration) -> Duration {
        if ran_for >= Self::HEALTHY_AFTER {
            self.failures = 0;
        }
        let pause =
            Self::FIRST_RESTART_DELAY.saturating_mul(1 << self.failures.min(16)).min(Self::MAX_RESTART_DELAY);
        self.failures = self.failures.saturating_add(1);
        pause
    }
}

pub(super) struct Service {
    pub(super) spec: ServiceSpec,
    pub(super) log: Log,
    run_state: Mutex<RunState>,
    stop: watch::Sender<bool>,
    done: watch::Sender<bool>,
}

struct RunState {
    state: ServiceState,
    pid: Option<u32>,
    restarts: u32,
    last_exit: Option<ExitReason>,
    started_at: Option<i64>,
}

impl Service {
    pub(super) fn new(spec: ServiceSpec, log: Log) -> Self {
        let run_state = RunState {
            state: ServiceState::Waiting,
            pid: None,
            restarts: 0,
            last_exit: None,
            started_at: None,
        };
        let (stop, done) = (watch::Sender::new(false), watch::Sender::new(false));
        Self { spec, log, run_state: Mutex::new(run_state), stop, done }
    }

    fn run_state(&self) -> MutexGuard<'_, RunState> {
        self.run_state.lock()
    }

    pub(super) fn info(&self) -> ServiceInfo {
        let run_state = self.run_state();
        ServiceInfo {
            name: self.spec.name.clone(),
            command: self.spec.command.clone(),
            state: run_state.state,
            pid: run_state.pid,
            restarts: run_state.restarts,
            last_exit: run_state.last_exit,
            started_at: run_state.started_at,
        }
    }

    /// Stops the service and waits until none of its processes runs.
    pub(super) async fn stop(&self) {
        self.stop.send_replace(true);
        wait_until_set(&mut self.done.subscribe()).await;
    }

    pub(super) fn done(&self) -> watch::Receiver<bool> {
        self.done.subscribe()
    }

    /// Runs until the service is stopped, or has exited and is not to be restarted.
    pub(super) async fn supervise(self: Arc<Self>, launcher: Arc<Launcher>, clock: Clock) {
        let mut backoff = Backoff::default();
        loop {
            let started = clock.elapsed();
            let run = self.run_once(&launcher, &clock).await;
            let failed = !matches!(run, Ok(ExitReason::Exit(0)));
            if let Err(refusal) = &run {
                self.log.append(format!("sandboxd: {}\n", refusal.message).as_bytes());
            }
            let again = match self.spec.restart {
                Restart::Never => false,
                Restart::OnFailure => failed,
                Restart::Always => true,
            };
            let pause = backoff.pause_after(clock.elapsed().saturating_sub(started));
            self.run_state().record_exit(run.ok(), again, failed);
            if *self.stop.borrow() || !again || self.stopped_within(pause).await {
                break;
            }
            self.run_state().restarts += 1;
        }
        if *self.stop.borrow() {
            self.run_state().state = ServiceState::Stopped;
        }
        self.done.send_replace(true);
    }

    async fn stopped_within(&self, pause: Duration) -> bool {
        let mut stop = self.stop.subscribe();
        tokio::select! {
            () = wait_until_set(&mut stop) => true,
            () = sleep(pause) => false,
        }
    }

    async fn run_once(&self, launcher: &Launcher, clock: &Clock) -> Result<ExitReason, Refusal> {
        let (RunningProgram { mut child, tree }, mut output) = self.start(launcher)?;
        {
            let mut run_state = self.run_state();
            run_state.state = ServiceState::Running;
            run_state.pid = child.id();
            run_state.started_at = Some(clock.now().timestamp_millis());
        }
        let mut stop = self.stop.subscribe();
        let mut buffer = vec![0; 16 * 1024];
        let mut open = true;
        let status = loop {
            tokio::select! {
                status = child.wait() => break status,
                read = output.read(&mut buffer), if open => match read {
                    Ok(length) if length > 0 => self.log.append(&buffer[..length]),
                    _ => open = false,
                },
                () = wait_until_set(&mut stop) => {
                    tree.end(KILL_DELAY).await;
                    break child.wait().await;
                }
            }
        };
        while let Ok(Ok(length @ 1..)) = timeout(FINAL_OUTPUT_TIMEOUT, output.read(&mut buffer)).await {
            self.log.append(&buffer[..length]);
        }
        // A process that it left behind would hold its port when it is restarted.
        tree.kill_leftovers().await;
        status.map(exit_reason).map_err(|error| io_refusal(&error))
    }

    fn start(&self, launcher: &Launcher) -> Result<(RunningProgram, pipe::Receiver), Refusal> {
        let failed = |error: std::io::Error| io_refusal(&error);
        let (reader, writer) = std::io::pipe().map_err(failed)?;
        let stdout = writer.try_clone().map_err(failed)?.into();
        let streams =
            StandardStreams { stdin: Stdio::null(), stdout, stderr: writer.into(), terminal: false };
        let argv = ["/bin/sh", "-c", &self.spec.command].map(str::to_owned);
        let program = launcher.start(&argv, self.spec.cwd.as_ref(), &self.spec.env, streams)?;
        Ok((program, pipe::Receiver::from_owned_fd(reader.into()).map_err(failed)?))
    }
}

/// Waits until the flag is set, or its sender is dropped.
async fn wait_until_set(flag: &mut watch::Receiver<bool>) {
    let _ = flag.wait_for(|up| *up).await;
}

impl RunState {
    fn record_exit(&mut self, ended: Option<ExitReason>, again: bool, failed: bool) {
        self.pid = None;
        self.last_exit = ended.or(self.last_exit);
        self.state = match (again, failed) {
            (true, _) => ServiceState::Waiting,
            (false, true) => ServiceState::Failed,
            (false, false) => ServiceState::Stopped,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_to_a_limit_and_a_healthy_run_resets_it() {
        let mut backoff = Backoff::default();
        let pauses: Vec<u128> =
            (0..10).map(|_| backoff.pause_after(Duration::from_secs(1)).as_millis()).collect();
        assert_eq!(pauses, [250, 500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000, 30_000]);
        assert_eq!(backoff.pause_after(Duration::from_secs(30)).as_millis(), 250);
        assert_eq!(backoff.pause_after(Duration::ZERO).as_millis(), 500);
        backoff.failures = u32::MAX;
        assert_eq!(backoff.pause_after(Duration::ZERO), Backoff::MAX_RESTART_DELAY);
    }
}
