//! Rejects JSON that two parsers may understand differently, before anything is hashed or decided.
//!
//! `serde_json` keeps the last of two equal keys and rounds large numbers. Two different requests would then
//! have the same hash, and a check could read one value while the effect uses another.

use std::collections::HashSet;
use std::fmt;

use serde::de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::number::Decimal;

/// The largest integer that every JSON parser represents exactly: 2^53 − 1.
pub(crate) const MAX_SAFE_INTEGER: u64 = (1 << 53) - 1;
const MAX_SAFE_DOUBLE: f64 = 9_007_199_254_740_991.0;
/// From here on, canonical JSON writes numbers with an exponent, so they no longer look like integers.
const MIN_EXPONENT_NOTATION: f64 = 1e21;

/// Why a body is rejected. The message is safe to show, because it never repeats a value of the body.
#[derive(Debug, thiserror::Error)]
pub enum StrictError {
    #[error("not valid JSON: {0}")]
    Invalid(#[from] serde_json::Error),
    #[error("the number at byte {at} is beyond ±(2^53−1), where JSON parsers round; send it as a string")]
    UnsafeInteger { at: usize },
}

/// Checks that `body` is one JSON value with unique keys and safe numbers.
pub fn check(body: &[u8]) -> Result<(), StrictError> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    UniqueKeys.deserialize(&mut reader)?;
    reader.end()?;
    match first_unsafe_integer(body) {
        Some(at) => Err(StrictError::UnsafeInteger { at }),
        None => Ok(()),
    }
}

/// Parses what [`check`] accepts. Minus zero becomes zero: both have the same canonical form and thus the
/// same hash, but a tool could tell them apart.
pub fn parse(body: &[u8]) -> Result<Value, StrictError> {
    check(body)?;
    let mut value = serde_json::from_slice(body)?;
    drop_minus_zero(&mut value);
    Ok(value)
}

fn drop_minus_zero(value: &mut Value) {
    match value {
        Value::Number(number) if number.as_f64() == Some(0.0) => *number = 0.into(),
        Value::Array(items) => items.iter_mut().for_each(drop_minus_zero),
        Value::Object(entries) => entries.values_mut().for_each(drop_minus_zero),
        _ => {}
    }
}

/// Walks a value without storing it, and fails on a duplicate key.
struct UniqueKeys;

impl<'de> DeserializeSeed<'de> for UniqueKeys {
    type Value = ();
    fn deserialize<D: de::Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for UniqueKeys {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }
    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }
    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }
    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }
    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(Self)?.is_some() {}
        Ok(())
    }
    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let mut seen = HashSet::new();
        while let Some(key) = entries.next_key::<String>()? {
            if !seen.insert(key) {
                return Err(de::Error::custom("an object has the same key twice"));
            }
            entries.next_value_seed(Self)?;
        }
        Ok(())
    }
}

/// The offset of the first number that a double cannot represent exactly. Scans the text, because after
/// parsing an integer beyond 64 bits looks like any other float. `body` must be valid JSON.
fn first_unsafe_integer(body: &[u8]) -> Option<usize> {
    let mut at = 0;
    while at < body.len() {
        match body[at] {
            b'"' => at = string_end(body, at),
            b'-' | b'0'..=b'9' => {
                let end = at + body[at..].iter().take_while(|b| is_number_byte(**b)).count();
                if !is_safe(&body[at..end]) {
                    return Some(at);
                }
                at = end;
            }
            _ => at += 1,
        }
    }
    None
}

/// The offset after the closing quote of the string that starts at `start`.
fn string_end(body: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < body.len() && body[at] != b'"' {
        at += if body[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}

fn is_number_byte(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E')
}

/// Beyond 2^53, neighbouring integers are rounded to the same double. A number that the canonical form would
/// write as an integer must therefore be within the safe range, in whatever notation it is sent. A larger
/// number must be exactly the decimal that its double prints as; otherwise two numbers would have the same
/// hash.
fn is_safe(number: &[u8]) -> bool {
    let Ok(text) = str::from_utf8(number.strip_prefix(b"-").unwrap_or(number)) else { return false };
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse::<u64>().is_ok_and(|n| n <= MAX_SAFE_INTEGER);
    }
    let Ok(double) = text.parse::<f64>() else { return false };
    double <= MAX_SAFE_DOUBLE
        || (double >= MIN_EXPONENT_NOTATION
            && Decimal::parse(text) == Decimal::parse(&Value::from(double).to_string()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::{canonical, payload_hash};

    /// Values that contain what canonicalization commonly gets wrong.
    fn values() -> impl Strategy<Value = Value> {
        let texts = prop_oneof![
            "[a-c\\PC]{0,4}",
            Just("\u{e000}\u{10000}\"\\\u{1f}\u{7f}".to_owned()),
            Just("1".to_owned()),
            Just("null".to_owned())
        ];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (-(1_i64 << 53) + 1..1 << 53).prop_map(Value::from),
            any::<f64>()
                .prop_filter("safe", |f| f.abs() <= MAX_SAFE_DOUBLE || f.abs() >= MIN_EXPONENT_NOTATION)
                .prop_map(Value::from),
            texts.clone().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 5, move |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map(texts.clone(), inner, 0..4)
                    .prop_map(|map| map.into_iter().collect()),
            ]
        })
    }

    /// The value as `parse` returns it: floats without a fraction and integers are the same number.
    fn normalize(value: &Value) -> Value {
        parse(canonical(value).unwrap().as_bytes()).unwrap()
    }

    /// A similar value that a careless canonical form could confuse with `value`.
    fn similar_value(value: Value, seed: u64) -> Value {
        match value {
            Value::String(text) if seed.is_multiple_of(3) => {
                text.parse::<i32>().map_or(Value::Null, Value::from)
            }
            Value::String(text) => json!(text + "\u{301}"),
            Value::Array(items) if seed.is_multiple_of(2) => json!([items]),
            Value::Array(mut items) => {
                items.reverse();
                Value::Array(items)
            }
            Value::Object(map) => {
                map.into_iter().map(|(key, value)| (key, similar_value(value, seed / 2))).collect()
            }
            other => Value::String(other.to_string()),
        }
    }

    #[test]
    fn minus_zero_becomes_zero_and_overflow_is_rejected() {
        assert_eq!(parse(b"[-0,-0.0,-0e9]").unwrap(), json!([0, 0, 0]));
        for text in ["1e400", "-1e400", "NaN", "Infinity"] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
        assert_ne!(
            payload_hash(&parse(b"0.1").unwrap()),
            payload_hash(&parse(b"0.10000000000000002").unwrap())
        );
    }

    fn verdict(text: &str) -> String {
        check(text.as_bytes()).map_or_else(|e| e.to_string(), |()| "ok".to_owned())
    }

    #[test]
    fn unambiguous_json_is_accepted() {
        for text in [
            "{}",
            "[1,-1,0]",
            r#"{"a":{"a":1},"b":[{"a":1},{"a":2}]}"#,
            "9007199254740991",
            "-9007199254740991",
            "1e300",
            "6.022e23",
            "-1E21",
            "1.5",
            "9007199254740991.0",
            "0.1000000000000000055511151231257827",
            r#"{"n":"9007199254740993"}"#,
            r#"{"quote \" 99999999999999999999":1}"#,
        ] {
            assert_eq!(verdict(text), "ok", "{text}");
        }
    }

    #[test]
    fn duplicate_keys_are_rejected_in_any_escaping() {
        for text in [r#"{"a":1,"a":1}"#, r#"{"a":1,"\u0061":2}"#, r#"[{"x":{"k":1,"k":null}}]"#] {
            assert!(verdict(text).contains("same key twice"), "{text}: {}", verdict(text));
        }
    }

    #[test]
    fn unsafe_integers_are_rejected_in_every_notation() {
        for text in [
            "9007199254740992",
            "[-9007199254740993]",
            r#"{"n":123456789012345678901234567890}"#,
            "9007199254740993.0",
            "9007199254740992.0",
            "-9007199254740993e0",
            "90071992547409930e-1",
            "9.007199254740993E+15",
            "9007199254740992.5",
            "1e16",
            "1234567890123456789.0",
            // Its double is printed as 1e+30.
            "1000000000000000019884624838656.0",
            "1.00000000000000000000001e30",
        ] {
            assert!(verdict(text).contains("2^53"), "{text}: {}", verdict(text));
        }
    }

    #[test]
    fn malformed_json_is_rejected_without_echoing_it() {
        for text in ["", "{", "[1,]", "1 2", "\"\u{1}\"", r#""\ud800""#, &"[".repeat(200)] {
            assert!(verdict(text).starts_with("not valid JSON"), "{text}");
        }
        assert!(!verdict(r#"{"password":"hunter2",}"#).contains("hunter2"));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = check(&bytes);
        }

        #[test]
        fn canonical_form_round_trips(value in values()) {
            let text = canonical(&value).unwrap();
            prop_assert_eq!(&canonical(&parse(text.as_bytes()).unwrap()).unwrap(), &text);
            let spread = serde_json::to_string_pretty(&value).unwrap();
            prop_assert_eq!(canonical(&parse(spread.as_bytes()).unwrap()).unwrap(), text);
        }

        /// Two texts with the same hash may differ only in white space, key order and escaping.
        #[test]
        fn different_requests_have_different_hashes(a in values(), b in values(), seed in any::<u64>()) {
            let (a, b) = (normalize(&a), normalize(&b));
            prop_assert_eq!(payload_hash(&json!([a])) == payload_hash(&json!([b])), a == b);
            let similar = similar_value(a.clone(), seed);
            prop_assert_eq!(payload_hash(&json!([a])) == payload_hash(&json!([similar])), a == similar);
        }

        #[test]
        fn integers_are_accepted_exactly_within_the_safe_range(n in any::<i64>()) {
            prop_assert_eq!(check(n.to_string().as_bytes()).is_ok(), n.unsigned_abs() <= MAX_SAFE_INTEGER);
        }
    }
}
