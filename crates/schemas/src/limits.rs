//! The size of a schema when its references are followed. A validator follows every reference wherever it occurs, so a small
//! schema whose definitions refer twice to the next one would cost exponential time.
//!
//! So would nested `unevaluatedProperties` and `unevaluatedItems`: each validates everything beside it again, the others
//! included.

use std::collections::HashMap;

use serde_json::Value;

/// The maximum number of nodes of a schema whose references are replaced by what they refer to.
pub const MAX_NODES: usize = 10_000;
/// The maximum depth of such a schema. Validators recurse.
const MAX_DEPTH: usize = 256;
/// The maximum number of its patterns.
pub const MAX_PATTERNS: usize = 100;
/// The maximum number of bytes of the paths of all its nodes. Each compiled subschema has its path.
const MAX_PATHS: usize = 4 * 1024 * 1024;

/// Which limit a schema exceeds. The message contains nothing of the schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    #[error("has more than {MAX_NODES} values, or is nested too deeply, when its references are followed")]
    TooLarge,
    #[error("has more than {MAX_PATTERNS} patterns when its references are followed")]
    Patterns,
    #[error("has names that are too long for how many values are below them")]
    Paths,
    #[error("refers to itself")]
    Recursion,
    #[error("has references that are not JSON pointers to parts of it")]
    Reference,
    #[error(
        "has unevaluatedProperties or unevaluatedItems inside of another schema with one of them, which takes exponential \
         time"
    )]
    Unevaluated,
}

/// Measures a schema that can be compiled and followed in bounded time. Recursion is refused, because its cost depends on
/// the value.
pub fn measure(schema: &Value) -> Result<Size, SchemaError> {
    let refers = |fields: &Fields| REFERENCE_KEYWORDS.iter().any(|keyword| fields.contains_key(*keyword));
    // Below such an identifier, pointers would begin elsewhere.
    let old = schema["$schema"].as_str().is_some_and(|draft| draft.contains("draft-04"));
    let identifies = |fields: &Fields| {
        let is_text = |key: &str| fields.get(key).is_some_and(Value::is_string);
        is_text("$id") || is_text("$schema") || (old && is_text("id"))
    };
    let mut expansion = Expansion { root: schema, sizes: HashMap::new() };
    let size = expansion.measure(schema, 0)?;
    if any_object(schema, &refers) && children(schema).any(|child| any_object(child, &identifies)) {
        return Err(SchemaError::Reference);
    }
    Ok(size)
}

type Fields = serde_json::Map<String, Value>;

const REFERENCE_KEYWORDS: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];
const UNEVALUATED: [&str; 2] = ["unevaluatedProperties", "unevaluatedItems"];

fn children(value: &Value) -> Box<dyn Iterator<Item = &Value> + '_> {
    match value {
        Value::Array(items) => Box::new(items.iter()),
        Value::Object(fields) => Box::new(fields.values()),
        _ => Box::new(std::iter::empty()),
    }
}

fn any_object(value: &Value, fits: &dyn Fn(&Fields) -> bool) -> bool {
    value.as_object().is_some_and(fits) || children(value).any(|child| any_object(child, fits))
}

/// How large something is when its references are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    nodes: usize,
    height: usize,
    patterns: usize,
    /// The bytes of the paths of all nodes, from here.
    paths: usize,
    /// How many schemas on a path have a keyword of [`UNEVALUATED`].
    unevaluated: usize,
}

impl Size {
    pub const fn nodes(self) -> usize {
        self.nodes
    }

    pub const fn patterns(self) -> usize {
        self.patterns
    }

    /// Whether the schema has `unevaluatedProperties` or `unevaluatedItems`.
    pub const fn has_unevaluated(self) -> bool {
        self.unevaluated > 0
    }

    /// The shallow size of a value: an object without its members, an array without its elements.
    fn of(value: &Value) -> Self {
        let Value::Object(fields) = value else {
            return Self { nodes: 1, height: 0, patterns: 0, paths: 0, unevaluated: 0 };
        };
        let names = fields.get("patternProperties").and_then(Value::as_object).map_or(0, Fields::len);
        let pattern = usize::from(fields.get("pattern").is_some_and(Value::is_string));
        // A list of values of these names is no keyword, nor is the name of a field: it has a schema, but so has a keyword.
        let unevaluated = UNEVALUATED.iter().any(|keyword| fields.get(*keyword).is_some_and(is_schema));
        Self { nodes: 1, height: 0, patterns: names + pattern, paths: 0, unevaluated: unevaluated.into() }
    }

    /// Adds a part of a value that is this deep in the schema. `own` is what the value has of [`UNEVALUATED`] itself.
    fn add(
        &mut self,
        part: Self,
        (name_length, own): (usize, usize),
        depth: usize,
    ) -> Result<(), SchemaError> {
        self.nodes += part.nodes;
        self.height = self.height.max(part.height + 1);
        self.patterns += part.patterns;
        self.paths += part.paths + part.nodes * (1 + name_length);
        self.unevaluated = self.unevaluated.max(own + part.unevaluated);
        if self.nodes > MAX_NODES || depth + self.height > MAX_DEPTH {
            return Err(SchemaError::TooLarge);
        }
        let limits = [
            (self.patterns > MAX_PATTERNS, SchemaError::Patterns),
            (self.paths > MAX_PATHS, SchemaError::Paths),
            (self.unevaluated > 1, SchemaError::Unevaluated),
        ];
        limits.into_iter().find(|(exceeded, _)| *exceeded).map_or(Ok(()), |(_, error)| Err(error))
    }
}

const fn is_schema(value: &Value) -> bool {
    matches!(value, Value::Object(_) | Value::Bool(_))
}

struct Expansion<'a> {
    root: &'a Value,
    /// The sizes of what was referred to; `None` while it is measured.
    sizes: HashMap<&'a str, Option<Size>>,
}

impl<'a> Expansion<'a> {
    fn measure(&mut self, value: &'a Value, depth: usize) -> Result<Size, SchemaError> {
        if depth > MAX_DEPTH {
            return Err(SchemaError::TooLarge);
        }
        let mut size = Size::of(value);
        let own = size.unevaluated;
        match value {
            Value::Array(items) => {
                for item in items {
                    let part = self.measure(item, depth + 1)?;
                    size.add(part, (4, own), depth)?;
                }
            }
            Value::Object(fields) => {
                for (key, value) in fields {
                    let part = match value {
                        Value::String(reference) if REFERENCE_KEYWORDS.contains(&key.as_str()) => {
                            self.follow(reference, depth + 1)?
                        }
                        other => self.measure(other, depth + 1)?,
                    };
                    size.add(part, (key.len(), own), depth)?;
                }
            }
            _ => {}
        }
        Ok(size)
    }

    fn follow(&mut self, reference: &'a str, depth: usize) -> Result<Size, SchemaError> {
        match self.sizes.get(reference) {
            Some(Some(size)) => return Ok(*size),
            Some(None) => return Err(SchemaError::Recursion),
            None => {}
        }
        // Only pointers are followed: an anchor or an encoded pointer could be read differently by a checker.
        let pointer = reference.strip_prefix('#').filter(|pointer| !pointer.contains('%'));
        let target = pointer.and_then(|pointer| self.root.pointer(pointer)).ok_or(SchemaError::Reference)?;
        self.sizes.insert(reference, None);
        let size = self.measure(target, depth)?;
        self.sizes.insert(reference, Some(size));
        Ok(size)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Definitions `d0` to `d<last>`, each of which has `width` references to the next one.
    fn chain(last: usize, width: usize) -> Value {
        let reference = |number: usize| json!({"$ref": format!("#/$defs/d{number}")});
        let definition = |number: usize| {
            let body = if number == last {
                json!({"type": "string"})
            } else {
                json!({"allOf": vec![reference(number + 1); width]})
            };
            (format!("d{number}"), body)
        };
        let definitions: Fields = (0..=last).map(definition).collect();
        json!({"type": "object", "properties": {"a": reference(0)}, "$defs": definitions})
    }

    #[test]
    fn a_schema_that_grows_exponentially_is_refused() {
        assert_eq!(measure(&chain(40, 2)), Err(SchemaError::TooLarge));
        assert_eq!(measure(&chain(14, 2)), Err(SchemaError::TooLarge));
        assert_eq!(measure(&chain(5, 2)).map(drop), Ok(()));
        assert_eq!(measure(&chain(20, 1)).map(drop), Ok(()));
        assert_eq!(measure(&chain(500, 1)), Err(SchemaError::TooLarge), "it is too deep");
    }

    #[test]
    fn a_schema_that_refers_to_itself_is_refused() {
        for schema in [
            json!({"$ref": "#"}),
            json!({"properties": {"a": {"$recursiveRef": "#"}}}),
            json!({"$defs": {"a": {"items": {"$ref": "#/$defs/b"}}, "b": {"items": {"$ref": "#/$defs/a"}}}}),
        ] {
            assert_eq!(measure(&schema), Err(SchemaError::Recursion), "{schema}");
        }
    }

    #[test]
    fn references_that_could_be_read_in_two_ways_are_refused() {
        for schema in [
            json!({"$ref": "https://example.com/schema"}),
            json!({"$ref": "#anchor", "$defs": {"a": {"$anchor": "anchor"}}}),
            json!({"$ref": "#/%24defs/a", "$defs": {"a": {}}}),
            json!({"$ref": "#/$defs/missing"}),
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"$id": "https://example.com/a", "items": {}}}}),
        ] {
            assert_eq!(measure(&schema), Err(SchemaError::Reference), "{schema}");
        }
        let id = json!({"type": "string"});
        let plain = json!({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"properties": {"id": id, "$ref": id}}}});
        assert_eq!(measure(&plain).map(drop), Ok(()));
    }

    #[test]
    fn nested_unevaluated_keywords_are_refused() {
        let nest = |schema: Value| json!({"if": schema, "then": true, "unevaluatedProperties": false});
        let once = nest(json!({"properties": {"x": {"items": {"type": "object"}}}}));
        assert!(measure(&once).unwrap().has_unevaluated());
        assert!(!measure(&json!({"enum": ["unevaluatedItems"]})).unwrap().has_unevaluated());
        let beside = json!({"properties": {"a": once, "b": {"items": {}, "unevaluatedItems": false}}});
        assert_eq!(measure(&beside).map(drop), Ok(()));
        let referred = json!({"$ref": "#/$defs/a", "unevaluatedProperties": false, "$defs": {"a": once}});
        let other =
            json!({"anyOf": [{"unevaluatedItems": false}], "unevaluatedProperties": {"type": "string"}});
        let below = json!({"unevaluatedProperties": {"unevaluatedProperties": false}});
        for schema in [nest(once), referred, other, below] {
            assert_eq!(measure(&schema), Err(SchemaError::Unevaluated), "{schema}");
        }
    }

    #[test]
    fn patterns_and_paths_are_bounded() {
        let patterns = |count: usize| -> Fields {
            let pattern =
                |at: usize| (format!("p{at}"), json!({"pattern": format!(r"^\p{{L}}{{12}}x{at}$")}));
            (0..count).map(pattern).collect()
        };
        assert_eq!(measure(&json!({"properties": patterns(MAX_PATTERNS)})).unwrap().patterns(), MAX_PATTERNS);
        for schema in [
            json!({"properties": patterns(900)}),
            json!({"patternProperties": patterns(60)}),
            json!({"allOf": vec![json!({"$ref": "#/$defs/a"}); 11], "$defs": {"a": {"properties": patterns(10)}}}),
        ] {
            assert_eq!(measure(&schema), Err(SchemaError::Patterns));
        }
        let long =
            json!({"properties": {"n".repeat(30_000): {"anyOf": vec![json!({"type": "string"}); 100]}}});
        assert_eq!(measure(&long), Err(SchemaError::Paths));
    }
}
