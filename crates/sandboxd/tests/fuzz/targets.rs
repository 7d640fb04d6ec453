//! The invariants of the request parser for any input: it does not panic, a refusal quotes nothing of the input,
//! and no field of an accepted request was ignored.

use std::ops::Range;
use std::path::Path;

use sandboxd::protocol::{Refusal, Request};
use serde_json::Value;

use testkit::fuzz::{Shape, Target};

const SECRET: &str = "hunter2";

pub(crate) const REQUESTS: Target<'_> = Target {
    name: "requests",
    run: &|input, _| holds(sandboxd::protocol::parse, input),
    corpus: &corpus,
    write: |input| String::from_utf8_lossy(input).into_owned(),
    shape: Shape { units: words_of, ..Shape::text(&[], 64 * 1024) },
};

/// Splits the input into strings, words and single characters.
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
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut paths: Vec<_> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

pub(crate) type Parser = fn(&[u8]) -> Result<Request, Refusal>;

pub(crate) fn holds(parser: Parser, input: &[u8]) -> Result<String, String> {
    match parser(input) {
        Err(refusal) => {
            let text = serde_json::to_string(&refusal).map_err(|error| error.to_string())?;
            if text.contains(SECRET) {
                return Err(format!("the refusal quotes the request: {text}"));
            }
            Ok(format!("{:?} {}", refusal.code, refusal.message))
        }
        Ok(request) => {
            let given: Value = serde_json::from_slice(input).map_err(|error| error.to_string())?;
            let taken = serde_json::to_value(&request).map_err(|error| error.to_string())?;
            if !covers(&taken, &given) {
                return Err(format!("the parser ignored a field: {given} became {taken}"));
            }
            let again = parser(taken.to_string().as_bytes());
            again.map_err(|error| format!("the encoded request is not accepted: {error}"))?;
            Ok(format!("taken: {}", taken["op"]))
        }
    }
}

/// Whether everything in `given` is also in `taken`. Null counts as absent.
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
