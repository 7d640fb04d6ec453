//! Fuzzes the request parser for the given number of seconds: `cargo run --release -p sandboxd --example fuzz
//! 3600`.

#![expect(clippy::unwrap_used, reason = "a developer tool may panic, like the tests")]

#[path = "../tests/fuzz/targets.rs"]
mod targets;

fn main() -> std::process::ExitCode {
    testkit::fuzz::main(&[targets::REQUESTS])
}
