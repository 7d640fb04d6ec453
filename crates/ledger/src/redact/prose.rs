//! Finds secrets in plain text by their context: `password=…`, `Authorization: Bearer …`,
//! `https://user:pass@…`. Also finds our own credentials by their prefix, because we store only hashes of
//! them and cannot look them up.

use super::REDACTED;
use super::keys::{is_sensitive_key, is_token_count};

/// Prefixes of our own credentials.
const OWN_PREFIXES: [&str; 5] = ["plk_", "pls_", "plt_", "pll_", "plc_"];
const OWN_MIN_LENGTH: usize = 16;
const SCHEMES: [&str; 3] = ["bearer", "basic", "token"];

pub(super) fn redact(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let word = leading(rest, is_word);
        if word.is_empty() {
            if let Some(after) = redact_user_info(&mut out, rest) {
                rest = after;
            } else {
                out.push(first);
                rest = &rest[first.len_utf8()..];
            }
            continue;
        }
        rest = &rest[word.len()..];
        if is_own_credential(word) {
            out.push_str(REDACTED);
            continue;
        }
        out.push_str(word);
        if SCHEMES[..2].iter().any(|scheme| word.eq_ignore_ascii_case(scheme)) {
            rest = redact_credential(&mut out, rest);
        } else if is_sensitive_key(word) {
            rest = redact_assignment(&mut out, word, rest);
        }
    }
    out
}

/// Redacts the password of `://user:password@host`.
fn redact_user_info<'a>(out: &mut String, text: &'a str) -> Option<&'a str> {
    let inside = text.strip_prefix("://")?;
    let authority = leading(inside, |c| !c.is_whitespace() && !matches!(c, '/' | '"' | '\'' | '<' | '>'));
    let (info, _) = authority.rsplit_once('@')?;
    let (user, _) = info.split_once(':')?;
    out.push_str("://");
    out.push_str(user);
    out.push(':');
    out.push_str(REDACTED);
    Some(&inside[info.len()..])
}

/// Redacts the value in `key=value` or `key: value` after a sensitive key; leaves other text alone.
fn redact_assignment<'a>(out: &mut String, key: &str, text: &'a str) -> &'a str {
    let between = leading(text, |c| matches!(c, '"' | '\'' | '\\' | ' ' | '=' | ':' | '>'));
    if !between.contains(['=', ':']) {
        return text;
    }
    let rest = &text[between.len()..];
    let value = leading(rest, is_value);
    if value.is_empty() || value == REDACTED || (is_token_count(key) && value.parse::<f64>().is_ok()) {
        return text;
    }
    out.push_str(between);
    if SCHEMES.iter().any(|scheme| value.eq_ignore_ascii_case(scheme)) {
        out.push_str(value);
        return redact_credential(out, &rest[value.len()..]);
    }
    out.push_str(REDACTED);
    &rest[value.len()..]
}

/// Redacts the credential after the name of an authorization scheme.
fn redact_credential<'a>(out: &mut String, text: &'a str) -> &'a str {
    let rest = text.trim_start_matches(' ');
    let value = leading(rest, is_value);
    if rest.len() == text.len() || value.len() < 8 || value == REDACTED {
        return text;
    }
    out.push(' ');
    out.push_str(REDACTED);
    &rest[value.len()..]
}

fn is_own_credential(word: &str) -> bool {
    OWN_PREFIXES
        .iter()
        .any(|prefix| word.strip_prefix(prefix).is_some_and(|rest| rest.len() >= OWN_MIN_LENGTH))
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

fn is_value(c: char) -> bool {
    !c.is_whitespace() && !matches!(c, '"' | '\'' | '\\' | ',' | ';' | '&' | ')' | '}' | '<' | '>')
}

fn leading(text: &str, belongs: impl Fn(char) -> bool) -> &str {
    &text[..text.find(|c| !belongs(c)).unwrap_or(text.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redacts_credentials_recognizable_by_context() {
        for (text, expected) in [
            ("Authorization: Bearer abcdefgh.x-y", "Authorization: Bearer [REDACTED]"),
            ("sent bearer abcdefghij and", "sent bearer [REDACTED] and"),
            ("password=abc&user=me", "password=[REDACTED]&user=me"),
            ("api_key: 'k1', next", "api_key: '[REDACTED]', next"),
            ("clone https://me:pw@host/x failed", "clone https://me:[REDACTED]@host/x failed"),
            ("https://host/a@b", "https://host/a@b"),
            ("key plk_0123456789abcdefgh.", "key [REDACTED]."),
            ("max_tokens: 100", "max_tokens: 100"),
            ("the secret is out", "the secret is out"),
            ("the bearer of news", "the bearer of news"),
            ("token=", "token="),
            ("ünï password: ß", "ünï password: [REDACTED]"),
        ] {
            assert_eq!(redact(text), expected, "{text}");
            assert_eq!(redact(expected), expected, "redaction must be idempotent");
        }
    }
}
