//! Fuzzes the reader of requests for as many seconds as it is told: `cargo run --release -p sandboxd --example fuzz 3600`.

#![expect(clippy::unwrap_used, reason = "a tool for developers fails by panicking, as the tests do")]

#[path = "../tests/fuzz/targets.rs"]
mod targets;

fn main() -> std::process::ExitCode {
    testkit::fuzz::main(&[targets::REQUESTS])
}
