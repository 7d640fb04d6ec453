//! The artifacts that were kept last. They are named by their content and never deleted, so what is there need not be
//! written again: a tool that is asked the same in the same case gives the same.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use proto::OrgId;

use super::{Ready, Written};
use crate::NewArtifact;

/// More of them are asked of the database.
const MOST: usize = 2048;

/// Which there are. It forgets all when it is full, and that costs a look at each.
#[derive(Default)]
pub(super) struct Kept(Mutex<HashSet<(OrgId, String)>>);

impl Kept {
    pub(super) fn has(&self, artifact: &NewArtifact) -> bool {
        self.all().contains(&(artifact.org_id, artifact.artifact_id.clone()))
    }

    /// Those of writes that are committed.
    pub(super) fn note(&self, writes: &[Arc<Ready>], results: &[Written]) {
        let done = writes.iter().zip(results).filter(|(_, result)| matches!(result, Written::Done));
        let mut all = self.all();
        for artifact in done.flat_map(|(ready, _)| &ready.write.artifacts) {
            if all.len() >= MOST {
                all.clear();
            }
            all.insert((artifact.org_id, artifact.artifact_id.clone()));
        }
    }

    fn all(&self) -> MutexGuard<'_, HashSet<(OrgId, String)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
