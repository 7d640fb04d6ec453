//! A fuzzer for untrusted input. It tries the corpus unchanged, then mutates it; inputs that lead to a new
//! kind of outcome are mutated further. It needs no instrumentation, and the seed determines a run
//! completely.
//!
//! Every target has a corpus, runs for seconds in `make test` and for an hour in `make fuzz`, and has planted
//! bugs that the fuzzer must find.
#![expect(clippy::print_stdout, reason = "tests and the command report their progress")]
#![expect(clippy::panic, clippy::missing_panics_doc, reason = "a finding fails the test by panicking")]

mod corpus;
mod dice;
mod mutate;

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Duration;

use clock::Clock;

pub use corpus::{decode, encode, kept};
pub use dice::Dice;
pub use mutate::{Shape, lines_of};

/// Far more runs than any planted bug has needed.
const PLANTED_RUNS: u64 = 2_000_000;

/// Runs the code on an input and checks the result independently. Returns the shape of the outcome, or the
/// violated invariant. `Dice` decides how the input is fed, for example in which pieces.
pub type Run<'a> = &'a dyn Fn(&[u8], &Dice) -> Result<String, String>;

/// A fuzz target.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    pub name: &'a str,
    pub run: Run<'a>,
    /// Loads the corpus.
    pub corpus: &'a dyn Fn() -> Vec<Vec<u8>>,
    /// Formats an input for the corpus.
    pub write: fn(&[u8]) -> String,
    pub shape: Shape,
}

/// An input that violated an invariant, and which one.
#[derive(Debug)]
pub struct Finding {
    pub input: Vec<u8>,
    pub problem: String,
}

pub struct Fuzzer<'a> {
    target: Target<'a>,
    dice: Dice,
    corpus: Vec<Vec<u8>>,
    shapes: HashSet<String>,
    runs: u64,
}

impl<'a> Fuzzer<'a> {
    pub fn new(target: Target<'a>, seed: u64) -> Self {
        let corpus = (target.corpus)();
        assert!(!corpus.is_empty(), "{}: the corpus is empty", target.name);
        Self { target, dice: Dice::new(seed), corpus, shapes: HashSet::new(), runs: 0 }
    }

    /// Tries every input of the corpus unchanged, then mutations, until `time` has passed or `most` runs are
    /// done.
    pub fn run(&mut self, time: Duration, most: u64) -> Result<(), Finding> {
        let clock = Clock::system();
        for input in self.corpus.clone() {
            self.attempt(&input)?;
        }
        while clock.elapsed() < time && self.runs < most {
            let input = mutate::mutate_input(&self.target.shape, &self.corpus, &self.dice);
            if self.attempt(&input)? {
                self.corpus.push(input);
            }
        }
        Ok(())
    }

    /// The corpus and one input for each new shape of outcome.
    pub fn corpus(&self) -> &[Vec<u8>] {
        &self.corpus
    }

    pub fn runs(&self) -> u64 {
        self.runs
    }

    /// Returns whether the outcome has a new shape. A panic is a finding.
    fn attempt(&mut self, input: &[u8]) -> Result<bool, Finding> {
        self.runs += 1;
        let outcome = catch_unwind(AssertUnwindSafe(|| (self.target.run)(input, &self.dice)));
        let outcome =
            outcome.unwrap_or_else(|panic| Err(format!("the code panicked: {}", panic_message(&*panic))));
        let shape = outcome.map_err(|problem| Finding { input: input.to_vec(), problem })?;
        Ok(self.shapes.insert(shape))
    }

    fn report(&self, found: &Finding) -> String {
        let (name, problem, input) = (self.target.name, &found.problem, (self.target.write)(&found.input));
        format!("{name}: {problem}; add this input to the corpus once the bug is fixed:\n{input}")
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}

/// Fails the test if the fuzzer finds anything within `time`.
pub fn holds(target: Target<'_>, time: Duration) {
    let mut fuzzer = Fuzzer::new(target, 1);
    if let Err(found) = fuzzer.run(time, u64::MAX) {
        panic!("{}", fuzzer.report(&found));
    }
    println!("{}: {} runs, {} inputs", target.name, fuzzer.runs(), fuzzer.corpus().len());
    assert!(fuzzer.runs() > 100, "{}: too slow to find anything", target.name);
}

/// Fails the test unless the fuzzer finds the planted bug.
pub fn finds(target: Target<'_>, problem: &str) {
    let mut fuzzer = Fuzzer::new(target, 2);
    match fuzzer.run(Duration::MAX, PLANTED_RUNS) {
        Ok(()) => panic!("{}: the planted bug was not found: {problem}", target.name),
        Err(found) if found.problem.contains(problem) => {
            println!("{}: found after {} runs: {problem}", target.name, fuzzer.runs());
        }
        Err(found) => panic!("instead of `{problem}`, {}", fuzzer.report(&found)),
    }
}

/// The `main` function of a command that fuzzes for longer than a test may: `fuzz [SECONDS [SEED]]`, with
/// seconds per target.
pub fn main(targets: &[Target<'_>]) -> ExitCode {
    let mut numbers = std::env::args().skip(1).map(|argument| argument.parse::<u64>());
    let (Ok(seconds), Ok(seed)) = (numbers.next().unwrap_or(Ok(10)), numbers.next().unwrap_or(Ok(1))) else {
        println!("usage: fuzz [SECONDS [SEED]]");
        return ExitCode::from(2);
    };
    for target in targets {
        let mut fuzzer = Fuzzer::new(*target, seed);
        let found = fuzzer.run(Duration::from_secs(seconds), u64::MAX);
        println!("{}: {} runs, {} inputs", target.name, fuzzer.runs(), fuzzer.corpus().len());
        if let Err(found) = found {
            println!("{}", fuzzer.report(&found));
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
