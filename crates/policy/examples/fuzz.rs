//! Fuzzes policy files for longer than a test may: `cargo run --release -p policy --example fuzz -- 3600`.
//! A second argument is the seed. What it finds is printed in the form in which the corpus is kept.
#![expect(clippy::print_stdout, reason = "this is a command")]

#[path = "../../ledger/tests/fuzz/engine.rs"]
mod engine;
#[path = "../tests/fuzz/targets.rs"]
mod targets;

use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let mut numbers = std::env::args().skip(1).map(|argument| argument.parse::<u64>());
    let (Ok(seconds), Ok(seed)) = (numbers.next().unwrap_or(Ok(10)), numbers.next().unwrap_or(Ok(1))) else {
        println!("usage: fuzz [SECONDS [SEED]]");
        return ExitCode::from(2);
    };
    let mut fuzzer = engine::Fuzzer::new(targets::POLICY, seed);
    let found = fuzzer.run(Duration::from_secs(seconds), u64::MAX);
    println!("{} runs, {} shapes of input", fuzzer.runs, fuzzer.corpus().len());
    match found {
        Ok(()) => ExitCode::SUCCESS,
        Err(finding) => {
            println!("{}; keep this in the corpus:\n{}", finding.problem, engine::encode(&finding.input));
            ExitCode::FAILURE
        }
    }
}
