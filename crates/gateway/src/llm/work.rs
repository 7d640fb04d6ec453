//! Requests to the model in flight, as far as a stop has to know: each must be counted before the database closes.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The requests that are counted.
#[derive(Clone, Default)]
pub struct ModelWork {
    pub(crate) tasks: TaskTracker,
    /// Ends them: what is known of each is counted, and what is not known at its worst case.
    pub(crate) cut: CancellationToken,
}

impl ModelWork {
    /// Waits until all requests have been answered and counted, or until `hard`; the rest is cut off, and counted
    /// within `patience`. `true`: nothing was cut off.
    pub(crate) async fn finish(&self, hard: &CancellationToken, patience: Duration) -> bool {
        self.tasks.close();
        let finished = tokio::select! {
            biased;
            () = self.tasks.wait() => true,
            () = hard.cancelled() => false,
        };
        self.cut.cancel();
        if tokio::time::timeout(patience, self.tasks.wait()).await.is_err() {
            tracing::error!(
                requests = self.tasks.len(),
                "requests to the model could not be counted in time"
            );
        }
        finished
    }
}
