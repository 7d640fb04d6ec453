//! A condition on the arguments of an action: a JSON Schema that refers to nothing outside of itself. The standard says
//! to ignore unknown keywords and formats, but then a typing error would match every call, so they are refused here.

use jsonschema::{Draft, PatternOptions, Validator};
use serde_json::Value;

/// The maximum size of a compiled pattern.
const MAX_PATTERN: usize = 1 << 20;

/// What a keyword contains.
enum Content {
    /// No schema.
    Value,
    Schema,
    List,
    /// Schemas by name.
    Map,
}

pub(crate) struct Condition(Validator);

impl Condition {
    /// Compiles a schema. The error says what is wrong with it.
    pub(crate) fn compile(schema: &Value) -> Result<Self, String> {
        check_keywords(schema)?;
        // This engine matches in linear time.
        let patterns = PatternOptions::regex().size_limit(MAX_PATTERN);
        let options = jsonschema::options()
            .with_draft(Draft::Draft202012)
            .with_pattern_options(patterns)
            .should_validate_formats(true)
            .should_ignore_unknown_formats(false);
        options.build(schema).map(Self).map_err(|error| error.to_string())
    }

    pub(crate) fn matches(&self, arguments: &Value) -> bool {
        self.0.is_valid(arguments)
    }
}

/// Refuses what the validator would ignore, and references, whose evaluation may not end.
fn check_keywords(schema: &Value) -> Result<(), String> {
    let keywords = match schema {
        Value::Object(keywords) => keywords,
        Value::Bool(_) => return Ok(()),
        _ => return Err("a JSON Schema is an object".to_owned()),
    };
    for (name, value) in keywords {
        let content = content(name).ok_or_else(|| {
            let shown: String = name.chars().take(40).map(|c| if c.is_control() { '?' } else { c }).collect();
            format!("{shown} is not a keyword that a condition may have")
        })?;
        match (content, value) {
            (Content::Schema, schema) => check_keywords(schema)?,
            (Content::List, Value::Array(schemas)) => schemas.iter().try_for_each(check_keywords)?,
            (Content::Map, Value::Object(schemas)) => schemas.values().try_for_each(check_keywords)?,
            // Compiling the schema reports a keyword with a value of the wrong type.
            (Content::Value | Content::List | Content::Map, _) => {}
        }
    }
    Ok(())
}

fn content(keyword: &str) -> Option<Content> {
    Some(match keyword {
        "type" | "enum" | "const" | "multipleOf" | "maximum" | "exclusiveMaximum" | "minimum"
        | "exclusiveMinimum" | "maxLength" | "minLength" | "pattern" | "format" | "maxItems" | "minItems"
        | "uniqueItems" | "maxContains" | "minContains" | "maxProperties" | "minProperties" | "required"
        | "dependentRequired" | "title" | "description" | "$comment" => Content::Value,
        "additionalProperties"
        | "propertyNames"
        | "items"
        | "contains"
        | "not"
        | "if"
        | "then"
        | "else"
        | "unevaluatedItems"
        | "unevaluatedProperties" => Content::Schema,
        "allOf" | "anyOf" | "oneOf" | "prefixItems" => Content::List,
        "properties" | "patternProperties" | "dependentSchemas" => Content::Map,
        _ => return None,
    })
}
