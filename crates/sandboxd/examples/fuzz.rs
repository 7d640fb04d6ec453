//! Fuzzes the reader of requests for as many seconds as it is told: `cargo run --release -p sandboxd --example fuzz 3600`.

#![expect(clippy::unwrap_used, reason = "a tool for developers fails by panicking, as the tests do")]
#![expect(clippy::print_stdout, reason = "its output is what it is for")]

#[path = "../../channel/tests/fuzz/campaign.rs"]
mod campaign;
#[path = "../../channel/tests/fuzz/mutate.rs"]
mod mutate;
#[path = "../tests/fuzz/targets.rs"]
mod targets;

use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(10);
    match targets::fuzz(sandboxd::protocol::parse, Duration::from_secs(seconds)) {
        Ok(cases) => {
            println!("requests: {cases} cases, nothing found");
            ExitCode::SUCCESS
        }
        Err(finding) => {
            println!("requests: {}", finding.report());
            ExitCode::FAILURE
        }
    }
}
