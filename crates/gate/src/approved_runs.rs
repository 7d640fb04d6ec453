//! The runs that this instance may be executing for an approver. Their calls are not in flight, so a caller that repeats
//! such a call would otherwise take its run for orphaned and record it as unknown while the tool works.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use proto::OrgId;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// The organization and the run id.
type Key = (OrgId, String);

/// The runs with approvals in progress.
#[derive(Clone, Default)]
pub(crate) struct ApprovedRuns(Arc<Mutex<HashMap<Key, InProgress>>>);

#[derive(Default)]
struct InProgress {
    /// How many approvals the run has: of racing ones, only one executes it.
    approvals: usize,
    /// Cancelled when all have ended.
    ended: CancellationToken,
}

impl ApprovedRuns {
    /// Registers an approval before it is written, until the run that it starts has ended.
    pub(crate) fn register(&self, key: Key) -> ApprovedRun {
        self.0.lock().entry(key.clone()).or_default().approvals += 1;
        ApprovedRun { runs: self.clone(), key }
    }

    /// The end of all approvals of a run; `None` if it has none.
    pub(crate) fn ended(&self, key: &Key) -> Option<WaitForCancellationFutureOwned> {
        self.0.lock().get(key).map(|found| found.ended.clone().cancelled_owned())
    }
}

/// Keeps a run registered until it is dropped.
pub(crate) struct ApprovedRun {
    runs: ApprovedRuns,
    key: Key,
}

impl Drop for ApprovedRun {
    fn drop(&mut self) {
        let mut runs = self.runs.0.lock();
        let Some(found) = runs.get_mut(&self.key) else { return };
        found.approvals -= 1;
        if found.approvals == 0
            && let Some(found) = runs.remove(&self.key)
        {
            found.ended.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn the_end_of_the_last_approval_is_awaited() {
        let (runs, key) =
            (ApprovedRuns::default(), (OrgId::from(uuid::Uuid::nil()), "run-00000001".to_owned()));
        assert!(runs.ended(&key).is_none());
        let (first, second) = (runs.register(key.clone()), runs.register(key.clone()));
        let mut ended = Box::pin(runs.ended(&key).unwrap());
        drop(first);
        assert!((&mut ended).now_or_never().is_none());
        drop(second);
        ended.await;
        assert!(runs.ended(&key).is_none());
    }
}
