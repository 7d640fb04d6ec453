//! What must hold of any bytes that are taken for a request: no panic; a refusal repeats nothing of them; what is
//! accepted was understood as a whole, so that no field was ignored.

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use sandboxd::protocol::{Refusal, Request};
use serde_json::Value;

use crate::campaign::{Finding, run};
use crate::mutate::{Mutator, Shape};

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

pub(crate) fn corpus() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

pub(crate) type Parser = fn(&[u8]) -> Result<Request, Refusal>;

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

pub(crate) fn fuzz(parser: Parser, time: Duration) -> Result<u64, Finding> {
    run(&Mutator::new(&WORDS, &corpus()), &|input, _| holds(parser, input), 0, time)
}
