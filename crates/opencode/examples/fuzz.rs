//! Breaks streams of events for longer than a test may: `cargo run --release -p opencode --example fuzz -- 3600`.
//! A second argument is the seed. What it finds is printed in the form in which the corpus is kept.
#![expect(clippy::print_stdout, reason = "this is a command")]
#![expect(clippy::unwrap_used, reason = "the promises are checked as in a test")]

#[path = "../tests/fuzz/engine.rs"]
mod engine;
#[path = "../tests/it/promises.rs"]
mod promises;

use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let mut numbers = std::env::args().skip(1).map(|argument| argument.parse::<u64>());
    let (Ok(seconds), Ok(seed)) = (numbers.next().unwrap_or(Ok(10)), numbers.next().unwrap_or(Ok(1))) else {
        println!("usage: fuzz [SECONDS [SEED]]");
        return ExitCode::from(2);
    };
    let mut fuzzer = engine::Fuzzer::new(engine::ours, engine::untouched, seed);
    let found = fuzzer.run(Duration::from_secs(seconds), u64::MAX);
    println!("{} runs", fuzzer.runs);
    match found {
        Ok(()) => ExitCode::SUCCESS,
        Err(finding) => {
            println!("{}; keep this in the corpus:\n{}", finding.problem, engine::fold(&finding.input));
            ExitCode::FAILURE
        }
    }
}
