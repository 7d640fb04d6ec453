//! Fuzzes the request-head parser for longer than a test may: `cargo run --release -p egress --example fuzz -- 3600`.
//! A second argument is the seed. What it finds is printed in the form in which the corpus is kept.

#[path = "../tests/fuzz/targets.rs"]
mod targets;

fn main() -> std::process::ExitCode {
    testkit::fuzz::main(&[targets::HEADS])
}
