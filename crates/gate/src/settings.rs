//! The operator's settings that concern the gate.

use std::path::PathBuf;

#[derive(Clone, Debug)]
pub struct GateSettings {
    /// The folder of the policy files; none for the built-in policy.
    pub policy_dir: Option<PathBuf>,
    /// The key that signs checkpoints of the ledger.
    pub audit_key_file: PathBuf,
    /// Where checkpoints are written outside of the database.
    pub checkpoint_dir: PathBuf,
    /// The database has one gateway at a time, so every other instance in it is dead.
    pub single_instance: bool,
}
