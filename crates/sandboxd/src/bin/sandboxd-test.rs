//! The inside as a process of its own, for tests that need one: `proliferate sandboxd` does the same.

use std::io::Write as _;
use std::process::ExitCode;

fn main() -> ExitCode {
    let is_worker = std::env::args().nth(1).is_some_and(|word| word == "--worker");
    let ended = if is_worker { sandboxd::inside::worker() } else { sandboxd::inside::init(&["--worker"]) };
    ended.map_or_else(
        |error| {
            let _ = writeln!(std::io::stderr(), "sandboxd: {error}");
            ExitCode::from(2)
        },
        ExitCode::from,
    )
}
