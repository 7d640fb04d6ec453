//! Model requests in flight. A shutdown must wait for them, since each must be billed before the database closes.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The tracked requests.
#[derive(Clone, Default)]
pub struct ModelWork {
    pub(crate) tasks: TaskTracker,
    /// Aborts the requests. Each is billed by its known usage, and by its worst case where that is unknown.
    pub(crate) cut: CancellationToken,
}

impl ModelWork {
    /// Waits until all requests have been answered and billed, or until `hard` is cancelled; then the rest is
    /// aborted and billed within `patience`. Returns `true` if nothing was aborted.
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
