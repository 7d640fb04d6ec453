//! The provider's helpers are the gateway's own program, called by a word that no person uses: there is one program to
//! install, and no second one that could be of another version.

use std::ffi::OsStr;
use std::process::ExitCode;

use super::{broker, launcher};

pub(super) const LAUNCHER: &str = "sandbox-launcher";
pub(super) const BROKER: &str = "sandbox-broker";

/// Runs the helper that this word names, if it names one. To be called first of all in `main`: a process that changes
/// its user or its namespaces must have one thread.
pub fn hidden_main(word: &OsStr) -> Option<ExitCode> {
    match word.to_str()? {
        LAUNCHER => Some(launcher::main()),
        BROKER => Some(broker::main()),
        _ => None,
    }
}
