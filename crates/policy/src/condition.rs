//! A condition on the arguments of an action: a JSON Schema that refers to nothing outside of itself. The standard says
//! to ignore unknown keywords and formats, but then a typing error would match every call, so they are refused here. So are
//! `unevaluatedProperties` and `unevaluatedItems`: nested, they take exponential time.

use jsonschema::error::ValidationErrorKind;
use jsonschema::{Draft, PatternOptions, ValidationError, Validator};
use schemas::{Budget, OverBudget, cost};
use serde_json::Value;

/// The maximum size of a compiled pattern, and of the states that matching adds to it.
const MAX_PATTERN_KIB: usize = 64;

/// What a keyword contains.
enum Content {
    /// No schema.
    Value,
    Schema,
    List,
    /// Schemas by name.
    Map,
}

pub(crate) struct Condition {
    schema: Value,
    validator: Validator,
}

impl Condition {
    /// Compiles a schema. The error says what is wrong with it.
    pub(crate) fn compile(schema: &Value) -> Result<Self, String> {
        check_keywords(schema)?;
        // This engine matches in linear time.
        let bytes = MAX_PATTERN_KIB * 1024;
        let patterns = PatternOptions::regex().size_limit(bytes).dfa_size_limit(bytes);
        let options = jsonschema::options()
            .with_draft(Draft::Draft202012)
            .with_pattern_options(patterns)
            .should_validate_formats(true)
            .should_ignore_unknown_formats(false);
        let validator = options.build(schema).map_err(|error| problem(&error))?;
        Ok(Self { schema: schema.clone(), validator })
    }

    /// Whether the arguments fit the schema. Takes the steps of finding out from the budget.
    pub(crate) fn matches(&self, arguments: &Value, budget: &mut Budget) -> Result<bool, OverBudget> {
        let cost = cost(&self.schema, arguments, *budget)?;
        budget.0 -= cost.steps;
        Ok(self.validator.is_valid(arguments))
    }
}

/// How many patterns a schema has.
pub(crate) fn count_patterns(schema: &Value) -> usize {
    let Value::Object(keywords) = schema else { return 0 };
    let in_keyword = |(name, value): (&String, &Value)| match (name.as_str(), content(name), value) {
        ("pattern", ..) => 1,
        (_, Some(Content::Schema), schema) => count_patterns(schema),
        (_, Some(Content::List), Value::Array(schemas)) => schemas.iter().map(count_patterns).sum(),
        (name, Some(Content::Map), Value::Object(schemas)) => {
            let names = if name == "patternProperties" { schemas.len() } else { 0 };
            names + schemas.values().map(count_patterns).sum::<usize>()
        }
        _ => 0,
    };
    keywords.iter().map(in_keyword).sum()
}

/// What is wrong with a schema, for people. The validator does not say why it cannot use a pattern.
fn problem(error: &ValidationError<'_>) -> String {
    match error.kind() {
        ValidationErrorKind::Format { format } if format == "regex" => {
            let paths = [error.instance_path(), error.schema_path()].map(|path| path.as_str().to_owned());
            let path = paths.into_iter().find(|path| !path.is_empty()).unwrap_or_default();
            format!(
                "the pattern at {path} is no regular expression without look-around and back-references, or takes more \
                 than {MAX_PATTERN_KIB} KiB when it is compiled"
            )
        }
        _ => error.to_string(),
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
        "additionalProperties" | "propertyNames" | "items" | "contains" | "not" | "if" | "then" | "else" => {
            Content::Schema
        }
        "allOf" | "anyOf" | "oneOf" | "prefixItems" => Content::List,
        "properties" | "patternProperties" | "dependentSchemas" => Content::Map,
        _ => return None,
    })
}
