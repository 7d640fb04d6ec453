//! Remembers which artifacts were stored recently. Artifacts are named by their content and never deleted, so an existing one
//! need not be written again: the same tool call in the same case often returns the same content.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use proto::OrgId;

use super::{PreparedWrite, Written};
use crate::NewArtifact;

/// Beyond this many the set is cleared, and each artifact costs one INSERT that does nothing.
const MAX: usize = 2048;

/// The keys of artifacts that exist.
#[derive(Default)]
pub(crate) struct RecentArtifacts(Mutex<HashSet<(OrgId, String)>>);

impl RecentArtifacts {
    pub(crate) fn contains(&self, artifact: &NewArtifact) -> bool {
        self.all().contains(&(artifact.org_id, artifact.artifact_id.clone()))
    }

    /// Adds the artifacts of committed writes.
    pub(crate) fn add(&self, writes: &[Arc<PreparedWrite>], results: &[Written]) {
        let done = writes.iter().zip(results).filter(|(_, result)| matches!(result, Written::Done));
        let mut all = self.all();
        for artifact in done.flat_map(|(prepared, _)| &prepared.write.artifacts) {
            if all.len() >= MAX {
                all.clear();
            }
            all.insert((artifact.org_id, artifact.artifact_id.clone()));
        }
    }

    fn all(&self) -> MutexGuard<'_, HashSet<(OrgId, String)>> {
        self.0.lock()
    }
}
