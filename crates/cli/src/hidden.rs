//! Parts of this program that only the program calls. They run before anything else starts, since a process that
//! changes its user or its namespaces must have one thread, and one inside a sandbox must be small.

use std::process::ExitCode;

/// The exit code of a hidden part, if this process was started as one.
pub(crate) fn run() -> Option<ExitCode> {
    let word = std::env::args_os().nth(1)?;
    sandbox::local::hidden_main(&word).or_else(|| sandboxd::server::hidden_main(&word))
}
