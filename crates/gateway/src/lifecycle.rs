//! How the process stops: first softly (finish the work in flight), then hard (drop it), each with a
//! deadline.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The two stages of stopping, and the tasks to wait for.
#[derive(Clone, Default)]
pub struct Lifecycle {
    /// Cancelled when no new work may start.
    pub soft: CancellationToken,
    /// Cancelled when the remaining work is dropped.
    pub hard: CancellationToken,
    /// The running tasks.
    pub tasks: TaskTracker,
}

impl Lifecycle {
    /// Stops softly on the first SIGTERM or SIGINT, and hard on the second one or `patience` after
    /// the first.
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

    /// Waits until all tasks are done or the hard stop. Returns `true` if all tasks were done.
    pub async fn drained(&self) -> bool {
        self.tasks.close();
        tokio::select! {
            biased;
            () = self.tasks.wait() => true,
            () = self.hard.cancelled() => false,
        }
    }
}
