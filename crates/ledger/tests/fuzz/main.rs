//! Fuzzes everything that untrusted callers can send, for a few seconds per target, and checks that the
//! fuzzer finds planted bugs.

mod targets;

use std::time::Duration;

use ledger::{REDACTED, Redactor, is_sensitive_key, truncate};
use serde_json::Value;
use targets::{JSON, REDACT, SECRETS, VERIFY, json_with, redact_with, verify_with};
use testkit::fuzz::{Target, finds, holds};

const TIME_PER_TARGET: Duration = Duration::from_secs(4);

#[test]
fn json_parser_upholds_its_invariants() {
    holds(JSON, TIME_PER_TARGET);
}

#[test]
fn redactor_upholds_its_invariants() {
    holds(REDACT, TIME_PER_TARGET);
}

#[test]
fn verifier_upholds_its_invariants() {
    holds(VERIFY, TIME_PER_TARGET);
}

/// Parses like `serde_json`, which keeps the last of two equal keys and rounds integers.
#[test]
fn fuzzer_finds_a_lenient_parser() {
    let lenient = |input: &[u8], _: &_| json_with(|input| Ok(serde_json::from_slice(input)?), input);
    finds(Target { run: &lenient, ..JSON }, "was");
}

/// A planted bug: the redactor searches for the literal secret only.
#[test]
fn fuzzer_finds_a_redactor_of_literal_secrets_only() {
    let plain = |input: &[u8], _: &_| {
        let hide = |text: &str| {
            SECRETS.iter().fold(text.to_owned(), |text, secret| text.replace(secret, "[REDACTED]"))
        };
        let stored = |_: &Value| Value::Null;
        redact_with(hide, stored, input)
    };
    finds(Target { run: &plain, ..REDACT }, "a secret is");
}

/// A planted bug: redacts values but not keys.
fn values_only(redactor: &Redactor, value: &Value) -> Value {
    match value {
        Value::Object(entries) => {
            let redact = |(key, value): (&String, &Value)| {
                let hidden = is_sensitive_key(key);
                (key.clone(), if hidden { REDACTED.into() } else { values_only(redactor, value) })
            };
            entries.iter().map(redact).collect()
        }
        Value::Array(items) => items.iter().map(|item| values_only(redactor, item)).collect(),
        other => redactor.value(other),
    }
}

#[test]
fn fuzzer_finds_a_redactor_that_skips_keys() {
    let forgets = |input: &[u8], _: &_| {
        let redactor = Redactor::new(SECRETS).unwrap();
        let stored = |value: &Value| truncate(values_only(&redactor, value), 400);
        redact_with(|text| redactor.text(text), stored, input)
    };
    finds(Target { run: &forgets, ..REDACT }, "a secret is");
}

/// A planted bug: the verifier ignores carriage returns.
#[test]
fn fuzzer_finds_a_lenient_verifier() {
    let forgiving = |input: &[u8], _: &_| {
        verify_with(|line| line.iter().copied().filter(|byte| *byte != b'\r').collect(), input)
    };
    finds(Target { run: &forgiving, ..VERIFY }, "accepted a different");
}
