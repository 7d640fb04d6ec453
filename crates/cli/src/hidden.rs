//! Parts of this program that only the program calls. They run before anything else starts, since a process that
//! changes its user or its namespaces must have one thread, and one inside a sandbox must be small.

use std::io::Write as _;
use std::process::ExitCode;

/// The exit code of a hidden part, if this process was started as one.
pub(crate) fn run() -> Option<ExitCode> {
    let mut words = std::env::args_os().skip(1);
    match words.next()?.to_str()? {
        "sandbox-launcher" => Some(sandbox::local::launcher_main()),
        "sandbox-broker" => Some(sandbox::local::broker_main()),
        "sandboxd" => Some(supervisor(words.next().is_some_and(|word| word == WORKER))),
        _ => None,
    }
}

const WORKER: &str = "--worker";

/// PID 1 inside a sandbox, or its worker.
fn supervisor(is_worker: bool) -> ExitCode {
    let ended =
        if is_worker { sandboxd::inside::worker() } else { sandboxd::inside::init(&["sandboxd", WORKER]) };
    ended.map_or_else(
        |error| {
            let _ = writeln!(std::io::stderr(), "sandboxd: {error}");
            ExitCode::from(2)
        },
        ExitCode::from,
    )
}
