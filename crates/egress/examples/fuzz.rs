//! Fuzzes the request-head parser for the given seconds: `cargo run --release -p egress --example fuzz -- 3600`. A
//! second argument is the seed. Findings are printed in the format of the corpus files.

#[path = "../tests/fuzz/targets.rs"]
mod targets;

fn main() -> std::process::ExitCode {
    testkit::fuzz::main(&[targets::HEADS])
}
