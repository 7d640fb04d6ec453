//! The runs that this instance may be executing for an approver. Their calls are not in flight, so a caller that repeats
//! such a call would otherwise take its run for orphaned and record it as unknown while the tool works.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use proto::OrgId;

/// The organization and the run id.
type Key = (OrgId, String);

/// The runs with approvals in progress, and how many approvals each has: of racing ones, only one executes the run.
#[derive(Clone, Default)]
pub(crate) struct ApprovedRuns(Arc<Mutex<HashMap<Key, usize>>>);

impl ApprovedRuns {
    /// Registers an approval before it is written, until the run that it starts has ended.
    pub(crate) fn register(&self, key: Key) -> ApprovedRun {
        *self.0.lock().entry(key.clone()).or_default() += 1;
        ApprovedRun { runs: self.clone(), key }
    }

    pub(crate) fn contains(&self, key: &Key) -> bool {
        self.0.lock().contains_key(key)
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
        let Some(approvals) = runs.get_mut(&self.key) else { return };
        *approvals -= 1;
        if *approvals == 0 {
            runs.remove(&self.key);
        }
    }
}
