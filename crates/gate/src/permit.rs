//! Permission for one effect. Its fields are private to the gate, so nothing else can make one.

use ledger::{ArtifactRef, Redactor};
use parking_lot::Mutex;
use proto::OrgId;
use store::NewArtifact;

use crate::artifacts::evidence_reference;

/// The right to execute one call, once. A source gets it by reference and cannot keep it.
#[derive(Debug)]
pub struct Permit {
    org: OrgId,
    run_id: String,
    redactor: Redactor,
    evidence: Mutex<Vec<ArtifactRef>>,
}

impl Permit {
    /// Created only after the claim and the decision are on disk.
    pub(crate) fn new(org: OrgId, run_id: &str, redactor: Redactor) -> Self {
        Self { org, run_id: run_id.to_owned(), redactor, evidence: Mutex::default() }
    }

    /// Names a file that the call stores, made by [`crate::file_artifact`], in the event of the call, so that nobody can
    /// replace the file later.
    pub fn add_evidence(&self, file: &NewArtifact) {
        self.evidence.lock().extend(evidence_reference(file, &self.run_id));
    }

    pub(crate) fn into_evidence(self) -> Vec<ArtifactRef> {
        self.evidence.into_inner()
    }

    pub fn org(&self) -> OrgId {
        self.org
    }

    /// Removes what no answer may contain. The gate removes it from every answer of an action, but a tool that cuts a
    /// text must remove it before, because half a secret is not found.
    pub const fn redactor(&self) -> &Redactor {
        &self.redactor
    }

    /// The unique id of this effect, for targets that accept an idempotency key.
    pub fn run_id(&self) -> &str {
        &self.run_id
    }
}
