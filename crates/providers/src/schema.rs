//! JSON Schemas of parameters, with every limit and description: an agent that sees them makes fewer mistakes.

use serde_json::{Map, Value, json};

/// The longest id or slug.
const MAX_ID_CHARS: usize = 200;
/// The longest body of an issue or a comment; GitHub's limit is the smallest.
pub(crate) const MAX_BODY_CHARS: usize = 65_536;

pub(crate) struct Param {
    name: &'static str,
    required: bool,
    schema: Value,
}

/// An object with these parameters and no others.
pub(crate) fn object<const N: usize>(params: [Param; N]) -> Value {
    let required: Vec<_> = params.iter().filter(|param| param.required).map(|param| param.name).collect();
    let properties: Map<_, _> =
        params.into_iter().map(|param| (param.name.to_owned(), param.schema)).collect();
    json!({
        "type": "object",
        "additionalProperties": false,
        "properties": properties,
        "required": required,
    })
}

pub(crate) fn required(name: &'static str, schema: Value) -> Param {
    Param { name, required: true, schema }
}

pub(crate) fn optional(name: &'static str, schema: Value) -> Param {
    Param { name, required: false, schema }
}

pub(crate) fn id(description: &str) -> Value {
    text(description, MAX_ID_CHARS)
}

pub(crate) fn text(description: &str, longest: usize) -> Value {
    json!({"type": "string", "description": description, "minLength": 1, "maxLength": longest})
}

pub(crate) fn choice(description: &str, values: &[&str]) -> Value {
    json!({"type": "string", "description": description, "enum": values})
}

pub(crate) fn flag(description: &str) -> Value {
    json!({"type": "boolean", "description": description})
}

pub(crate) fn integer(description: &str, least: u64, most: u64) -> Value {
    json!({"type": "integer", "description": description, "minimum": least, "maximum": most})
}

pub(crate) fn list(description: &str, most: usize, item: &Value) -> Value {
    json!({"type": "array", "description": description, "maxItems": most, "items": item})
}

pub(crate) fn with_default(mut schema: Value, default: impl Into<Value>) -> Value {
    schema["default"] = default.into();
    schema
}
