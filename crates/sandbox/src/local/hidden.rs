//! The helper processes of the provider are hidden subcommands of the gateway's own program, so that there is one
//! program to install and no version mismatch.

use std::ffi::OsStr;
use std::process::ExitCode;

use super::{broker, launcher};

pub(super) const LAUNCHER: &str = "sandbox-launcher";
pub(super) const BROKER: &str = "sandbox-broker";

/// Runs the helper with this name, if there is one. Call it first in `main`: a process that changes its user or its
/// namespaces must have only one thread.
pub fn hidden_main(word: &OsStr) -> Option<ExitCode> {
    match word.to_str()? {
        LAUNCHER => Some(launcher::main()),
        BROKER => Some(broker::main()),
        _ => None,
    }
}
