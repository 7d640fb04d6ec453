//! What untrusted callers can send to this crate, and the invariants that hold for any input.

use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use ledger::{
    Checkpoint, REDACTED, Redactor, StrictError, Verifier, canonical, check, is_sensitive_key, parse,
    truncate,
};
use serde_json::Value;
use testkit::fuzz::{Shape, Target, decode, encode, kept};

macro_rules! corpus {
    ($name:literal) => {
        &|| kept(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/", $name))
    };
}

const MAX_INPUT_BYTES: usize = 8192;

pub(crate) const JSON: Target<'_> = Target {
    name: "json",
    run: &|input, _| json_with(parse, input),
    corpus: corpus!("json"),
    write: encode,
    shape: Shape::text(
        &[
            "{",
            "}",
            "[",
            "]",
            ",",
            ":",
            "\"",
            "\\",
            "\"a\":1",
            "\"a\":",
            "\"\\u0061\":",
            "-",
            "-0",
            "0",
            "1e400",
            "1E5",
            "9007199254740993",
            "-9007199254740993",
            "9007199254740993.0",
            "1e30",
            "0.1",
            "\\ud800",
            "\\udc00",
            "\\u0000",
            "null",
            "true",
            "\u{feff}",
            " ",
            "\t",
            "é",
            "\u{10000}",
            "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
            ".",
            "e",
        ],
        MAX_INPUT_BYTES,
    ),
};

/// Checks any parser with the signature of [`parse`]; the tests plant bugs here.
pub(crate) fn json_with(
    read: fn(&[u8]) -> Result<Value, StrictError>,
    input: &[u8],
) -> Result<String, String> {
    let read = read(input);
    if read.is_ok() != check(input).is_ok() && check(input).is_ok() {
        return Err("the parser rejected valid input".to_owned());
    }
    let value = match read {
        Err(StrictError::Invalid(error)) => {
            return Ok(format!("{:?} {}", error.classify(), error.column().min(12)));
        }
        Err(StrictError::UnsafeInteger { at }) => return Ok(format!("integer {}", at.min(20))),
        Ok(value) => value,
    };
    let outside = outside_strings(input);
    if outside.split(|byte| *byte == b':').count() - 1 != entries(&value) {
        return Err("a key was lost".to_owned());
    }
    if numbers(&outside).any(|number| number.parse::<i128>().is_ok_and(|n| n.unsigned_abs() >= 1 << 53)) {
        return Err("an integer was rounded".to_owned());
    }
    let text = canonical(&value).map_err(|error| error.to_string())?;
    match parse(text.as_bytes()) {
        Ok(again) if canonical(&again).as_ref() == Ok(&text) => Ok(shape(&value, 3)),
        other => Err(format!("the canonical text parses to another value: {other:?}")),
    }
}

fn outside_strings(input: &[u8]) -> Vec<u8> {
    let (mut inside, mut escaped, mut out) = (false, false, Vec::new());
    for byte in input {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if inside => escaped = true,
            b'"' => inside = !inside,
            _ if inside => {}
            other => out.push(*other),
        }
    }
    out
}

fn numbers(outside: &[u8]) -> impl Iterator<Item = &str> {
    let ends =
        |byte: &u8| matches!(byte, b'[' | b']' | b'{' | b'}' | b',' | b':' | b' ' | b'\t' | b'\n' | b'\r');
    outside.split(ends).filter_map(|piece| str::from_utf8(piece).ok())
}

fn entries(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.iter().map(entries).sum(),
        Value::Object(object) => object.len() + object.values().map(entries).sum::<usize>(),
        _ => 0,
    }
}

fn shape(value: &Value, depth: usize) -> String {
    match value {
        Value::Array(items) if depth > 0 => {
            format!("[{}]", items.iter().take(3).map(|item| shape(item, depth - 1)).collect::<String>())
        }
        Value::Object(object) if depth > 0 => {
            format!("{{{}}}", object.values().take(3).map(|item| shape(item, depth - 1)).collect::<String>())
        }
        Value::String(_) => "s".to_owned(),
        Value::Number(number) => if number.is_f64() { "f" } else { "i" }.to_owned(),
        Value::Null => "n".to_owned(),
        _ => "x".to_owned(),
    }
}

pub(crate) const SECRETS: [&str; 3] =
    ["zq7-Canary/Value+9", "kx\"quoted\\secret", "lines-of-a-secret\nsecond-secret-line"];

pub(crate) const REDACT: Target<'_> = Target {
    name: "redact",
    run: &|input, _| {
        static REDACTOR: LazyLock<Option<Redactor>> = LazyLock::new(|| Redactor::new(SECRETS).ok());
        let redactor = REDACTOR.as_ref().ok_or("there is no redactor")?;
        redact_with(|text| redactor.text(text), |value| redactor.redact_and_truncate(value, 400), input)
    },
    corpus: corpus!("redact"),
    write: encode,
    shape: Shape::text(
        &[
            "zq7-Canary/Value+9",
            "ZQ7-CANARY/VALUE+9",
            "zq7-Canary%2FValue%2B9",
            "zq7-canary%2fvalue%2b9",
            "enE3LUNhbmFyeS9WYWx1ZSs5",
            "7a71372d43616e6172792f56616c75652b39",
            "7A71372D43616E6172792F56616C75652B39",
            "enE3LUNhbmFy\neS9WYWx1ZSs5",
            "7a71372d43616e61\r\n72792f56616c75652b39",
            "zq7-Canary\\/Value+9",
            "\n",
            "kx\"quoted\\secret",
            "kx\\\"quoted\\\\secret",
            "kx\\\\\\\"quoted\\\\\\\\secret",
            "second-secret-line",
            "{",
            "}",
            "[",
            "]",
            "\"",
            ":",
            ",",
            "\\",
            "\\u006b",
            "password=",
            "token: ",
            "\"apiKey\":",
            "Bearer ",
            "://u:",
            "@",
            "[\"secret\",",
            "\"name\":\"cookie\",\"value\":",
            "é",
            " ",
            "=",
            "'",
            "[REDACTED]",
            "x",
            "plk_",
        ],
        MAX_INPUT_BYTES,
    ),
};

/// Checks any redactor; the tests plant bugs here.
pub(crate) fn redact_with(
    text: impl Fn(&str) -> String,
    stored: impl Fn(&Value) -> Value,
    input: &[u8],
) -> Result<String, String> {
    let before = String::from_utf8_lossy(input);
    let after = text(&before);
    no_secret_in(&after)?;
    let mut found = format!("{} {}", after.matches(REDACTED).count().min(4), before.len().min(64) / 16);
    if let Ok(value) = serde_json::from_slice::<Value>(input) {
        let after = stored(&value);
        let text = after.to_string();
        if truncate(after.clone(), 400) != after {
            return Err("the truncated result is too large".to_owned());
        }
        strings_hold_no_secret(&after)?;
        found = format!("{found} {} {}", text.matches(REDACTED).count().min(4), shape(&after, 2));
    }
    Ok(found)
}

/// An independent check that decodes the text, so that it does not depend on which encodings the redactor
/// knows.
fn no_secret_in(text: &str) -> Result<(), String> {
    no_secret_in_line(text)?;
    no_secret_in_line(&text.replace(['\r', '\n'], ""))
}

fn no_secret_in_line(text: &str) -> Result<(), String> {
    let lower = text.to_lowercase();
    for secret in SECRETS.map(str::to_lowercase) {
        if lower.contains(&secret) || lower.contains(&hex::encode(SECRETS[0])) {
            return Err(format!("a secret is in {text:?}"));
        }
    }
    let is_base64 = |c: char| c.is_ascii_alphanumeric() || c == '+' || c == '/';
    for run in text.split(|c| !is_base64(c)) {
        for start in 0..4.min(run.len()) {
            let aligned = &run[start..start + (run.len() - start) / 4 * 4];
            let decoded = STANDARD_NO_PAD.decode(aligned).unwrap_or_default();
            if String::from_utf8_lossy(&decoded).contains(SECRETS[0]) {
                return Err(format!("a secret is in base64 in {text:?}"));
            }
        }
    }
    let decoded = percent_encoding::percent_decode_str(text).decode_utf8_lossy();
    let leaked = decoded.contains(SECRETS[0]);
    if leaked { Err(format!("a secret is percent-encoded in {text:?}")) } else { Ok(()) }
}

fn strings_hold_no_secret(value: &Value) -> Result<(), String> {
    match value {
        Value::String(text) => no_secret_in(text),
        Value::Array(items) => items.iter().try_for_each(strings_hold_no_secret),
        Value::Object(object) => object.iter().try_for_each(|(key, value)| {
            no_secret_in(key)?;
            let leaked = value.as_str().is_some_and(|text| text != REDACTED);
            if is_sensitive_key(key) && leaked {
                return Err(format!("the value of {key:?} is not redacted"));
            }
            strings_hold_no_secret(value)
        }),
        _ => Ok(()),
    }
}

pub(crate) const VERIFY: Target<'_> = Target {
    name: "verify",
    run: &|input, _| verify_with(<[u8]>::to_vec, input),
    corpus: corpus!("verify"),
    write: encode,
    shape: Shape::text(
        &[
            "{",
            "}",
            "\n",
            "\"",
            ":",
            ",",
            " ",
            "\"chain\":\"system\"",
            "\"position\":0",
            "\"position\":1",
            "\"sequence\":0",
            "\"sequence\":18446744073709551615",
            "\"record\":{}",
            "\"record\":",
            "0",
            "9",
            "a",
            "null",
            "\\u0061",
            "-1",
            "\"notes\":null,",
            "\"action_type\":\"system\"",
            "\"audit_signing_key\"",
            "\u{feff}",
            "\r",
        ],
        MAX_INPUT_BYTES,
    ),
};

/// Only the exact ledger of the corpus may match its checkpoint. `prepare` is where the tests plant bugs.
pub(crate) fn verify_with(prepare: fn(&[u8]) -> Vec<u8>, input: &[u8]) -> Result<String, String> {
    let original = decode(include_str!("../../corpus/verify/a-whole.txt"));
    let checkpoint =
        Checkpoint::parse_all(include_str!("../fixtures/checkpoint.txt")).map_err(|e| e.to_string())?;
    let mut verifier = Verifier::new(checkpoint, None);
    let lines: Vec<_> = input.strip_suffix(b"\n").unwrap_or(input).split(|byte| *byte == b'\n').collect();
    let pushed = lines.iter().try_for_each(|line| verifier.push(&prepare(line)));
    if let Err(fault) = pushed.and_then(|()| verifier.finish()) {
        let elsewhere = fault.first_bad_record().is_some_and(|first| first > lines.len() as u64);
        let shape = fault.to_string().chars().filter(|c| !c.is_ascii_hexdigit()).collect();
        return if elsewhere {
            Err("the fault names a record that does not exist".to_owned())
        } else {
            Ok(shape)
        };
    }
    let ends = |bytes: &[u8]| bytes.strip_suffix(b"\n").unwrap_or(bytes).to_vec();
    if ends(input) == ends(&original) {
        Ok("intact".to_owned())
    } else {
        Err("the verifier accepted a different ledger".to_owned())
    }
}
