//! Keeps one service running: starts it, keeps what it says, and starts it again when it fails, with growing pauses.

use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clock::Clock;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::beneath::io_refusal;
use super::exec::ended;
use super::launch::{Ends, Launched, Launcher};
use super::log::Log;
use crate::protocol::{Ended, Refusal, Restart, ServiceInfo, ServiceSpec, ServiceState};

/// Between asking a service to end and killing it.
const GRACE: Duration = Duration::from_secs(5);
/// What a service that has ended may still have to say.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// The pauses between starts: doubled up to half a minute, and short again after a run that was long enough.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(250);
    const LONGEST: Duration = Duration::from_secs(30);
    const HEALTHY: Duration = Duration::from_secs(30);

    pub(super) fn pause_after(&mut self, ran_for: Duration) -> Duration {
        if ran_for >= Self::HEALTHY {
            self.failures = 0;
        }
        let pause = Self::FIRST.saturating_mul(1 << self.failures.min(16)).min(Self::LONGEST);
        self.failures = self.failures.saturating_add(1);
        pause
    }
}

pub(super) struct Service {
    pub(super) spec: ServiceSpec,
    pub(super) log: Log,
    facts: Mutex<Facts>,
    stop: watch::Sender<bool>,
    over: watch::Sender<bool>,
}

struct Facts {
    state: ServiceState,
    pid: Option<u32>,
    restarts: u32,
    last_exit: Option<Ended>,
    started_at: Option<i64>,
}

impl Service {
    pub(super) fn new(spec: ServiceSpec, log: Log) -> Self {
        let facts =
            Facts { state: ServiceState::Waiting, pid: None, restarts: 0, last_exit: None, started_at: None };
        let (stop, over) = (watch::Sender::new(false), watch::Sender::new(false));
        Self { spec, log, facts: Mutex::new(facts), stop, over }
    }

    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn info(&self) -> ServiceInfo {
        let facts = self.facts();
        ServiceInfo {
            name: self.spec.name.clone(),
            command: self.spec.command.clone(),
            state: facts.state,
            pid: facts.pid,
            restarts: facts.restarts,
            last_exit: facts.last_exit,
            started_at: facts.started_at,
        }
    }

    /// Waits until nothing of it runs.
    pub(super) async fn stop(&self) {
        self.stop.send_replace(true);
        told(&mut self.over.subscribe()).await;
    }

    pub(super) fn over(&self) -> watch::Receiver<bool> {
        self.over.subscribe()
    }

    /// Runs until it is stopped, or has ended and is not to be started again.
    pub(super) async fn supervise(self: Arc<Self>, launcher: Arc<Launcher>, clock: Clock) {
        let mut backoff = Backoff::default();
        loop {
            let started = clock.elapsed();
            let run = self.run_once(&launcher, &clock).await;
            let failed = !matches!(run, Ok(Ended::Exit(0)));
            if let Err(refusal) = &run {
                self.log.append(format!("sandboxd: {}\n", refusal.message).as_bytes());
            }
            let again = match self.spec.restart {
                Restart::Never => false,
                Restart::OnFailure => failed,
                Restart::Always => true,
            };
            let pause = backoff.pause_after(clock.elapsed().saturating_sub(started));
            self.facts().note(run.ok(), again, failed);
            if *self.stop.borrow() || !again || self.stopped_within(pause).await {
                break;
            }
            self.facts().restarts += 1;
        }
        if *self.stop.borrow() {
            self.facts().state = ServiceState::Stopped;
        }
        self.over.send_replace(true);
    }

    async fn stopped_within(&self, pause: Duration) -> bool {
        let mut stop = self.stop.subscribe();
        tokio::select! {
            () = told(&mut stop) => true,
            () = sleep(pause) => false,
        }
    }

    async fn run_once(&self, launcher: &Launcher, clock: &Clock) -> Result<Ended, Refusal> {
        let (Launched { mut child, tree }, mut output) = self.start(launcher)?;
        {
            let mut facts = self.facts();
            facts.state = ServiceState::Running;
            facts.pid = child.id();
            facts.started_at = Some(clock.now().timestamp_millis());
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
                () = told(&mut stop) => {
                    tree.end(GRACE).await;
                    break child.wait().await;
                }
            }
        };
        while let Ok(Ok(length @ 1..)) = timeout(LAST_WORDS, output.read(&mut buffer)).await {
            self.log.append(&buffer[..length]);
        }
        // Whoever it left behind would hold its port when it starts again.
        tree.kill_rest().await;
        status.map(ended).map_err(|error| io_refusal(&error))
    }

    fn start(&self, launcher: &Launcher) -> Result<(Launched, pipe::Receiver), Refusal> {
        let failed = |error: std::io::Error| io_refusal(&error);
        let (reader, writer) = std::io::pipe().map_err(failed)?;
        let stdout = writer.try_clone().map_err(failed)?.into();
        let ends = Ends { stdin: Stdio::null(), stdout, stderr: writer.into(), terminal: false };
        let argv = ["/bin/sh", "-c", &self.spec.command].map(str::to_owned);
        let program = launcher.start(&argv, self.spec.cwd.as_ref(), &self.spec.env, ends)?;
        Ok((program, pipe::Receiver::from_owned_fd(reader.into()).map_err(failed)?))
    }
}

/// Waits until the flag is up; also when there is nobody left to put it up.
async fn told(flag: &mut watch::Receiver<bool>) {
    let _ = flag.wait_for(|up| *up).await;
}

impl Facts {
    fn note(&mut self, ended: Option<Ended>, again: bool, failed: bool) {
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
    fn pauses_double_up_to_a_bound_and_a_healthy_run_resets_them() {
        let mut backoff = Backoff::default();
        let pauses: Vec<u128> =
            (0..10).map(|_| backoff.pause_after(Duration::from_secs(1)).as_millis()).collect();
        assert_eq!(pauses, [250, 500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000, 30_000]);
        assert_eq!(backoff.pause_after(Duration::from_secs(30)).as_millis(), 250);
        assert_eq!(backoff.pause_after(Duration::ZERO).as_millis(), 500);
        backoff.failures = u32::MAX;
        assert_eq!(backoff.pause_after(Duration::ZERO), Backoff::LONGEST);
    }
}
