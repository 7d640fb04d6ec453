//! Fuzzes for the given number of seconds: `cargo run --release -p channel --example fuzz 3600`; an optional second
//! number is the seed. `… fuzz record` writes new recordings into the corpus.

#![expect(clippy::unwrap_used, reason = "a developer tool may panic, like the tests")]

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
