//! Permission for one effect. Its fields are private to the gate, so nothing else can make one.

use ledger::Redactor;
use proto::OrgId;

/// The right to execute one call, once. A source gets it by reference and cannot keep it.
#[derive(Debug)]
pub struct Permit {
    org: OrgId,
    run_id: String,
    redactor: Redactor,
}

impl Permit {
    /// Created only after the claim and the decision are on disk.
    pub(crate) fn new(org: OrgId, run_id: &str, redactor: Redactor) -> Self {
        Self { org, run_id: run_id.to_owned(), redactor }
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
