//! Canonical JSON (RFC 8785): every value has exactly one text, so that equal requests have equal hashes.

use std::fmt::Write;

use serde_json::{Map, Value};

use crate::number::write_number;
use crate::strict::MAX_SAFE_INTEGER;

/// The parser's own depth limit. Only values that the gateway built itself, by mistake, can be deeper.
const MAX_DEPTH: usize = 128;

/// Why a value has no canonical text. Values from [`parse`](crate::parse) always have one.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CanonicalError {
    #[error("an integer is beyond ±(2^53−1); keep it as a string")]
    UnsafeInteger,
    #[error("the value is nested more than {MAX_DEPTH} levels deep")]
    TooDeep,
}

/// Writes `value` without white space, with keys sorted by UTF-16 code units and numbers formatted as in
/// ECMAScript.
pub fn canonical(value: &Value) -> Result<String, CanonicalError> {
    let mut out = String::new();
    write_value(&mut out, value, 0)?;
    Ok(out)
}

/// Like [`canonical`], but leaves out the top-level fields named in `omitted_keys`. Nested fields are always
/// written.
pub(crate) fn canonical_without(
    object: &Map<String, Value>,
    omitted_keys: &[&str],
) -> Result<String, CanonicalError> {
    let mut out = String::new();
    write_object(&mut out, object, omitted_keys, 0)?;
    Ok(out)
}

fn write_value(out: &mut String, value: &Value, depth: usize) -> Result<(), CanonicalError> {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(number) => write_json_number(out, number)?,
        Value::String(text) => write_string(out, text),
        Value::Array(items) => {
            let depth = increment_depth(depth)?;
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_value(out, item, depth)?;
            }
            out.push(']');
        }
        Value::Object(object) => write_object(out, object, &[], depth)?,
    }
    Ok(())
}

fn write_object(
    out: &mut String,
    object: &Map<String, Value>,
    omitted_keys: &[&str],
    depth: usize,
) -> Result<(), CanonicalError> {
    let depth = increment_depth(depth)?;
    let mut entries: Vec<_> =
        object.iter().filter(|(key, _)| !omitted_keys.contains(&key.as_str())).collect();
    // UTF-8 and UTF-16 order differ only between surrogate pairs and U+E000..U+FFFF.
    entries.sort_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
    out.push('{');
    for (index, (key, value)) in entries.into_iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        write_string(out, key);
        out.push(':');
        write_value(out, value, depth)?;
    }
    out.push('}');
    Ok(())
}

fn increment_depth(depth: usize) -> Result<usize, CanonicalError> {
    if depth < MAX_DEPTH { Ok(depth + 1) } else { Err(CanonicalError::TooDeep) }
}

fn write_json_number(out: &mut String, number: &serde_json::Number) -> Result<(), CanonicalError> {
    let magnitude = number.as_i64().map(i64::unsigned_abs).or_else(|| number.as_u64());
    match (magnitude, number.as_f64()) {
        (Some(magnitude), _) if magnitude > MAX_SAFE_INTEGER => return Err(CanonicalError::UnsafeInteger),
        (Some(_), _) => out.push_str(&number.to_string()),
        (None, float) => write_number(out, float.unwrap_or_default()),
    }
    Ok(())
}

fn write_string(out: &mut String, text: &str) {
    out.push('"');
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\t' => out.push_str("\\t"),
            '\n' => out.push_str("\\n"),
            '\u{c}' => out.push_str("\\f"),
            '\r' => out.push_str("\\r"),
            '\0'..='\u{1f}' => {
                // Writing into a string cannot fail.
                let _ = write!(out, "\\u{:04x}", u32::from(letter));
            }
            _ => out.push(letter),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::parse;

    fn check(input: &str, expected: &str) {
        assert_eq!(canonical(&parse(input.as_bytes()).unwrap()).unwrap(), expected, "{input}");
    }

    /// The test vectors published with RFC 8785.
    #[test]
    fn matches_rfc_8785_test_vectors() {
        check(r#"[56,{"d":true,"10":null,"1":[]}]"#, r#"[56,{"1":[],"10":null,"d":true}]"#);
        check(
            "{\"peach\":\"This sorting order\",\"péché\":\"is wrong according to French\",\n \"pêche\":\"but canonicalization MUST\",\"sin\":   \"ingnore locale\"}",
            "{\"peach\":\"This sorting order\",\"péché\":\"is wrong according to French\",\"pêche\":\"but canonicalization MUST\",\"sin\":\"ingnore locale\"}",
        );
        check(
            r#"{"1":{"f":{"f":"hi","F":5} ,"\n":56.0},"10":{ },"":"empty","a":{ },"111":[ { } ],"A":{ }}"#,
            r#"{"":"empty","1":{"\n":56,"f":{"F":5,"f":"hi"}},"10":{},"111":[{}],"A":{},"a":{}}"#,
        );
        check(r#"{"Unnormalized Unicode":"A\u030a"}"#, "{\"Unnormalized Unicode\":\"A\u{30a}\"}");
        check(
            r#"{"numbers":[333333333.33333329,1E30,4.50,2e-3,0.000000000000000000000000001],"string":"\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/","literals":[null,true,false]}"#,
            r#"{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}"#,
        );
        check(
            r#"{"\u20ac":"Euro Sign","\r":"Carriage Return","\ufb33":"Hebrew Letter Dalet With Dagesh","1":"One","\ud83d\ude00":"Emoji: Grinning Face","\u0080":"Control","\u00f6":"Latin Small Letter O With Diaeresis"}"#,
            "{\"\\r\":\"Carriage Return\",\"1\":\"One\",\"\u{80}\":\"Control\",\"ö\":\"Latin Small Letter O With Diaeresis\",\"€\":\"Euro Sign\",\"😀\":\"Emoji: Grinning Face\",\"\u{fb33}\":\"Hebrew Letter Dalet With Dagesh\"}",
        );
    }

    #[test]
    fn unsafe_integers_and_deep_nesting_have_no_canonical_form() {
        assert_eq!(canonical(&json!(1_u64 << 53)), Err(CanonicalError::UnsafeInteger));
        assert_eq!(canonical(&json!([i64::MIN])), Err(CanonicalError::UnsafeInteger));
        let deep = (0..200).fold(json!(1), |inner, _| json!([inner]));
        assert_eq!(canonical(&deep), Err(CanonicalError::TooDeep));
    }

    #[test]
    fn every_accepted_value_has_a_canonical_form() {
        let deep = ["[".repeat(127), "]".repeat(127)].concat();
        check(&deep, &deep);
        check("[-0, -0.0, 0, 1e21]", "[0,0,0,1e+21]");
    }
}
