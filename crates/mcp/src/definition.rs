//! What a server says about one of its tools, and the hash by which a later change is noticed.

use std::sync::Arc;

use ledger::{Hash, canonical, sha256};
use policy::Hints;
use rmcp::model::JsonObject;
use schemas::SchemaError;
use serde_json::{Value, json};

/// The maximum number of bytes in a tool's name.
pub const MAX_NAME: usize = 128;
/// The maximum number of bytes in a tool's description.
pub const MAX_DESCRIPTION: usize = 16 * 1024;
/// The maximum number of bytes in the canonical text of a definition.
pub const MAX_DEFINITION: usize = 64 * 1024;
/// The maximum number of JSON values in a definition. In memory a value takes far more than the two bytes it may have as text.
pub const MAX_NODES: usize = 5000;

const INPUT_SCHEMA: &str = "inputSchema";

/// One tool of a server, as the server defined it.
#[derive(Clone, Debug, PartialEq)]
pub struct Definition {
    name: String,
    /// Every field but the input schema, which catalogs share.
    fields: JsonObject,
    input_schema: Arc<Value>,
    hash: Hash,
    size: Size,
}

/// How much a definition takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size {
    /// The number of bytes of the canonical text.
    pub(crate) text: usize,
    /// The number of JSON values.
    pub(crate) nodes: usize,
}

/// Why a tool is left out. The message contains nothing that the server sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DefinitionError {
    #[error("the definition is not an object")]
    NotAnObject,
    #[error("the name must have 1 to {MAX_NAME} of the characters A-Z a-z 0-9 _ - . /")]
    Name,
    #[error("the description is longer than {MAX_DESCRIPTION} bytes")]
    Description,
    #[error("the definition is larger than {MAX_DEFINITION} bytes")]
    TooLarge,
    #[error("the definition has more than {MAX_NODES} values")]
    TooManyNodes,
    #[error("the input schema is not an object")]
    Schema,
    #[error("the input schema {0}")]
    Limits(#[from] SchemaError),
    #[error("the definition is nested too deeply to be hashed")]
    Unhashable,
    #[error("its parameters in headers are defined wrongly")]
    Headers,
    #[error("another tool has the same name")]
    Duplicate,
    #[error("the definition repeats our credential")]
    Secret,
}

impl Definition {
    /// Reads an element of a server's list of tools.
    pub fn parse(raw: Value) -> Result<Self, DefinitionError> {
        let nodes = count_nodes(&raw);
        if nodes > MAX_NODES {
            return Err(DefinitionError::TooManyNodes);
        }
        let fields = raw.as_object().ok_or(DefinitionError::NotAnObject)?;
        let name = fields.get("name").and_then(Value::as_str).filter(|name| is_name(name));
        let name = name.ok_or(DefinitionError::Name)?.to_owned();
        let description = fields.get("description").and_then(Value::as_str).unwrap_or_default();
        if description.len() > MAX_DESCRIPTION {
            return Err(DefinitionError::Description);
        }
        let schema = fields.get(INPUT_SCHEMA).filter(|schema| schema.is_object());
        schemas::measure(schema.ok_or(DefinitionError::Schema)?)?;
        let text = canonical(&with_safe_numbers(&raw)).map_err(|_| DefinitionError::Unhashable)?;
        if text.len() > MAX_DEFINITION {
            return Err(DefinitionError::TooLarge);
        }
        let (hash, size) = (sha256(text.as_bytes()), Size { text: text.len(), nodes });
        let Value::Object(mut fields) = raw else { return Err(DefinitionError::NotAnObject) };
        let input_schema = Arc::new(fields.remove(INPUT_SCHEMA).ok_or(DefinitionError::Schema)?);
        Ok(Self { name, fields, input_schema, hash, size })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn description(&self) -> &str {
        self.fields.get("description").and_then(Value::as_str).unwrap_or_default()
    }

    pub const fn input_schema(&self) -> &Arc<Value> {
        &self.input_schema
    }

    /// The definition as the server sent it, with every field that we do not know.
    pub fn raw(&self) -> Value {
        let mut fields = self.fields.clone();
        fields.insert(INPUT_SCHEMA.to_owned(), self.input_schema.as_ref().clone());
        Value::Object(fields)
    }

    /// The hash of the complete definition. A changed description changes it, because agents act on descriptions.
    pub const fn hash(&self) -> Hash {
        self.hash
    }

    pub(crate) const fn size(&self) -> Size {
        self.size
    }

    /// Whether parameters of the tool are sent in headers too.
    pub(crate) fn has_header_parameters(&self) -> bool {
        self.input_schema().to_string().contains("x-mcp-header")
    }

    /// The claims of the server about the tool's effects.
    pub fn hints(&self) -> Hints {
        let annotations = self.fields.get("annotations").unwrap_or(&Value::Null);
        let hint = |name| annotations[name] == json!(true);
        Hints { destructive: hint("destructiveHint"), read_only: hint("readOnlyHint") }
    }
}

/// Whether a name can be part of a mode key, a command line and a URL path without being mistaken for something else.
fn is_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'/');
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(fits)
}

fn count_nodes(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(count_nodes).sum(),
        Value::Object(fields) => fields.values().map(count_nodes).sum(),
        _ => 0,
    }
}

/// The value with integers that have no canonical form, such as the bounds of 64-bit numbers in schemas, as strings that
/// no server sends by accident.
fn with_safe_numbers(value: &Value) -> Value {
    match value {
        Value::Number(number) if canonical(value).is_err() => format!("\u{0}number {number}").into(),
        Value::Array(items) => items.iter().map(with_safe_numbers).collect(),
        Value::Object(fields) => {
            fields.iter().map(|(key, value)| (key.clone(), with_safe_numbers(value))).collect()
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool() -> Value {
        json!({"name": "create", "description": "Creates", "inputSchema": {
            "type": "object",
            "properties": {"description": {"type": "string"}, "limit": {"type": "integer", "default": 5}},
        }})
    }

    fn hash(raw: Value) -> Hash {
        Definition::parse(raw).unwrap().hash()
    }

    #[test]
    fn every_change_of_a_definition_changes_its_hash() {
        let edits: [(&str, Value); 8] = [
            ("/description", json!("Creates and sends")),
            ("/inputSchema/properties/description", json!({"type": "string", "enum": ["a"]})),
            ("/inputSchema/properties/limit/default", json!(6)),
            ("/inputSchema/properties/limit/type", json!("number")),
            ("/inputSchema/properties/limit", json!({"type": "integer", "default": 5, "oneOf": []})),
            ("/inputSchema/type", json!(["object", "null"])),
            ("/name", json!("created")),
            ("", json!({"name": "create", "inputSchema": {}, "unknown": 1})),
        ];
        for (place, value) in edits {
            let mut changed = tool();
            *changed.pointer_mut(place).unwrap() = value;
            assert_ne!(hash(changed), hash(tool()), "{place}");
        }
    }

    #[test]
    fn the_order_of_fields_does_not_change_the_hash() {
        let one = json!({"name": "a", "inputSchema": {"type": "object", "title": "t"}});
        let other: Value =
            serde_json::from_str(r#"{"inputSchema":{"title":"t","type":"object"},"name":"a"}"#).unwrap();
        assert_eq!(hash(one), hash(other));
    }

    #[test]
    fn numbers_of_any_size_are_hashed() {
        let bound = |bound: Value| {
            let mut raw = tool();
            raw["inputSchema"]["properties"]["limit"]["maximum"] = bound;
            hash(raw)
        };
        assert_ne!(bound(json!(u64::MAX)), bound(json!(u64::MAX - 1)));
        assert_ne!(bound(json!(u64::MAX)), bound(json!(u64::MAX.to_string())));
        assert_ne!(bound(json!(0.5)), bound(json!(0.25)));
    }

    #[test]
    fn definitions_beyond_the_limits_are_refused() {
        let with = |place: &str, value: Value| {
            let mut raw = tool();
            *raw.pointer_mut(place).unwrap() = value;
            Definition::parse(raw).unwrap_err()
        };
        assert_eq!(with("", json!([])), DefinitionError::NotAnObject);
        for name in [json!(""), json!("a b"), json!("a\r\nb"), json!("x".repeat(129)), json!("a:b"), json!(1)]
        {
            assert_eq!(with("/name", name), DefinitionError::Name);
        }
        assert_eq!(
            with("/description", json!("d".repeat(MAX_DESCRIPTION + 1))),
            DefinitionError::Description
        );
        assert_eq!(with("/inputSchema", json!(true)), DefinitionError::Schema);
        assert_eq!(with("/inputSchema/type", json!("t".repeat(MAX_DEFINITION))), DefinitionError::TooLarge);
        assert_eq!(with("/inputSchema/type", json!(vec![0; MAX_NODES])), DefinitionError::TooManyNodes);
    }

    #[test]
    fn only_true_is_a_hint() {
        let hints = |annotations: Value| {
            let mut raw = tool();
            raw["annotations"] = annotations;
            let hints = Definition::parse(raw).unwrap().hints();
            (hints.destructive, hints.read_only)
        };
        assert_eq!(hints(json!({"destructiveHint": true, "readOnlyHint": true})), (true, true));
        assert_eq!(hints(json!({"destructiveHint": "true", "readOnlyHint": 1})), (false, false));
        assert_eq!(hints(json!("destructiveHint")), (false, false));
    }
}
