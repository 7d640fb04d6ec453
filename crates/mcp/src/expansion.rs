//! The size of a schema when its references are followed. A checker follows every reference wherever it occurs, so a small
//! schema whose definitions refer twice to the next one would cost exponential time.

use std::collections::HashMap;

use serde_json::Value;

use crate::definition::DefinitionError;

/// The maximum number of nodes of a schema whose references are replaced by what they refer to.
pub(crate) const MAX_EXPANSION: usize = 10_000;
/// The maximum depth of such a schema. Checkers recurse.
const MAX_DEPTH: usize = 256;

/// Checks that a schema can be followed in bounded time. Recursion is refused, because its cost depends on the arguments.
pub(crate) fn check_expansion(schema: &Value) -> Result<(), DefinitionError> {
    if !any_object(schema, &|fields| REFERENCE_KEYWORDS.iter().any(|keyword| fields.contains_key(*keyword))) {
        return Ok(());
    }
    // Below such an identifier, pointers would begin elsewhere.
    let old = schema["$schema"].as_str().is_some_and(|draft| draft.contains("draft-04"));
    let identifies = |fields: &Fields| {
        let is_text = |key: &str| fields.get(key).is_some_and(Value::is_string);
        is_text("$id") || is_text("$schema") || (old && is_text("id"))
    };
    if children(schema).any(|child| any_object(child, &identifies)) {
        return Err(DefinitionError::Reference);
    }
    Expansion { root: schema, sizes: HashMap::new() }.measure(schema, 0).map(|_| ())
}

type Fields = serde_json::Map<String, Value>;

const REFERENCE_KEYWORDS: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];

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
#[derive(Clone, Copy)]
struct Size {
    nodes: usize,
    height: usize,
}

impl Size {
    /// Adds a part of a value that is this deep in the schema.
    fn add(&mut self, part: Self, depth: usize) -> Result<(), DefinitionError> {
        self.nodes += part.nodes;
        self.height = self.height.max(part.height + 1);
        if self.nodes > MAX_EXPANSION || depth + self.height > MAX_DEPTH {
            return Err(DefinitionError::Expansion);
        }
        Ok(())
    }
}

struct Expansion<'a> {
    root: &'a Value,
    /// The sizes of what was referred to; `None` while it is measured.
    sizes: HashMap<&'a str, Option<Size>>,
}

impl<'a> Expansion<'a> {
    fn measure(&mut self, value: &'a Value, depth: usize) -> Result<Size, DefinitionError> {
        if depth > MAX_DEPTH {
            return Err(DefinitionError::Expansion);
        }
        let mut size = Size { nodes: 1, height: 0 };
        match value {
            Value::Array(items) => {
                for item in items {
                    let part = self.measure(item, depth + 1)?;
                    size.add(part, depth)?;
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
                    size.add(part, depth)?;
                }
            }
            _ => {}
        }
        Ok(size)
    }

    fn follow(&mut self, reference: &'a str, depth: usize) -> Result<Size, DefinitionError> {
        match self.sizes.get(reference) {
            Some(Some(size)) => return Ok(*size),
            Some(None) => return Err(DefinitionError::Recursion),
            None => {}
        }
        // Only pointers are followed: an anchor or an encoded pointer could be read differently by a checker.
        let pointer = reference.strip_prefix('#').filter(|pointer| !pointer.contains('%'));
        let target =
            pointer.and_then(|pointer| self.root.pointer(pointer)).ok_or(DefinitionError::Reference)?;
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
        assert_eq!(check_expansion(&chain(40, 2)), Err(DefinitionError::Expansion));
        assert_eq!(check_expansion(&chain(14, 2)), Err(DefinitionError::Expansion));
        assert_eq!(check_expansion(&chain(5, 2)), Ok(()));
        assert_eq!(check_expansion(&chain(20, 1)), Ok(()));
        assert_eq!(check_expansion(&chain(500, 1)), Err(DefinitionError::Expansion), "it is too deep");
    }

    #[test]
    fn a_schema_that_refers_to_itself_is_refused() {
        for schema in [
            json!({"$ref": "#"}),
            json!({"properties": {"a": {"$recursiveRef": "#"}}}),
            json!({"$defs": {"a": {"items": {"$ref": "#/$defs/b"}}, "b": {"items": {"$ref": "#/$defs/a"}}}}),
        ] {
            assert_eq!(check_expansion(&schema), Err(DefinitionError::Recursion), "{schema}");
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
            assert_eq!(check_expansion(&schema), Err(DefinitionError::Reference), "{schema}");
        }
        let id = json!({"type": "string"});
        let plain = json!({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"properties": {"id": id, "$ref": id}}}});
        assert_eq!(check_expansion(&plain), Ok(()));
    }
}
