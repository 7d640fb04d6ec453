//! The provider's helper processes as a program, for the tests of this crate.

use std::process::ExitCode;

fn main() -> ExitCode {
    let word = std::env::args_os().nth(1).unwrap_or_default();
    sandbox::local::hidden_main(&word).unwrap_or(ExitCode::FAILURE)
}
