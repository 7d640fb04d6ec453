//! Ten seconds of mutated input for all that strangers can send, and planted bugs that the fuzzer must find.

mod targets;

use std::time::Duration;

use ledger::{REDACTED, Redactor, is_telling_key, truncate};
use serde_json::Value;
use targets::{JSON, REDACT, SECRETS, VERIFY, json_with, redact_with, verify_with};
use testkit::fuzz::{Target, finds, holds};

const TIME: Duration = Duration::from_secs(4);

#[test]
fn the_json_reader_keeps_its_promises() {
    holds(JSON, TIME);
}

#[test]
fn the_redactor_keeps_its_promises() {
    holds(REDACT, TIME);
}

#[test]
fn the_verifier_keeps_its_promises() {
    holds(VERIFY, TIME);
}

/// Reads as `serde_json` does, which keeps the last of two equal keys and rounds integers.
#[test]
fn a_lenient_reader_is_found() {
    let lenient = |input: &[u8], _: &_| json_with(|input| Ok(serde_json::from_slice(input)?), input);
    finds(Target { run: &lenient, ..JSON }, "was");
}

/// Looks for the plain spelling only.
#[test]
fn a_redactor_of_plain_text_is_found() {
    let plain = |input: &[u8], _: &_| {
        let hide = |text: &str| {
            SECRETS.iter().fold(text.to_owned(), |text, secret| text.replace(secret, "[REDACTED]"))
        };
        let stored = |_: &Value| Value::Null;
        redact_with(hide, stored, input)
    };
    finds(Target { run: &plain, ..REDACT }, "a secret is");
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
    let forgets = |input: &[u8], _: &_| {
        let redactor = Redactor::new(SECRETS).unwrap();
        let stored = |value: &Value| truncate(values_only(&redactor, value), 400);
        redact_with(|text| redactor.text(text), stored, input)
    };
    finds(Target { run: &forgets, ..REDACT }, "a secret is");
}

/// Forgives carriage returns.
#[test]
fn a_forgiving_verifier_is_found() {
    let forgiving = |input: &[u8], _: &_| {
        verify_with(|line| line.iter().copied().filter(|byte| *byte != b'\r').collect(), input)
    };
    finds(Target { run: &forgiving, ..VERIFY }, "accepted another");
}
