//! Seconds of fuzzing of the reader of requests, and the proof that it finds something.
//!
//! What must hold of any bytes: no panic; a refusal repeats nothing of the request; what is accepted was understood
//! as a whole, so that no field was ignored.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as the tests do")]

// The mutator knows no format of its own; the channel's tests are its home until a third user comes.
#[path = "../../../channel/tests/fuzz/campaign.rs"]
mod campaign;
#[path = "../../../channel/tests/fuzz/mutate.rs"]
mod mutate;

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use campaign::{Finding, run};
use mutate::{Mutator, Shape};
use sandboxd::protocol::{Code, OPS, Refusal, Request, parse};
use serde_json::Value;

const TIME: Duration = Duration::from_secs(5);
const SECRET: &str = "hunter2";
const WORDS: Shape = Shape { units: words_of, fields: &[], edges: &[], most: 64 * 1024 };

/// Strings, other words, and single signs.
fn words_of(bytes: &[u8]) -> Vec<Range<usize>> {
    let (mut words, mut start) = (Vec::new(), 0);
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    while start < bytes.len() {
        let rest = &bytes[start..];
        let length = match rest[0] {
            b'"' => rest[1..].iter().position(|byte| *byte == b'"').map_or(rest.len(), |at| at + 2),
            byte if plain(&byte) => rest.iter().position(|byte| !plain(byte)).unwrap_or(rest.len()),
            _ => 1,
        };
        words.push(start..start + length);
        start += length;
    }
    words
}

fn corpus() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

type Parser = fn(&[u8]) -> Result<Request, Refusal>;

fn holds(parser: Parser, input: &[u8]) -> Result<(), String> {
    match parser(input) {
        Err(refusal) => {
            let text = serde_json::to_string(&refusal).map_err(|error| error.to_string())?;
            if text.contains(SECRET) { Err(format!("it repeats the request: {text}")) } else { Ok(()) }
        }
        Ok(request) => {
            let given: Value = serde_json::from_slice(input).map_err(|error| error.to_string())?;
            let taken = serde_json::to_value(&request).map_err(|error| error.to_string())?;
            if !covers(&taken, &given) {
                return Err(format!("it ignored something: {given} became {taken}"));
            }
            parser(taken.to_string().as_bytes())
                .map(drop)
                .map_err(|error| format!("not taken twice: {error}"))
        }
    }
}

/// Whether all that was given was taken. Null is as good as nothing.
fn covers(taken: &Value, given: &Value) -> bool {
    match (taken, given) {
        (Value::Object(taken), Value::Object(given)) => given
            .iter()
            .all(|(key, given)| given.is_null() || taken.get(key).is_some_and(|taken| covers(taken, given))),
        (Value::Array(taken), Value::Array(given)) => {
            taken.len() == given.len() && taken.iter().zip(given).all(|(taken, given)| covers(taken, given))
        }
        (taken, given) => taken == given,
    }
}

fn fuzz(parser: Parser) -> Result<u64, Finding> {
    run(&Mutator::new(&WORDS, &corpus()), &|input, _| holds(parser, input), 0, TIME)
}

#[test]
fn the_reader_of_requests_holds() {
    match fuzz(parse) {
        Ok(cases) => println!("{cases} cases"),
        Err(finding) => panic!("{}\n{}", finding.report(), String::from_utf8_lossy(&finding.input)),
    }
}

#[test]
fn the_corpus_has_every_kind_of_answer() {
    let parsed: Vec<_> = corpus().iter().map(|seed| parse(seed)).collect();
    assert!(parsed.iter().filter(|parsed| parsed.is_ok()).count() >= 10);
    assert!(
        parsed.iter().any(|parsed| parsed.as_ref().is_err_and(|refusal| refusal.code == Code::BadRequest))
    );
}

#[test]
fn every_known_operation_is_one() {
    for op in OPS {
        let refused = parse(format!(r#"{{"op":"{op}","no_such_field":1}}"#).as_bytes()).unwrap_err();
        assert_eq!(refused.code, Code::BadRequest, "{op}");
        assert_eq!(refused.message, format!("not what {op} takes"));
    }
}

#[test]
fn a_planted_refusal_that_repeats_the_request_is_found() {
    let finding = fuzz(|bytes| {
        serde_json::from_slice(bytes).map_err(|error| {
            let mut refusal = parse(b"").unwrap_err();
            refusal.message = error.to_string();
            refusal
        })
    });
    assert!(finding.unwrap_err().what.contains("it repeats the request"));
}

#[test]
fn a_planted_reader_that_ignores_a_field_is_found() {
    let finding = fuzz(|bytes| {
        let Ok(Value::Object(mut request)) = serde_json::from_slice(bytes) else { return parse(bytes) };
        request.remove("most");
        parse(Value::Object(request).to_string().as_bytes())
    });
    assert!(finding.unwrap_err().what.contains("it ignored something"));
}
