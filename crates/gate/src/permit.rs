//! Permission for one effect. Its fields are private to the gate, so nothing else can make one.

use proto::OrgId;

/// The right to execute one call, once. A source asks for it by reference and cannot keep it.
#[derive(Debug)]
pub struct Permit {
    org: OrgId,
    run_id: String,
}

impl Permit {
    /// Only after the claim and the decision are on disk.
    pub(crate) fn new(org: OrgId, run_id: &str) -> Self {
        Self { org, run_id: run_id.to_owned() }
    }

    pub fn org(&self) -> OrgId {
        self.org
    }

    /// The one id of this effect, for sources that can be told one.
    pub fn run_id(&self) -> &str {
        &self.run_id
    }
}
