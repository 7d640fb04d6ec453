//! Breaks streams of events for longer than a test may: `cargo run --release -p opencode --example fuzz -- 3600`.
//! A second argument is the seed. What it finds is printed in the form in which the corpus is kept.
#![expect(clippy::unwrap_used, reason = "the promises are checked as in a test")]

#[path = "../tests/it/promises.rs"]
mod promises;
#[path = "../tests/fuzz/targets.rs"]
mod targets;

fn main() -> std::process::ExitCode {
    testkit::fuzz::main(&[targets::STREAMS])
}
