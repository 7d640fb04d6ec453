//! The operator's settings that concern the gate.

use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct GateSettings {
    /// The directory of the policy files. `None` for the built-in policy.
    pub policy_dir: Option<PathBuf>,
    /// The key that signs checkpoints of the ledger.
    pub audit_key_file: PathBuf,
    /// The directory in which checkpoints are written outside of the database.
    pub checkpoint_dir: PathBuf,
    /// Whether the database has only one gateway at a time, so that every other instance in it is
    /// dead.
    pub single_instance: bool,
    /// Calls that an organization's people and sandboxes may make in a minute.
    pub calls_per_minute: u32,
    /// How long a request can be approved, and then a granted call can be repeated.
    pub approval_lifetime: Duration,
}
