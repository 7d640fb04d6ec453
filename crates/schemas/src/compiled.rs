//! Compiled schemas of actions. A schema is compiled once and kept, because compiling many patterns takes longer than
//! anything else.

use std::sync::{Arc, LazyLock};

use jsonschema::{PatternOptions, ValidationError, Validator};
use lru::LruCache;
use parking_lot::Mutex;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::cost::{Budget, OverBudget, cost};
use crate::limits::measure;

/// The maximum size of a compiled pattern.
const MAX_PATTERN: usize = 256 * 1024;
/// The maximum weight of the schemas that are kept, in subschemas of about 1 KiB.
const MAX_KEPT: usize = 64 * 1024;
/// The weight of a pattern. Its program and the states that matching adds have [`MAX_PATTERN`] bytes each.
const PATTERN_WEIGHT: usize = 512;
/// How many steps the validation of a call may take.
const STEPS: Budget = Budget(1_000_000);
/// How many errors of the usual size are collected at most. The validator returns all at once, with those of every branch
/// of every `anyOf`.
const MAX_ERRORS: usize = 20_000;

static KEPT: LazyLock<Mutex<Kept>> = LazyLock::new(Mutex::default);

/// A schema that is within our limits, ready to validate values.
pub struct Compiled {
    schema: Value,
    validator: Validator,
    weight: usize,
}

/// What is wrong with a value.
#[derive(Debug)]
pub enum Problems<'a> {
    Named(Vec<ValidationError<'a>>),
    /// It does not fit, but its errors could take too much memory.
    Unnamed,
    /// Whether it fits would take too long to find out.
    OverBudget,
}

impl Compiled {
    /// Returns the compiled schema if it is kept.
    pub fn kept(schema: &Value) -> Option<Arc<Self>> {
        KEPT.lock().by_hash.get(&hash(schema)).cloned()
    }

    /// Compiles a schema, and keeps it. This can take a second. The error says what is wrong with it.
    pub fn new(schema: &Value) -> Result<Arc<Self>, String> {
        let size = measure(schema).map_err(|error| error.to_string())?;
        // This engine matches in linear time.
        let patterns = PatternOptions::regex().size_limit(MAX_PATTERN).dfa_size_limit(MAX_PATTERN);
        let options = jsonschema::options().with_pattern_options(patterns);
        let built = options.build(schema);
        let validator = built.map_err(|error| error.to_string().chars().take(200).collect::<String>())?;
        let weight = size.nodes() + PATTERN_WEIGHT * size.patterns();
        let compiled = Arc::new(Self { schema: schema.clone(), validator, weight });
        KEPT.lock().insert(hash(schema), compiled.clone());
        Ok(compiled)
    }

    /// A schema of ours, with its own options.
    pub const fn ours(schema: Value, validator: Validator) -> Self {
        Self { schema, validator, weight: 0 }
    }

    /// Whether validating a value takes at most this many steps.
    pub fn is_within(&self, value: &Value, budget: Budget) -> bool {
        cost(&self.schema, value, budget).is_ok()
    }

    /// What is wrong with a value, in bounded time and memory.
    pub fn check<'a>(&'a self, value: &'a Value) -> Result<(), Problems<'a>> {
        let cost = match cost(&self.schema, value, STEPS) {
            Ok(cost) => cost,
            Err(OverBudget) => return Err(Problems::OverBudget),
        };
        if self.validator.is_valid(value) {
            return Ok(());
        }
        if cost.errors > MAX_ERRORS {
            return Err(Problems::Unnamed);
        }
        Err(Problems::Named(self.validator.iter_errors(value).collect()))
    }
}

type Hash = [u8; 32];

fn hash(schema: &Value) -> Hash {
    Sha256::digest(schema.to_string()).into()
}

struct Kept {
    by_hash: LruCache<Hash, Arc<Compiled>>,
    weight: usize,
}

impl Default for Kept {
    fn default() -> Self {
        Self { by_hash: LruCache::unbounded(), weight: 0 }
    }
}

impl Kept {
    fn insert(&mut self, hash: Hash, compiled: Arc<Compiled>) {
        self.weight += compiled.weight;
        if let Some((_, replaced)) = self.by_hash.push(hash, compiled) {
            self.weight -= replaced.weight;
        }
        while self.weight > MAX_KEPT
            && let Some((_, evicted)) = self.by_hash.pop_lru()
        {
            self.weight -= evicted.weight;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn errors_are_collected_only_if_there_cannot_be_too_many() {
        let compiled = Compiled::new(&json!({"items": {"type": "string"}})).unwrap();
        let (few, many, more) = (json!([1, "a", 2]), json!(vec![1; 30_000]), json!(vec![1; 1_100_000]));
        assert!(matches!(compiled.check(&few), Err(Problems::Named(errors)) if errors.len() == 2));
        assert!(matches!(compiled.check(&many), Err(Problems::Unnamed)));
        assert!(matches!(compiled.check(&more), Err(Problems::OverBudget)));
        assert!(compiled.check(&json!(vec!["a"; 30_000])).is_ok());
    }

    #[test]
    fn what_can_be_checked_in_few_steps_is_known() {
        let compiled = Compiled::new(&json!({"items": {"type": "integer"}})).unwrap();
        assert!(compiled.is_within(&json!([1, 2]), Budget(100)));
        assert!(!compiled.is_within(&json!(vec![1; 1000]), Budget(100)));
    }

    #[test]
    fn a_schema_is_compiled_once() {
        let schema = json!({"title": "compiled once", "pattern": "^a+$"});
        assert!(Compiled::kept(&schema).is_none());
        let compiled = Compiled::new(&schema).unwrap();
        assert!(Arc::ptr_eq(&compiled, &Compiled::kept(&schema).unwrap()));
        assert!(Compiled::kept(&json!({"title": "another"})).is_none());
    }

    #[test]
    fn the_schemas_that_were_used_last_are_kept_up_to_a_weight() {
        let mut kept = Kept::default();
        let heavy = Compiled {
            schema: json!({}),
            validator: jsonschema::validator_for(&json!({})).unwrap(),
            weight: MAX_KEPT / 4,
        };
        let heavy = Arc::new(heavy);
        for number in 0..10_u8 {
            kept.insert([number; 32], heavy.clone());
            kept.insert([number; 32], heavy.clone());
            assert!(kept.by_hash.get(&[0; 32]).is_some(), "it was used last");
        }
        assert_eq!((kept.weight, kept.by_hash.len()), (MAX_KEPT, 4));
        assert!(kept.by_hash.contains(&[9; 32]) && !kept.by_hash.contains(&[5; 32]));
    }

    #[test]
    fn a_schema_beyond_the_limits_is_not_compiled() {
        for (schema, part) in [
            (json!({"$ref": "#"}), "refers to itself"),
            (json!({"properties": {"s": {"pattern": "(a{1000}){1000}"}}}), "pattern"),
            (json!({"not": {"unevaluatedItems": false}, "unevaluatedItems": false}), "unevaluated"),
        ] {
            let problem = Compiled::new(&schema).err().unwrap_or_default();
            assert!(
                problem.contains(part) || part == "pattern" && !problem.is_empty(),
                "{schema}: {problem}"
            );
        }
    }
}
