//! How the process ends: first softly (finish what runs), then hard (drop it), each with a deadline.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The two stages of stopping, and the tasks that are waited for.
#[derive(Clone, Default)]
pub struct Lifecycle {
    /// Take no new work.
    pub soft: CancellationToken,
    /// Drop the work that is left.
    pub hard: CancellationToken,
    /// What runs.
    pub tasks: TaskTracker,
}

impl Lifecycle {
    /// Stops softly on the first SIGTERM or SIGINT, hard on the second or `patience` after the first.
    pub fn stop_on_signals(&self, patience: Duration) -> std::io::Result<()> {
        let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let (soft, hard) = (self.soft.clone(), self.hard.clone());
        tokio::spawn(async move {
            tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
            soft.cancel();
            tracing::info!(seconds = patience.as_secs(), "stopping; requests may finish");
            tokio::select! {
                _ = term.recv() => {},
                _ = int.recv() => {},
                () = tokio::time::sleep(patience) => {},
            }
            hard.cancel();
        });
        Ok(())
    }

    /// Returns when all tasks are done, or when the hard stop cut them off. `true`: all were done.
    pub async fn drained(&self) -> bool {
        self.tasks.close();
        tokio::select! {
            biased;
            () = self.tasks.wait() => true,
            () = self.hard.cancelled() => false,
        }
    }
}
