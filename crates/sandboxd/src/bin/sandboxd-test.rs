//! The inside as a process of its own, for tests that need one: `proliferate sandboxd` does the same.

use std::process::ExitCode;

fn main() -> ExitCode {
    let word = std::env::args_os().nth(1).unwrap_or_default();
    sandboxd::inside::hidden_main(&word).unwrap_or(ExitCode::FAILURE)
}
