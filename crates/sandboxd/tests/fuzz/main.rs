//! Fuzzes the request parser for ten seconds, and checks that the fuzzer finds planted bugs.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as the tests do")]

mod targets;

use std::time::Duration;

use sandboxd::protocol::{Code, OPS, parse};
use serde_json::Value;
use targets::{REQUESTS, corpus};
use testkit::fuzz::Target;

const TIME_PER_TARGET: Duration = Duration::from_secs(10);

#[test]
fn request_parser_survives_fuzzing() {
    testkit::fuzz::holds(REQUESTS, TIME_PER_TARGET);
}

#[test]
fn corpus_covers_every_kind_of_answer() {
    let parsed: Vec<_> = corpus().iter().map(|seed| parse(seed)).collect();
    assert!(parsed.iter().filter(|parsed| parsed.is_ok()).count() >= 10);
    assert!(
        parsed.iter().any(|parsed| parsed.as_ref().is_err_and(|refusal| refusal.code == Code::BadRequest))
    );
}

#[test]
fn every_listed_operation_is_parsed() {
    for op in OPS {
        let refused = parse(format!(r#"{{"op":"{op}","no_such_field":1}}"#).as_bytes()).unwrap_err();
        assert_eq!(refused.code, Code::BadRequest, "{op}");
        assert_eq!(refused.message, format!("the fields of {op} are not valid"));
    }
}

fn finds(parser: targets::Parser, problem: &str) {
    testkit::fuzz::finds(Target { run: &|input, _| targets::holds(parser, input), ..REQUESTS }, problem);
}

#[test]
fn fuzzer_finds_a_refusal_that_quotes_the_request() {
    let parser: targets::Parser = |bytes| {
        serde_json::from_slice(bytes).map_err(|error| {
            let mut refusal = parse(b"").unwrap_err();
            refusal.message = error.to_string();
            refusal
        })
    };
    finds(parser, "the refusal quotes the request");
}

#[test]
fn fuzzer_finds_an_ignored_field() {
    let parser: targets::Parser = |bytes| {
        let Ok(Value::Object(mut request)) = serde_json::from_slice(bytes) else { return parse(bytes) };
        request.remove("most");
        parse(Value::Object(request).to_string().as_bytes())
    };
    finds(parser, "the parser ignored a field");
}
