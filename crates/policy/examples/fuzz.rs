//! Fuzzes policy files for longer than a test may: `cargo run --release -p policy --example fuzz -- 3600`. A
//! second argument is the seed. Failing inputs are printed in the format of the corpus files.

#[path = "../tests/fuzz/targets.rs"]
mod targets;

fn main() -> std::process::ExitCode {
    testkit::fuzz::main(&[targets::POLICY])
}
