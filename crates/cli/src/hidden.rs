//! Internal subcommands, which only this program itself calls. They run before anything else starts: a process that
//! changes its user or its namespaces must be single-threaded, and a process inside a sandbox must be small.

use std::process::ExitCode;

/// Runs the internal subcommand that this process was started as, if any, and returns its exit code.
pub(crate) fn run() -> Option<ExitCode> {
    let word = std::env::args_os().nth(1)?;
    sandbox::local::hidden_main(&word).or_else(|| sandboxd::server::hidden_main(&word))
}
