//! Ten seconds of mutated input for all that strangers can send, and planted bugs that the fuzzer must find.
#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests fail as tests do"
)]

mod engine;
mod targets;

use std::time::Duration;

use engine::{Fuzzer, Target, decode, encode, kept};
use ledger::{REDACTED, Redactor, is_telling_key, truncate};
use serde_json::Value;
use targets::{JSON, REDACT, SECRETS, VERIFY, json_with, redact_with, verify_with};

const TIME: Duration = Duration::from_secs(4);
/// Far more runs than any planted bug needed.
const RUNS: u64 = 500_000;

fn finds_nothing(target: Target) {
    assert!(kept(&target).len() >= 5, "only {} inputs are kept for {}", kept(&target).len(), target.name);
    let mut fuzzer = Fuzzer::new(target, 1);
    if let Err(finding) = fuzzer.run(TIME, u64::MAX) {
        panic!("{}; keep this in corpus/{}:\n{}", finding.problem, target.name, encode(&finding.input));
    }
    println!("{}: {} runs, {} inputs", target.name, fuzzer.runs, fuzzer.corpus().len());
    assert!(fuzzer.runs > 100);
}

fn finds(target: Target, problem: &str) {
    let mut fuzzer = Fuzzer::new(target, 2);
    let finding = fuzzer.run(Duration::MAX, RUNS).expect_err("the planted bug was not found");
    assert!(finding.problem.contains(problem), "{finding:?}");
    println!("found after {} runs: {}", fuzzer.runs, finding.problem);
}

#[test]
fn the_json_reader_keeps_its_promises() {
    finds_nothing(JSON);
}

#[test]
fn the_redactor_keeps_its_promises() {
    finds_nothing(REDACT);
}

#[test]
fn the_verifier_keeps_its_promises() {
    finds_nothing(VERIFY);
}

/// Reads as `serde_json` does, which keeps the last of two equal keys and rounds integers.
#[test]
fn a_lenient_reader_is_found() {
    let lenient = |input: &[u8]| json_with(|input| Ok(serde_json::from_slice(input)?), input);
    finds(Target { run: lenient, ..JSON }, "was");
}

/// Looks for the plain spelling only.
#[test]
fn a_redactor_of_plain_text_is_found() {
    let plain = |input: &[u8]| {
        let hide = |text: &str| {
            SECRETS.iter().fold(text.to_owned(), |text, secret| text.replace(secret, "[REDACTED]"))
        };
        let stored = |_: &Value| Value::Null;
        redact_with(hide, stored, input)
    };
    finds(Target { run: plain, ..REDACT }, "a secret is");
}

/// Redacts what stands under a key and not the key.
fn values_only(redactor: &Redactor, value: &Value) -> Value {
    match value {
        Value::Object(entries) => {
            let redact = |(key, value): (&String, &Value)| {
                let hidden = is_telling_key(key);
                (key.clone(), if hidden { REDACTED.into() } else { values_only(redactor, value) })
            };
            entries.iter().map(redact).collect()
        }
        Value::Array(items) => items.iter().map(|item| values_only(redactor, item)).collect(),
        other => redactor.value(other),
    }
}

#[test]
fn a_redactor_that_forgets_keys_is_found() {
    let forgets = |input: &[u8]| {
        let redactor = Redactor::new(SECRETS).unwrap();
        let stored = |value: &Value| truncate(values_only(&redactor, value), 400);
        redact_with(|text| redactor.text(text), stored, input)
    };
    finds(Target { run: forgets, ..REDACT }, "a secret is");
}

/// Forgives carriage returns.
#[test]
fn a_forgiving_verifier_is_found() {
    let forgiving = |input: &[u8]| {
        verify_with(|line| line.iter().copied().filter(|byte| *byte != b'\r').collect(), input)
    };
    finds(Target { run: forgiving, ..VERIFY }, "accepted another");
}

#[test]
fn the_same_seed_does_the_same() {
    let run = |seed| {
        let mut fuzzer = Fuzzer::new(JSON, seed);
        fuzzer.run(Duration::MAX, 1_000).unwrap();
        fuzzer.corpus().to_vec()
    };
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}

#[test]
fn kept_inputs_survive_being_written() {
    for input in [&b"{\"a\":'b'} \r\n\t\0\xff\\x41\\ \r\n\r\n"[..], b"", b"\n\n", b" \n"] {
        assert_eq!(decode(&encode(input)), input, "{}", encode(input));
    }
}
