//! Removes secrets from everything that is stored, logged or broadcast.
//!
//! Known secret values are replaced first, in every common encoding, also wrapped into lines; then values under sensitive
//! keys.
//! Truncation must come last, because half a secret no longer matches. Nothing here can catch a secret that a
//! sandbox encodes in its own way; the protection against that is to keep secrets out of sandboxes.

mod credential;
mod decode;
mod forms;
mod keys;
mod prose;

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use serde_json::{Map, Value};

pub use credential::credential_parts;
use decode::{decode_json, decode_percent, join_hex, join_lines};
use keys::is_exempt;
pub use keys::is_sensitive_key;

/// The placeholder for a removed secret.
pub const REDACTED: &str = "[REDACTED]";

/// How many levels of JSON inside JSON strings are parsed.
const MAX_NESTED_JSON: usize = 4;
/// How many times the escapes of JSON are decoded in other texts. JSON inside a string of JSON is escaped twice.
const MAX_JSON_ESCAPES: usize = 2;

/// Knows the secrets of one session or organization, and removes them. Cheap to clone.
#[derive(Clone, Default)]
pub struct Redactor {
    /// One automaton for each set of secrets that was combined.
    secrets: Vec<Arc<AhoCorasick>>,
}

#[derive(Debug, thiserror::Error)]
#[error("there are too many secrets to look for: {0}")]
pub struct RedactorError(#[from] aho_corasick::BuildError);

impl Redactor {
    /// Ignores secrets shorter than four bytes: they would match ordinary text everywhere.
    pub fn new<S: AsRef<str>>(secrets: impl IntoIterator<Item = S>) -> Result<Self, RedactorError> {
        let mut forms: Vec<String> =
            secrets.into_iter().flat_map(|secret| forms::encodings(secret.as_ref())).collect();
        forms.sort();
        forms.dedup();
        if forms.is_empty() {
            return Ok(Self::default());
        }
        // Ignore case, because hexadecimal digits and header values change case in transit. A DFA, which would be the
        // default for few patterns, takes a hundred times the memory for a long secret.
        let secrets = AhoCorasick::builder()
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .match_kind(MatchKind::LeftmostLongest)
            .ascii_case_insensitive(true)
            .build(forms)?;
        Ok(Self { secrets: vec![Arc::new(secrets)] })
    }

    /// The redactor that removes the secrets of both.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self { secrets: self.secrets.iter().chain(&other.secrets).cloned().collect() }
    }

    /// Whether there is nothing to look for.
    pub fn is_empty(&self) -> bool {
        self.secrets.is_empty()
    }

    /// How much memory the secrets take.
    pub fn memory(&self) -> usize {
        self.secrets.iter().map(|secrets| secrets.memory_usage()).sum()
    }

    /// Removes known secrets from a text, and nothing that only looks like one.
    pub fn known_in_text(&self, text: &str) -> String {
        self.replace_known(text)
    }

    /// Whether a known secret is in a text.
    pub fn is_known_in(&self, text: &str) -> bool {
        !self.find_known(text.as_bytes()).is_empty()
    }

    /// Removes known secrets from the keys and values of a JSON value, and nothing that only looks like one.
    pub fn known_in_value(&self, value: &Value) -> Value {
        match value {
            _ if self.secrets.is_empty() => value.clone(),
            Value::Null | Value::Bool(_) => value.clone(),
            Value::Number(number) => self.redact_number(number),
            Value::String(text) => Value::String(self.replace_known(text)),
            Value::Array(items) => items.iter().map(|item| self.known_in_value(item)).collect(),
            Value::Object(entries) => {
                let entries = entries.iter().map(|(key, value)| (key, self.known_in_value(value)));
                Value::Object(self.with_redacted_keys(entries))
            }
        }
    }

    /// Removes secrets from a text.
    pub fn text(&self, text: &str) -> String {
        prose::redact(&self.replace_known(text))
    }

    /// Removes secrets from a JSON value: from keys and values, `[key, value]` pairs, and JSON inside
    /// strings.
    pub fn value(&self, value: &Value) -> Value {
        self.redact(value, MAX_NESTED_JSON)
    }

    /// Redacts a value, then truncates it to `limit` bytes of JSON.
    pub fn redact_and_truncate(&self, value: &Value, limit: usize) -> Value {
        crate::truncate::truncate(self.value(value), limit)
    }

    fn replace_known(&self, text: &str) -> String {
        let (mut out, mut done) = (String::with_capacity(text.len()), 0);
        for found in self.find_known(text.as_bytes()) {
            out.push_str(text.get(done..found.start).unwrap_or_default());
            out.push_str(REDACTED);
            done = found.end;
        }
        out.push_str(text.get(done..).unwrap_or_default());
        out
    }

    /// Finds known secrets in a text, also wrapped into lines, percent-encoded, and escaped as in JSON strings.
    pub fn find_known(&self, text: &[u8]) -> Vec<Range<usize>> {
        if self.secrets.is_empty() {
            return Vec::new();
        }
        let mut found = self.find_literal(text);
        if let Some(joined) = join_lines(text) {
            found.extend(joined.sources(&self.find_literal(&joined.bytes)));
            found.extend(joined.sources(&self.find_escaped(&joined.bytes)));
        } else {
            found.extend(self.find_escaped(text));
        }
        merge(found)
    }

    fn find_escaped(&self, text: &[u8]) -> Vec<Range<usize>> {
        let mut found = self.find_json_escaped(text, MAX_JSON_ESCAPES);
        if let Some(decoded) = decode_percent(text) {
            found.extend(decoded.sources(&self.find_literal(&decoded.bytes)));
        }
        found
    }

    fn find_json_escaped(&self, text: &[u8], levels: usize) -> Vec<Range<usize>> {
        let Some(decoded) = (levels > 0).then(|| decode_json(text)).flatten() else { return Vec::new() };
        let mut found = self.find_literal(&decoded.bytes);
        found.extend(self.find_json_escaped(&decoded.bytes, levels - 1));
        decoded.sources(&found).collect()
    }

    fn find_literal(&self, text: &[u8]) -> Vec<Range<usize>> {
        let mut found = self.find_spelled(text);
        if let Some(joined) = join_hex(text) {
            found.extend(joined.sources(&self.find_spelled(&joined.bytes)));
        }
        found
    }

    fn find_spelled(&self, text: &[u8]) -> Vec<Range<usize>> {
        self.secrets.iter().flat_map(|secrets| secrets.find_iter(text)).map(|found| found.range()).collect()
    }

    fn redact(&self, value: &Value, nesting: usize) -> Value {
        match value {
            Value::Null | Value::Bool(_) => value.clone(),
            Value::Number(number) => self.redact_number(number),
            Value::String(text) => Value::String(self.redact_string(text, nesting)),
            Value::Array(items) => match items.as_slice() {
                [Value::String(key), second] if is_sensitive_key(key) && !is_exempt(key, second) => {
                    Value::Array(vec![self.replace_known(key).into(), REDACTED.into()])
                }
                items => items.iter().map(|item| self.redact(item, nesting)).collect(),
            },
            Value::Object(entries) => Value::Object(self.redact_object(entries, nesting)),
        }
    }

    fn redact_number(&self, number: &serde_json::Number) -> Value {
        let text = number.to_string();
        match self.replace_known(&text) {
            same if same == text => Value::Number(number.clone()),
            hidden => Value::String(hidden),
        }
    }

    fn redact_object(&self, entries: &Map<String, Value>, nesting: usize) -> Map<String, Value> {
        let named = keys::names_secret_in_value(entries);
        self.with_redacted_keys(entries.iter().map(|(key, value)| {
            let sensitive = is_sensitive_key(key) || (named && key.eq_ignore_ascii_case("value"));
            let hidden = sensitive && !is_exempt(key, value);
            (key, if hidden { REDACTED.into() } else { self.redact(value, nesting) })
        }))
    }

    fn with_redacted_keys<'a>(
        &self,
        entries: impl Iterator<Item = (&'a String, Value)>,
    ) -> Map<String, Value> {
        let (mut out, mut counts) = (Map::new(), HashMap::<String, u64>::new());
        for (key, value) in entries {
            let redacted = self.replace_known(key);
            let mut unique = redacted.clone();
            // Keys may become equal when they are redacted; keep all entries.
            while out.contains_key(&unique) {
                let count = counts.entry(redacted.clone()).or_insert(1);
                *count += 1;
                unique = format!("{redacted}*{count}");
            }
            out.insert(unique, value);
        }
        out
    }

    fn redact_string(&self, text: &str, nesting: usize) -> String {
        let inner = match text.trim_start().as_bytes().first() {
            Some(b'{' | b'[' | b'"') if nesting > 0 => serde_json::from_str::<Value>(text).ok(),
            _ => None,
        };
        let rewritten = inner.and_then(|inner| {
            let redacted = self.redact(&inner, nesting - 1);
            (redacted != inner).then(|| redacted.to_string())
        });
        match rewritten {
            Some(rewritten) => self.replace_known(&rewritten),
            None => self.text(text),
        }
    }
}

/// Written by hand, because the derived output would print the secrets.
impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let patterns: usize = self.secrets.iter().map(|secrets| secrets.patterns_len()).sum();
        write!(f, "Redactor({patterns} patterns)")
    }
}

/// Overlapping ranges become one.
fn merge(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.sort_unstable_by_key(|range| (range.start, range.end));
    let mut merged: Vec<Range<usize>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start < last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const SECRET: &str = "s3cr3t/va\"lue+1";

    fn redactor() -> Redactor {
        Redactor::new([
            SECRET,
            "hunter2",
            "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0B\n-----END KEY-----\n",
        ])
        .unwrap()
    }

    fn check(text: &str, expected: &str) {
        assert_eq!(redactor().text(text), expected, "{text}");
    }

    #[test]
    fn known_secrets_are_redacted_in_every_encoding() {
        check("a s3cr3t/va\"lue+1 b", "a [REDACTED] b");
        check("S3CR3T/VA\"LUE+1", "[REDACTED]");
        check(r#"{\"s3cr3t/va\"lue+1\"}"#, r#"{\"[REDACTED]\"}"#);
        check(r#"s3cr3t/va\"lue+1 s3cr3t/va\\\"lue+1"#, "[REDACTED] [REDACTED]");
        check("s3cr3t%2Fva%22lue%2B1 s3cr3t%2fva%22lue%2b1", "[REDACTED] [REDACTED]");
        check("%73%33cr3t/va%22lue+1?é=%73%", "[REDACTED]?é=%73%");
        check(&format!("0x{}", hex::encode(SECRET)), "0x[REDACTED]");
        check(&hex::encode_upper("hunter2"), "[REDACTED]");
        check("MIIEvQIBADANBgkqhkiG9w0B", "[REDACTED]");
    }

    /// As `od -An -tx1`, `xxd` and fingerprints print bytes.
    #[test]
    fn secrets_are_redacted_in_hexadecimal_with_separators() {
        let pairs = |between: &str| {
            hex::encode("hunter2")
                .as_bytes()
                .chunks(2)
                .map(|c| str::from_utf8(c).unwrap().to_owned())
                .collect::<Vec<_>>()
                .join(between)
        };
        for between in [" ", ":", "  ", "\n ", "-", ", "] {
            check(&format!(" 0a {} 0b\n", pairs(between)), " 0a [REDACTED] 0b\n");
        }
        check(&pairs(":").to_uppercase(), "[REDACTED]");
        check("6875 6e74 6572 32", "[REDACTED]");
        check(&json!(format!("{}\n", pairs("\n "))).to_string(), "\"[REDACTED]\\n\"");
        check("68 75 6e 74 65 72 33 beef 12:30", "68 75 6e 74 65 72 33 beef 12:30");
    }

    #[test]
    fn secrets_are_redacted_in_base64_at_any_offset() {
        use base64::Engine;
        use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
        for before in ["", "a", "ab", "abc", "user:"] {
            for after in ["", "x", "xy", "?>?>"] {
                for secret in [SECRET, "hunter2"] {
                    let whole = format!("{before}{secret}{after}");
                    for encoded in [STANDARD.encode(&whole), URL_SAFE_NO_PAD.encode(&whole)] {
                        let out = redactor().text(&encoded);
                        assert!(out.contains(REDACTED), "{whole}: {out}");
                    }
                }
            }
        }
    }

    #[test]
    fn values_of_sensitive_keys_are_redacted_in_every_layout() {
        let value = json!({
            "token": "a", "Token": "b", "access_token": "c",
            "nested": [{"API_KEY": "d", "apikey": "e", "x-api-key": "f"}],
            "clientSecret": {"deep": 1}, "Set-Cookie": ["a=b"], "private_key": "p",
            "pairs": [["authorization", "Basic x"], ["accept", "text"]],
            "headers": [{"name": "Authorization", "value": "x"}, {"name": "Accept", "value": "y"}],
            "inner": "{\"password\":\"p\",\"ok\":1}",
            "max_tokens": 100, "password": null,
        });
        let expected = json!({
            "token": REDACTED, "Token": REDACTED, "access_token": REDACTED,
            "nested": [{"API_KEY": REDACTED, "apikey": REDACTED, "x-api-key": REDACTED}],
            "clientSecret": REDACTED, "Set-Cookie": REDACTED, "private_key": REDACTED,
            "pairs": [["authorization", REDACTED], ["accept", "text"]],
            "headers": [{"name": "Authorization", "value": REDACTED}, {"name": "Accept", "value": "y"}],
            "inner": "{\"ok\":1,\"password\":\"[REDACTED]\"}",
            "max_tokens": 100, "password": null,
        });
        assert_eq!(redactor().value(&value), expected);
    }

    #[test]
    fn secrets_in_keys_numbers_and_escapes_are_redacted() {
        let redactor = Redactor::new(["hunter2", "12345678"]).unwrap();
        let twice = redactor.value(&json!({"12345678": 1, "hunter2": 2}));
        assert_eq!(twice, json!({"[REDACTED]": 1, "[REDACTED]*2": 2}));
        let value = json!({"hunter2": 1, "n": 12_345_678, "s": r#"{"a":"\u0068unter2"}"#});
        let expected = json!({"[REDACTED]": 1, "n": "[REDACTED]", "s": r#"{"a":"[REDACTED]"}"#});
        assert_eq!(redactor.value(&value), expected);
    }

    #[test]
    fn combined_redactors_remove_the_secrets_of_both() {
        let both = redactor().and(&Redactor::new(["tops3cret"]).unwrap());
        let encoded = format!("hunter2 tops3cret {} tops%33cret", hex::encode("tops3cret"));
        assert_eq!(both.text(&encoded), "[REDACTED] [REDACTED] [REDACTED] [REDACTED]");
        assert_eq!(redactor().and(&Redactor::default()).text("hunter2"), REDACTED);
    }

    #[test]
    fn known_secrets_are_removed_and_what_only_looks_like_one_is_not() {
        let value = json!({"token": "a", "hunter2": ["hunter2", {"n": 1}], "text": "password=abc hunter2"});
        let expected =
            json!({"token": "a", "[REDACTED]": ["[REDACTED]", {"n": 1}], "text": "password=abc [REDACTED]"});
        assert_eq!(redactor().known_in_value(&value), expected);
        assert_eq!(redactor().known_in_text("token: x, hunter2"), "token: x, [REDACTED]");
    }

    #[test]
    fn debug_output_hides_the_secrets() {
        let shown = format!("{:?}", redactor());
        assert!(shown.starts_with("Redactor(") && shown.len() < 40, "{shown}");
    }

    #[test]
    fn values_are_redacted_before_they_are_truncated() {
        let value = json!(["x".repeat(10), "hunter2", "y".repeat(90)]);
        let stored = redactor().redact_and_truncate(&value, 100).to_string();
        assert!(stored.contains("_truncated") && !stored.contains("hunter"), "{stored}");
    }

    #[test]
    fn short_secrets_are_ignored() {
        let redactor = Redactor::new(["", "a", "abc"]).unwrap();
        assert_eq!(redactor.text("abc a"), "abc a");
        assert_eq!(
            redactor.value(&json!({"secret": "x", "note": "abc"})),
            json!({"secret": REDACTED, "note": "abc"})
        );
    }
}
