//! Fuzzes for as many seconds as it is told: `cargo run --release -p channel --example fuzz 3600`, or with a second
//! number, the seed. `… fuzz record` writes new recordings into the corpus.

#![expect(clippy::unwrap_used, reason = "a tool for developers fails by panicking, as the tests do")]

#[path = "../tests/fuzz/live.rs"]
mod live;
#[path = "../tests/fuzz/record.rs"]
mod record;
#[path = "../tests/fuzz/targets.rs"]
mod targets;

use std::process::ExitCode;

fn main() -> ExitCode {
    if std::env::args().nth(1).is_some_and(|argument| argument == "record") {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.unwrap().block_on(record::record());
        return ExitCode::SUCCESS;
    }
    testkit::fuzz::main(&[targets::DECODER, targets::CALLEE, targets::CALLER])
}
