//! JSON values of a database. PostgreSQL's numbers have any number of digits, and those of most readers of JSON are floats:
//! a number that such a reader would round becomes a string.

use serde_json::Value;

use crate::rows::EXACT;

/// The value of a JSON text. `None` if it is nested too deeply.
pub(super) fn parse(text: &str) -> Option<Value> {
    serde_json::from_str(&quote_inexact_numbers(text)).ok()
}

fn quote_inexact_numbers(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let is_number = matches!(first, '-' | '0'..='9');
        let length = match first {
            '"' => string_length(rest),
            _ if is_number => number_length(rest),
            other => other.len_utf8(),
        };
        let (token, after) = rest.split_at(length);
        let quote = if is_number && !is_exact(token) { "\"" } else { "" };
        quoted.extend([quote, token, quote]);
        rest = after;
    }
    quoted
}

/// The length of the string that the text begins with, quotes included.
fn string_length(text: &str) -> usize {
    let mut escaped = false;
    let end = text.bytes().skip(1).position(|byte| {
        let closes = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        closes
    });
    end.map_or(text.len(), |end| end + 2)
}

fn number_length(text: &str) -> usize {
    text.find(|char| !matches!(char, '0'..='9' | '+' | '-' | '.' | 'e' | 'E')).unwrap_or(text.len())
}

/// Whether every reader of JSON reads exactly this number.
fn is_exact(number: &str) -> bool {
    if !number.contains(['.', 'e', 'E']) {
        return number.parse::<i64>().is_ok_and(|integer| (-EXACT..=EXACT).contains(&integer));
    }
    let written = number.parse::<f64>().ok().and_then(|float| decimal(&format!("{float:e}")));
    written.is_some() && written == decimal(number)
}

/// The sign, the digits without zeros around them, and the exponent of the last digit.
fn decimal(number: &str) -> Option<(bool, String, i64)> {
    let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{}{fraction}", whole.trim_start_matches('-'));
    let significant = digits.trim_end_matches('0');
    let shift = i64::try_from(digits.len() - significant.len()).ok()? - i64::try_from(fraction.len()).ok()?;
    let exponent = exponent.parse::<i64>().ok()?.checked_add(shift)?;
    match significant.trim_start_matches('0') {
        "" => Some((false, String::new(), 0)),
        digits => Some((whole.starts_with('-'), digits.to_owned(), exponent)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_keep_all_digits() {
        for (text, value) in [
            ("0", json!(0)),
            ("-9007199254740991", json!(-9_007_199_254_740_991_i64)),
            ("9007199254740992", json!("9007199254740992")),
            ("18446744073709551616", json!("18446744073709551616")),
            ("123456789012345678901234567890", json!("123456789012345678901234567890")),
            ("0.1", json!(0.1)),
            ("-1.50", json!(-1.5)),
            ("0.00", json!(0.0)),
            ("2e3", json!(2000.0)),
            ("3.14159265358979323846", json!("3.14159265358979323846")),
            ("9007199254740993.0", json!("9007199254740993.0")),
            ("1e400", json!("1e400")),
            ("1e-400", json!("1e-400")),
        ] {
            assert_eq!(parse(text), Some(value.clone()), "{text}");
            assert_eq!(parse(&format!("[{{\"a\": {text}}}, {text}]")), Some(json!([{"a": value}, value])));
        }
    }

    #[test]
    fn digits_in_strings_stay_as_they_are() {
        let text = r#"{"12345678901234567890": "a\"1e400\\", "b": "ä€ 0.12345678901234567890"}"#;
        assert_eq!(parse(text), serde_json::from_str(text).ok());
        assert_eq!(parse(&"[".repeat(1000)), None);
    }
}
