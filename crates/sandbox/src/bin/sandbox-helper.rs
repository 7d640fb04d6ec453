//! The hidden subcommands as a program of their own, for the tests of this crate.

use std::process::ExitCode;

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("launch") => sandbox::local::launcher_main(),
        Some("broker") => sandbox::local::broker_main(),
        _ => ExitCode::FAILURE,
    }
}
