//! Fuzzes for longer than a test may: `cargo run --release -p ledger --example fuzz -- 3600`, seconds for each target.
//! A second argument is the seed. What it finds is printed in the form in which the corpus is kept.

#[path = "../tests/fuzz/targets.rs"]
mod targets;

fn main() -> std::process::ExitCode {
    testkit::fuzz::main(&[targets::JSON, targets::REDACT, targets::VERIFY])
}
