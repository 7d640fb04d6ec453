//! Fuzzes event streams for longer than a test may: `cargo run --release -p opencode --example fuzz -- 3600`.
//! A second argument is the seed. Failing inputs are printed in the format of the corpus files.
#![expect(clippy::unwrap_used, reason = "the invariants are asserted as in a test")]

#[path = "../tests/it/client_invariants.rs"]
mod client_invariants;
#[path = "../tests/fuzz/targets.rs"]
mod targets;

fn main() -> std::process::ExitCode {
    testkit::fuzz::main(&[targets::STREAMS])
}
