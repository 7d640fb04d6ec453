//! The server as its own process, for tests; `proliferate sandboxd` does the same.

use std::process::ExitCode;

fn main() -> ExitCode {
    let word = std::env::args_os().nth(1).unwrap_or_default();
    sandboxd::server::hidden_main(&word).unwrap_or(ExitCode::FAILURE)
}
