//! Takes secrets out of everything that is stored, logged or broadcast.
//!
//! Values that are known to be secret go first, however they are spelled; then what stands under a telling key;
//! only then may the result be cut, since a cut secret is no longer found. What a sandbox encodes in a way of its
//! own is beyond this; keeping secrets out of it is what protects them.

mod forms;
mod keys;
mod prose;

use std::fmt;

use aho_corasick::{AhoCorasick, MatchKind};
use serde_json::{Map, Value};

use keys::is_kept;
pub use keys::is_telling_key;

/// What stands where a secret was.
pub const REDACTED: &str = "[REDACTED]";

/// JSON in a string in JSON is opened so many times.
const MAX_OPENED: usize = 4;

/// Knows the secrets of one session or organisation.
#[derive(Clone)]
pub struct Redactor {
    secrets: AhoCorasick,
}

#[derive(Debug, thiserror::Error)]
#[error("there are too many secrets to look for: {0}")]
pub struct RedactorError(#[from] aho_corasick::BuildError);

impl Redactor {
    /// Secrets of fewer than four bytes are not looked for: they would take everything else with them.
    pub fn new<S: AsRef<str>>(secrets: impl IntoIterator<Item = S>) -> Result<Self, RedactorError> {
        let mut forms: Vec<String> =
            secrets.into_iter().flat_map(|secret| forms::of(secret.as_ref())).collect();
        forms.sort();
        forms.dedup();
        // Letters of either case, since hexadecimal digits and header values change theirs on the way.
        let secrets = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .ascii_case_insensitive(true)
            .build(forms)?;
        Ok(Self { secrets })
    }

    /// A text without the secrets it held.
    pub fn text(&self, text: &str) -> String {
        prose::redact(&self.known(text))
    }

    /// A value without the secrets it held, in keys and values, in pairs and in JSON inside of strings.
    pub fn value(&self, value: &Value) -> Value {
        self.redacted(value, MAX_OPENED)
    }

    /// What may be stored of a value: redacted, and then cut to `limit` bytes of JSON.
    pub fn stored(&self, value: &Value, limit: usize) -> Value {
        crate::truncate::truncate(self.value(value), limit)
    }

    fn known(&self, text: &str) -> String {
        let plain = self.spelled_out(text);
        if plain.contains('%') { self.percent_encoded(&plain) } else { plain }
    }

    fn spelled_out(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        self.secrets.replace_all_with(text, &mut out, |_, _, out| {
            out.push_str(REDACTED);
            true
        });
        out
    }

    /// Which letters are percent-encoded differs between libraries, so the secrets are looked for in what the text
    /// stands for.
    fn percent_encoded(&self, text: &str) -> String {
        let (decoded, origins) = percent_decoded(text.as_bytes());
        let (mut out, mut done) = (String::with_capacity(text.len()), 0);
        for found in self.secrets.find_iter(&decoded) {
            let (start, end) = (origins[found.start()], origins[found.end()]);
            out.push_str(text.get(done..start).unwrap_or_default());
            out.push_str(REDACTED);
            done = end;
        }
        out.push_str(text.get(done..).unwrap_or_default());
        out
    }

    fn redacted(&self, value: &Value, openings: usize) -> Value {
        match value {
            Value::Null | Value::Bool(_) => value.clone(),
            Value::Number(number) => match self.known(&number.to_string()) {
                same if same == number.to_string() => value.clone(),
                hidden => Value::String(hidden),
            },
            Value::String(text) => Value::String(self.string(text, openings)),
            Value::Array(items) => match items.as_slice() {
                [Value::String(key), second] if is_telling_key(key) && !is_kept(key, second) => {
                    Value::Array(vec![self.known(key).into(), REDACTED.into()])
                }
                items => items.iter().map(|item| self.redacted(item, openings)).collect(),
            },
            Value::Object(entries) => Value::Object(self.object(entries, openings)),
        }
    }

    fn object(&self, entries: &Map<String, Value>, openings: usize) -> Map<String, Value> {
        let named = keys::names_a_secret(entries);
        let mut out = Map::new();
        for (key, value) in entries {
            let telling = is_telling_key(key) || (named && key.eq_ignore_ascii_case("value"));
            let hidden = telling && !is_kept(key, value);
            let value = if hidden { REDACTED.into() } else { self.redacted(value, openings) };
            let mut key = self.known(key);
            // Two secrets as keys become one; the second must not take the place of the first.
            while out.contains_key(&key) {
                key.push('*');
            }
            out.insert(key, value);
        }
        out
    }

    fn string(&self, text: &str, openings: usize) -> String {
        let inner = match text.trim_start().as_bytes().first() {
            Some(b'{' | b'[' | b'"') if openings > 0 => serde_json::from_str::<Value>(text).ok(),
            _ => None,
        };
        let opened = inner.and_then(|inner| {
            let redacted = self.redacted(&inner, openings - 1);
            (redacted != inner).then(|| redacted.to_string())
        });
        match opened {
            Some(rewritten) => self.known(&rewritten),
            None => self.text(text),
        }
    }
}

/// The automaton would print what it looks for.
impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redactor({} spellings)", self.secrets.patterns_len())
    }
}

/// The bytes that a text stands for, and where each of them began in it; one origin more for the end.
fn percent_decoded(text: &[u8]) -> (Vec<u8>, Vec<usize>) {
    let digit = |at: usize| text.get(at).and_then(|byte| char::from(*byte).to_digit(16));
    let (mut decoded, mut origins, mut at) = (Vec::new(), Vec::new(), 0);
    while at < text.len() {
        origins.push(at);
        match (text[at], digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                decoded.push(u8::try_from(high * 16 + low).unwrap_or_default());
                at += 3;
            }
            (byte, ..) => {
                decoded.push(byte);
                at += 1;
            }
        }
    }
    origins.push(at);
    (decoded, origins)
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
    fn a_known_secret_is_found_however_it_is_spelled() {
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

    #[test]
    fn base64_is_found_wherever_the_secret_stands_in_what_was_encoded() {
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
    fn values_under_telling_keys_go_in_every_arrangement() {
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
    fn secrets_in_keys_numbers_and_escapes_go_too() {
        let redactor = Redactor::new(["hunter2", "12345678"]).unwrap();
        let twice = redactor.value(&json!({"12345678": 1, "hunter2": 2}));
        assert_eq!(twice, json!({"[REDACTED]": 1, "[REDACTED]*": 2}));
        let value = json!({"hunter2": 1, "n": 12_345_678, "s": r#"{"a":"\u0068unter2"}"#});
        let expected = json!({"[REDACTED]": 1, "n": "[REDACTED]", "s": r#"{"a":"[REDACTED]"}"#});
        assert_eq!(redactor.value(&value), expected);
    }

    #[test]
    fn a_redactor_does_not_show_what_it_looks_for() {
        let shown = format!("{:?}", redactor());
        assert!(shown.starts_with("Redactor(") && shown.len() < 40, "{shown}");
    }

    #[test]
    fn nothing_is_cut_before_it_is_redacted() {
        let value = json!(["x".repeat(10), "hunter2", "y".repeat(90)]);
        let stored = redactor().stored(&value, 100).to_string();
        assert!(stored.contains("_truncated") && !stored.contains("hunter"), "{stored}");
    }

    #[test]
    fn without_secrets_only_keys_count_and_short_ones_are_left() {
        let redactor = Redactor::new(["", "a", "abc"]).unwrap();
        assert_eq!(redactor.text("abc a"), "abc a");
        assert_eq!(
            redactor.value(&json!({"secret": "x", "note": "abc"})),
            json!({"secret": REDACTED, "note": "abc"})
        );
    }
}
