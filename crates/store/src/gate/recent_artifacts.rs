//! Remembers which artifacts were stored recently. Artifacts are named by their content and never deleted, so an existing one
//! need not be written again: the same tool call in the same case often returns the same content.

use std::num::NonZeroUsize;
use std::sync::Arc;

use lru::LruCache;
use parking_lot::Mutex;
use proto::OrgId;

use super::{PreparedWrite, Written};
use crate::NewArtifact;

/// A forgotten artifact costs one INSERT that does nothing.
const MAX_ARTIFACTS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(2047);

/// The keys of artifacts that exist.
pub(crate) struct RecentArtifacts(Mutex<LruCache<(OrgId, String), ()>>);

impl Default for RecentArtifacts {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(MAX_ARTIFACTS)))
    }
}

impl RecentArtifacts {
    pub(crate) fn contains(&self, artifact: &NewArtifact) -> bool {
        self.0.lock().get(&key(artifact)).is_some()
    }

    /// Adds the artifacts of committed writes.
    pub(crate) fn add(&self, writes: &[Arc<PreparedWrite>], results: &[Written]) {
        let done = writes.iter().zip(results).filter(|(_, result)| matches!(result, Written::Done));
        let mut all = self.0.lock();
        for artifact in done.flat_map(|(prepared, _)| &prepared.write.artifacts) {
            all.put(key(artifact), ());
        }
    }
}

fn key(artifact: &NewArtifact) -> (OrgId, String) {
    (artifact.org_id, artifact.artifact_id.clone())
}
