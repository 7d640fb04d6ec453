//! What it costs to validate a value: the number of steps, counted without the validator. It walks schema and value as the
//! validator does in the worst case, where nothing is decided early, and stops at its budget.

use std::iter::repeat;

use serde_json::{Map, Value};

/// How deep schema and value may be followed. The validator recurses too.
const MAX_DEPTH: usize = 512;
/// How many bytes of a text cost as much as one step.
const BYTES_PER_STEP: usize = 64;
/// How many bytes of the path of a value cost as much as one error: every error has its path.
const PATH_BYTES_PER_ERROR: usize = 128;
/// How much more a pattern with a counted repetition costs: its program is that much larger than its text.
const REPETITION: usize = 32;

/// How many steps a validation may take. A step takes in the order of 50 ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget(pub usize);

/// How many steps a validation takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    pub steps: usize,
    /// How many errors of the usual size would take the memory of all errors that there can be.
    pub errors: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("validating it would take too long")]
pub struct OverBudget;

/// Counts the steps of validating a value.
pub fn cost(schema: &Value, value: &Value, budget: Budget) -> Result<Cost, OverBudget> {
    let mut meter = Meter { root: schema, budget: budget.0, cost: Cost::default() };
    meter.apply(schema, value, Place::default())?;
    Ok(meter.cost)
}

/// Where the walk is.
#[derive(Clone, Copy, Default)]
struct Place {
    depth: usize,
    /// The bytes of the names on the path to the value.
    path: usize,
    /// How often the validator repeats what is done here, because of `unevaluatedProperties` or `unevaluatedItems` above:
    /// each schema for the same value is validated once more for every level that it is below.
    repeated: usize,
}

impl Place {
    /// The same value, in a subschema.
    const fn in_place(self) -> Self {
        let repeated = if self.repeated == 0 { 0 } else { self.repeated + 1 };
        Self { depth: self.depth + 1, repeated, ..self }
    }

    /// A part of the value.
    const fn part(self, name_length: usize) -> Self {
        Self { depth: self.depth + 1, path: self.path + 1 + name_length, ..self }
    }
}

struct Meter<'a> {
    root: &'a Value,
    budget: usize,
    cost: Cost,
}

type Fields = Map<String, Value>;

impl<'a> Meter<'a> {
    fn charge(&mut self, amount: usize, place: Place) -> Result<(), OverBudget> {
        let amount = amount.saturating_mul(1 + place.repeated);
        self.cost.steps = self.cost.steps.saturating_add(amount);
        let errors = amount.saturating_mul(1 + place.path / PATH_BYTES_PER_ERROR);
        self.cost.errors = self.cost.errors.saturating_add(errors);
        if self.cost.steps > self.budget { Err(OverBudget) } else { Ok(()) }
    }

    fn apply(&mut self, schema: &'a Value, value: &Value, place: Place) -> Result<(), OverBudget> {
        let Value::Object(keywords) = schema else { return self.charge(1, place) };
        if place.depth > MAX_DEPTH {
            return Err(OverBudget);
        }
        self.charge(1 + keywords.len() / 4, place)?;
        let unevaluated = ["unevaluatedProperties", "unevaluatedItems"];
        let repeats = unevaluated.iter().any(|keyword| keywords.contains_key(*keyword));
        let place = Place { repeated: place.repeated + usize::from(repeats), ..place };
        for (keyword, content) in keywords {
            self.apply_in_place(keyword, content, value, place.in_place())?;
            match value {
                Value::Object(fields) => self.apply_to_object(keyword, content, fields, place)?,
                Value::Array(items) => self.apply_to_array(keyword, content, items, place)?,
                Value::String(text) => self.charge(text_cost(keyword, content, text), place)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Keywords whose subschemas are for the same value, or that compare it with others.
    fn apply_in_place(
        &mut self,
        keyword: &str,
        content: &'a Value,
        value: &Value,
        place: Place,
    ) -> Result<(), OverBudget> {
        match (keyword, content) {
            ("allOf" | "anyOf" | "oneOf", Value::Array(schemas)) => {
                schemas.iter().try_for_each(|schema| self.apply(schema, value, place))
            }
            ("not" | "if" | "then" | "else", schema) => self.apply(schema, value, place),
            ("dependentSchemas" | "dependencies" | "dependentRequired", Value::Object(by_name)) => {
                by_name.values().try_for_each(|schema| match schema {
                    Value::Array(names) => self.charge(1 + names.len(), place),
                    schema => self.apply(schema, value, place),
                })
            }
            ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(reference)) => {
                let pointer = reference.strip_prefix('#').ok_or(OverBudget)?;
                let target = self.root.pointer(pointer).ok_or(OverBudget)?;
                self.apply(target, value, place)
            }
            ("enum" | "const", values) => self.charge_values(values, 1, place),
            ("required", Value::Array(names)) => self.charge(names.len(), place),
            _ => Ok(()),
        }
    }

    fn apply_to_object(
        &mut self,
        keyword: &str,
        content: &'a Value,
        fields: &Fields,
        place: Place,
    ) -> Result<(), OverBudget> {
        match (keyword, content) {
            ("properties", Value::Object(properties)) => properties.iter().try_for_each(|(name, schema)| {
                self.charge(1, place)?;
                fields.get(name).map_or(Ok(()), |value| self.apply(schema, value, place.part(name.len())))
            }),
            ("patternProperties", Value::Object(patterns)) => {
                for ((pattern, schema), (name, value)) in
                    patterns.iter().flat_map(|pattern| repeat(pattern).zip(fields))
                {
                    // Names are matched again for `additionalProperties` and `unevaluatedProperties`.
                    self.charge(3 * pattern_cost(pattern, name), place)?;
                    self.apply(schema, value, place.part(name.len()))?;
                }
                Ok(())
            }
            ("additionalProperties" | "unevaluatedProperties", schema) => {
                fields.iter().try_for_each(|(name, value)| {
                    self.charge(1 + name.len() / BYTES_PER_STEP, place)?;
                    self.apply(schema, value, place.part(name.len()))
                })
            }
            ("propertyNames", schema) => fields.keys().try_for_each(|name| {
                self.charge(1 + name.len() / BYTES_PER_STEP, place)?;
                self.apply(schema, &Value::String(name.clone()), place.part(0))
            }),
            _ => Ok(()),
        }
    }

    fn apply_to_array(
        &mut self,
        keyword: &str,
        content: &'a Value,
        items: &[Value],
        place: Place,
    ) -> Result<(), OverBudget> {
        let place = place.part(8);
        match (keyword, content) {
            ("items" | "prefixItems", Value::Array(schemas)) => {
                schemas.iter().zip(items).try_for_each(|(schema, item)| self.apply(schema, item, place))
            }
            ("items" | "additionalItems" | "contains" | "unevaluatedItems", schema) => {
                items.iter().try_for_each(|item| self.apply(schema, item, place))
            }
            // Short lists are compared pair by pair, long ones are hashed.
            ("uniqueItems", Value::Bool(true)) => {
                items.iter().try_for_each(|item| self.charge_values(item, 8, place))
            }
            _ => Ok(()),
        }
    }

    /// Charges for comparing with a value, and for repeating it in an error.
    fn charge_values(&mut self, value: &Value, each: usize, place: Place) -> Result<(), OverBudget> {
        match value {
            Value::Array(items) => {
                self.charge(each, place)?;
                items.iter().try_for_each(|item| self.charge_values(item, each, place))
            }
            Value::Object(fields) => fields.iter().try_for_each(|(name, value)| {
                self.charge(each * (1 + name.len() / BYTES_PER_STEP), place)?;
                self.charge_values(value, each, place)
            }),
            Value::String(text) => self.charge(each * (1 + text.len() / BYTES_PER_STEP), place),
            _ => self.charge(each, place),
        }
    }
}

fn text_cost(keyword: &str, content: &Value, text: &str) -> usize {
    match (keyword, content) {
        ("pattern", Value::String(pattern)) => pattern_cost(pattern, text),
        ("minLength" | "maxLength" | "propertyNames", _) => text.len() / BYTES_PER_STEP,
        ("format" | "contentMediaType" | "contentEncoding", _) => 1 + text.len() / 4,
        _ => 0,
    }
}

/// Patterns are matched in linear time, but in the worst case a byte of the text takes as many steps as the pattern has states.
fn pattern_cost(pattern: &str, text: &str) -> usize {
    let states = if pattern.contains('{') { pattern.len() * REPETITION } else { pattern.len() };
    1 + (pattern.len() + text.len().saturating_mul(states)) / BYTES_PER_STEP
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const BUDGET: Budget = Budget(1_000_000);

    fn nested(levels: usize) -> Value {
        (0..levels).fold(
            json!({"properties": {"x": {}}}),
            |schema, _| json!({"if": schema, "then": true, "unevaluatedProperties": false}),
        )
    }

    fn steps(schema: &Value, value: &Value) -> usize {
        cost(schema, value, BUDGET).unwrap().steps
    }

    #[test]
    fn what_multiplies_is_over_budget() {
        let required = |at: usize| json!({"type": "object", "required": [format!("a{at}")]});
        let branches: Vec<_> = (0..400).map(required).collect();
        let names: Vec<_> = (0..4500).map(|at| format!("n{at}")).collect();
        let patterns: Vec<_> =
            (0..900).map(|at| json!({"pattern": format!(r"^\p{{L}}{{12}}x{at}$")})).collect();
        let fields: Fields = (0..2000).map(|at| (format!("f{at}"), json!(1))).collect();
        let by_pattern: Fields = (0..1000).map(|at| (format!("^x{at}"), json!({}))).collect();
        for (schema, value) in [
            (json!({"items": {"anyOf": branches}}), json!(vec![1; 30_000])),
            (json!({"items": {"oneOf": branches}}), json!(vec![1; 30_000])),
            (json!({"contains": {"anyOf": branches}}), json!(vec![1; 30_000])),
            (json!({"items": {"enum": names}}), json!(vec![1; 100_000])),
            (json!({"items": {"const": names}}), json!(vec![1; 100_000])),
            (json!({"allOf": patterns}), json!("x".repeat(100_000))),
            (json!({"patternProperties": by_pattern}), json!(fields)),
            (json!({"propertyNames": {"allOf": patterns}}), json!(fields)),
            (json!({"$ref": "#"}), json!(1)),
            (json!({"items": {"$ref": "elsewhere"}}), json!([1])),
            (json!({"allOf": vec![json!({"uniqueItems": true}); 10]}), json!(vec![1; 100_000])),
        ] {
            assert_eq!(cost(&schema, &value, BUDGET), Err(OverBudget), "{:.80}", schema.to_string());
        }
    }

    #[test]
    fn usual_arguments_are_far_below_the_budget() {
        let schema = json!({
            "type": "object", "required": ["title"], "additionalProperties": false,
            "properties": {
                "title": {"type": "string", "maxLength": 300, "pattern": r"\S"},
                "state": {"enum": ["open", "closed"]},
                "items": {"type": "array", "items": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/item"}]}},
            },
            "$defs": {"item": {"type": "object", "properties": {"id": {"type": "integer"}}}},
        });
        assert!(steps(&schema, &json!({"title": "a", "state": "open", "items": ["a", {"id": 1}]})) < 100);
        assert!(steps(&schema, &json!({"title": "a".repeat(1_000_000)})) < 100_000);
        assert!(steps(&schema, &json!({"items": vec![json!({"id": 1}); 10_000]})) < 200_000);
    }

    #[test]
    fn what_the_validator_repeats_is_counted() {
        let value = json!({"x": 1});
        assert!(steps(&nested(1), &value) < 100);
        assert!(
            steps(&nested(12), &value) > 5 * steps(&nested(4), &value),
            "each level repeats those below it"
        );
        let long = json!({"k".repeat(1_000_000): vec![1; 100]});
        let texts = json!({"additionalProperties": {"items": {"type": "string"}}});
        let cost = cost(&texts, &long, BUDGET).unwrap();
        assert!(cost.errors > 100 * cost.steps / 2, "an error repeats its path: {cost:?}");
    }
}
