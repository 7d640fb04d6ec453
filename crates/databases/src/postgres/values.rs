//! PostgreSQL's text forms: of values as JSON, and of JSON as parameters.

use bytes::{BufMut as _, BytesMut};
use serde_json::{Value, json};
use tokio_postgres::types::{Format, IsNull, Kind, ToSql, Type, to_sql_checked};

use super::json;
use crate::rows::{float, integer};

/// A value in PostgreSQL's text form as JSON. Numbers that JSON cannot hold exactly, times and all other types stay
/// text.
pub(super) fn to_json(kind: &Type, text: &str) -> Value {
    let number = match *kind {
        Type::BOOL => return json!(text == "t"),
        Type::INT2 | Type::INT4 | Type::INT8 | Type::OID => text.parse().ok().map(integer),
        Type::FLOAT4 | Type::FLOAT8 => text.parse().ok().map(float),
        Type::JSON | Type::JSONB => json::parse(text),
        _ => match kind.kind() {
            Kind::Array(element) => array(element, text),
            Kind::Domain(base) => Some(to_json(base, text)),
            _ => None,
        },
    };
    number.unwrap_or_else(|| json!(text))
}

/// The elements of an array such as `{1,NULL,"a b"}` or `[0:1]={{1},{2}}`. `None` if it cannot be read.
fn array(element: &Type, text: &str) -> Option<Value> {
    // PostgreSQL writes the bounds only if they do not begin at 1.
    let text = if text.starts_with('[') { text.split_once('=')?.1 } else { text };
    let mut rest = text.strip_prefix('{')?;
    let found = elements(element, &mut rest, 0)?;
    rest.is_empty().then_some(found)
}

/// The elements up to the closing brace.
fn elements(element: &Type, rest: &mut &str, depth: u8) -> Option<Value> {
    const DEEPEST: u8 = 6;
    if depth >= DEEPEST || *element == Type::BOX {
        return None;
    }
    let mut found = Vec::new();
    if let Some(after) = rest.strip_prefix('}') {
        *rest = after;
        return Some(json!(found));
    }
    loop {
        if let Some(inner) = rest.strip_prefix('{') {
            *rest = inner;
            found.push(elements(element, rest, depth + 1)?);
        } else if let Some(inner) = rest.strip_prefix('"') {
            *rest = inner;
            found.push(to_json(element, &parse_quoted(rest)?));
        } else {
            let end = rest.find([',', '}'])?;
            let (word, after) = rest.split_at(end);
            found.push(if word == "NULL" { Value::Null } else { to_json(element, word) });
            *rest = after;
        }
        let mut chars = rest.chars();
        let separator = chars.next()?;
        *rest = chars.as_str();
        match separator {
            ',' => {}
            '}' => return Some(json!(found)),
            _ => return None,
        }
    }
}

/// The text up to the closing quote.
fn parse_quoted(rest: &mut &str) -> Option<String> {
    let mut text = String::new();
    let mut chars = rest.chars();
    loop {
        match chars.next()? {
            '"' => break,
            '\\' => text.push(chars.next()?),
            other => text.push(other),
        }
    }
    *rest = chars.as_str();
    Some(text)
}

/// A parameter in its text form, which the server parses as whatever type the statement expects. `Debug` does not show
/// it, because the client logs parameters.
pub(super) struct Parameter(pub(super) Value);

impl std::fmt::Debug for Parameter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Parameter(…)")
    }
}

impl ToSql for Parameter {
    fn to_sql(
        &self,
        kind: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        let Some(text) = to_text(kind, &self.0) else { return Ok(IsNull::Yes) };
        out.put_slice(text.as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }

    to_sql_checked!();
}

fn to_text(kind: &Type, value: &Value) -> Option<String> {
    if let Kind::Domain(base) = kind.kind() {
        return to_text(base, value);
    }
    Some(match value {
        Value::Null => return None,
        _ if matches!(*kind, Type::JSON | Type::JSONB) => value.to_string(),
        Value::String(text) => text.clone(),
        Value::Array(items) if matches!(kind.kind(), Kind::Array(_)) => array_text(kind, items),
        other => other.to_string(),
    })
}

fn array_text(kind: &Type, items: &[Value]) -> String {
    let Kind::Array(element) = kind.kind() else { return String::new() };
    let item = |item: &Value| match item {
        // An array of several dimensions has the same type as one with one.
        Value::Array(inner) if !matches!(*element, Type::JSON | Type::JSONB) => array_text(kind, inner),
        other => match to_text(element, other) {
            None => "NULL".to_owned(),
            Some(text) => format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"")),
        },
    };
    format!("{{{}}}", items.iter().map(item).collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_forms_become_json() {
        for (kind, text, value) in [
            (Type::BOOL, "t", json!(true)),
            (Type::INT8, "9007199254740991", json!(9_007_199_254_740_991_i64)),
            (Type::INT8, "9007199254740993", json!("9007199254740993")),
            (Type::FLOAT8, "0.1", json!(0.1)),
            (Type::FLOAT8, "NaN", json!("NaN")),
            (Type::NUMERIC, "1.10", json!("1.10")),
            (Type::JSONB, r#"{"a": [1]}"#, json!({"a": [1]})),
            (
                Type::JSONB_ARRAY,
                r#"{"{\"a\": 0.12345678901234567890}"}"#,
                json!([{"a": "0.12345678901234567890"}]),
            ),
            (Type::INT4_ARRAY, "{1,NULL,3}", json!([1, null, 3])),
            (Type::INT4_ARRAY, "{}", json!([])),
            (Type::INT4_ARRAY, "[0:1]={{1},{2}}", json!([[1], [2]])),
            (Type::TEXT_ARRAY, r#"{a,"b,\"}{","NULL",NULL}"#, json!(["a", "b,\"}{", "NULL", null])),
            (Type::TEXT_ARRAY, "{a", json!("{a")),
            (Type::TEXT_ARRAY, &"{".repeat(100_000), json!("{".repeat(100_000))),
            (Type::BYTEA, "\\x00ff", json!("\\x00ff")),
        ] {
            assert_eq!(to_json(&kind, text), value, "{kind} {text:.40}");
        }
    }

    #[test]
    fn json_becomes_text_forms() {
        for (kind, value, text) in [
            (Type::INT4, json!(null), None),
            (Type::INT4, json!(7), Some("7")),
            (Type::TEXT, json!("a'b"), Some("a'b")),
            (Type::JSONB, json!("a"), Some("\"a\"")),
            (Type::JSONB, json!({"a": 1}), Some(r#"{"a":1}"#)),
            (Type::TEXT_ARRAY, json!(["a", "b\"\\", null]), Some(r#"{"a","b\"\\",NULL}"#)),
            (Type::INT4_ARRAY, json!([[1], [2]]), Some(r#"{{"1"},{"2"}}"#)),
        ] {
            assert_eq!(to_text(&kind, &value).as_deref(), text, "{kind} {value}");
        }
        assert!(!format!("{:?}", Parameter(json!("s3cret"))).contains("s3cret"));
    }
}
