//! Some seconds of mutated policy files, and planted bugs that the fuzzer must find.

#[path = "../../../ledger/tests/fuzz/engine.rs"]
mod engine;
mod targets;

use std::time::Duration;

use engine::{Fuzzer, Target, decode, encode, kept};
use policy::{Files, Policy, PolicyError};
use targets::{POLICY, policy_with};

#[test]
fn policy_files_keep_their_promises() {
    assert!(kept(&POLICY).len() >= 5);
    let mut fuzzer = Fuzzer::new(POLICY, 1);
    if let Err(finding) = fuzzer.run(Duration::from_secs(8), u64::MAX) {
        panic!("{}; keep this in the corpus:\n{}", finding.problem, encode(&finding.input));
    }
    println!("{} runs, {} inputs", fuzzer.runs, fuzzer.corpus().len());
    assert!(fuzzer.runs > 100);
}

/// Forgets to put the line into its message, as a reader without locations does.
fn without_lines(files: Files<'_>) -> Result<Policy, PolicyError> {
    Policy::load(files).map_err(|error| PolicyError { line: error.line * 1000, ..error })
}

/// Takes what stands before an anchor away, as readers do that resolve it.
fn resolves_anchors(files: Files<'_>) -> Result<Policy, PolicyError> {
    let lanes = files.lanes.map(|text| text.replace("&a", ""));
    Policy::load(Files { lanes: lanes.as_deref(), ..files })
}

/// Forgets that letters may have several bytes.
fn panics_at_letters(files: Files<'_>) -> Result<Policy, PolicyError> {
    assert!(files.lanes.is_none_or(str::is_ascii), "the index is inside of a letter");
    Policy::load(files)
}

#[test]
fn planted_bugs_are_found() {
    let found = |run, problem: &str| {
        let mut fuzzer = Fuzzer::new(Target { run, ..POLICY }, 2);
        let finding = fuzzer.run(Duration::MAX, 200_000).expect_err("the planted bug was not found");
        assert!(finding.problem.contains(problem), "{finding:?}");
        println!("found after {} runs: {problem}", fuzzer.runs);
    };
    found(|input| policy_with(without_lines, input), "is not there");
    found(|input| policy_with(resolves_anchors, input), "an anchor was accepted");
    found(|input| policy_with(panics_at_letters, input), "panicked");
}

#[test]
fn kept_inputs_survive_being_written() {
    let input = b"a: 'b'\n\t\xff\\ \n";
    assert_eq!(decode(&encode(input)), input);
}
