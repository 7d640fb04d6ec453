//! Fuzzes for as many seconds as it is told: `cargo run --release -p channel --example fuzz 3600`, or with a second
//! number, the case to begin with. `… fuzz record` writes new recordings into the corpus.

#![expect(clippy::unwrap_used, reason = "a tool for developers fails by panicking, as the tests do")]
#![expect(clippy::print_stdout, reason = "its output is what it is for")]

#[path = "../tests/fuzz/campaign.rs"]
mod campaign;
#[path = "../tests/fuzz/live.rs"]
mod live;
#[path = "../tests/fuzz/mutate.rs"]
mod mutate;
#[path = "../tests/fuzz/record.rs"]
mod record;
#[path = "../tests/fuzz/targets.rs"]
mod targets;

use std::process::ExitCode;
use std::time::Duration;

use campaign::Target;
use channel::WINDOW;
use channel::frame::Frame;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|argument| argument == "record") {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.unwrap().block_on(record::record());
        return ExitCode::SUCCESS;
    }
    let number = |at: usize, default: u64| arguments.get(at).map_or(Ok(default), |text| text.parse());
    let (Ok(seconds), Ok(first)) = (number(0, 10), number(1, 0)) else {
        println!("usage: fuzz [SECONDS [FIRST_CASE]] | record");
        return ExitCode::FAILURE;
    };
    if all(Duration::from_secs(seconds) / 3, first) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn all(time: Duration, first: u64) -> bool {
    let targets: [(&str, &str, Target<'_>); 3] = [
        ("decoder", "", &|input, dice| targets::decoder(Frame::decode, input, dice)),
        ("callee", "caller-", &|input, dice| live::callee(WINDOW, input, dice)),
        ("caller", "callee-", &|input, dice| live::caller(WINDOW, input, dice)),
    ];
    let mut clean = true;
    for (name, seeds, target) in targets {
        let corpus = targets::corpus(seeds);
        match campaign::run(&mutate::Mutator::new(&targets::FRAMES, &corpus), target, first, time) {
            Ok(cases) => println!("{name}: {cases} cases, nothing found"),
            Err(finding) => {
                println!("{name}: {}", finding.report());
                clean = false;
            }
        }
    }
    clean
}
