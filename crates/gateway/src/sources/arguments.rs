//! Checks the arguments of tools and actions against their JSON Schemas, and names every violation with its field and
//! limit. The messages reach the agent and the ledger, so they never repeat a value.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use jsonschema::error::{TypeKind, ValidationErrorKind};
use jsonschema::{JsonType, ValidationError};
use schemas::{Budget, Compiled, Problems};
use serde_json::Value;
use tokio::runtime::{Handle, RuntimeFlavor};

use super::problems::{first, place};

/// The maximum number of violations listed: more than a well-meant call can have.
const MAX_LISTED_VIOLATIONS: usize = 40;
/// How many steps a validation takes at most on an async worker: about a millisecond.
const CHECKED_AT_ONCE: Budget = Budget(20_000);
const UNNAMED: &str = "they do not fit the schema, and have too many values to name what does not";
const OVER_BUDGET: &str =
    "they have too many values, or too long texts, to be checked against the schema: send less at once";

/// A format that our schemas use beyond those of JSON Schema.
struct Format {
    name: &'static str,
    /// Completes "… must be".
    meaning: &'static str,
    fits: fn(&str) -> bool,
}

/// PostgreSQL cannot store NUL, and names are shown in terminals, so control characters are refused.
const STRING_FORMATS: [Format; 4] = [
    Format {
        name: "line",
        meaning: "one line without control characters",
        fits: |text| !text.contains(char::is_control),
    },
    Format {
        name: "lines",
        meaning: "a text without control characters other than tabs and line breaks",
        fits: |text| !text.contains(|c: char| c.is_control() && !matches!(c, '\n' | '\r' | '\t')),
    },
    Format {
        name: "workspace-path",
        meaning: "a path inside the workspace, relative and without `..`",
        fits: is_inside,
    },
    Format {
        name: "variable",
        meaning: "the name of an environment variable: letters, digits and _",
        fits: |text| {
            !text.starts_with(|c: char| c.is_ascii_digit())
                && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        },
    },
];

fn is_inside(path: &str) -> bool {
    !path.starts_with('/')
        && !path.contains(|c: char| c.is_control() || c == '\\')
        && path.split('/').all(|part| part != "..")
}

/// Compiles a schema of the table.
pub(super) fn validator(schema: Value) -> Result<Compiled, String> {
    let options = jsonschema::options().should_validate_formats(true);
    let options =
        STRING_FORMATS.iter().fold(options, |options, format| options.with_format(format.name, format.fits));
    let validator = options.build(&schema).map_err(|error| error.to_string())?;
    Ok(Compiled::ours(schema, validator))
}

/// The schema for models. Our own formats are left out: not every provider accepts unknown ones.
pub(super) fn schema_for_models(schema: &Value) -> Value {
    match schema {
        Value::Object(fields) => {
            let ours = |value: &Value| STRING_FORMATS.iter().any(|format| value == format.name);
            let kept = fields.iter().filter(|(name, value)| *name != "format" || !ours(value));
            Value::Object(kept.map(|(name, value)| (name.clone(), schema_for_models(value))).collect())
        }
        Value::Array(items) => items.iter().map(schema_for_models).collect(),
        other => other.clone(),
    }
}

/// Checks the arguments of a call.
pub(super) fn check(compiled: &Compiled, arguments: &Value) -> Result<(), String> {
    let listed =
        |errors: Vec<ValidationError<'_>>| first(MAX_LISTED_VIOLATIONS, &errors, |error| describe(error));
    run_check(compiled, arguments, listed).map_err(|problems| format!("Invalid arguments: {problems}"))
}

/// Checks the parameters of an action against its schema, within the limits of [`schemas`]: somebody else may have written
/// both.
pub(super) fn check_schema(schema: &Value, parameters: &Value) -> Result<(), String> {
    let kept = Compiled::kept(schema).map_or_else(|| off_workers(|| Compiled::new(schema)), Ok);
    let compiled = kept.map_err(|_| "the schema of this action is wrong".to_owned())?;
    let listed = |errors: Vec<ValidationError<'_>>| {
        let mut names = BTreeSet::new();
        collect_names(schema, &mut names);
        // A set, because many fields that the schema does not name have the same description.
        let problems: BTreeSet<_> = errors.iter().map(|error| describe_action(error, &names)).collect();
        first(MAX_LISTED_VIOLATIONS, problems, |problem| problem)
    };
    run_check(&compiled, parameters, listed).map_err(|problems| format!("Invalid params: {problems}"))
}

/// Checks the schema of an action that somebody defines.
pub(crate) fn compile_schema(schema: &Value) -> Result<(), String> {
    off_workers(|| Compiled::new(schema)).map(drop)
}

/// Validates a value. The error lists what is wrong with it.
fn run_check(
    compiled: &Compiled,
    value: &Value,
    listed: impl FnOnce(Vec<ValidationError<'_>>) -> Option<String>,
) -> Result<(), String> {
    let check = || match compiled.check(value) {
        Ok(()) => Ok(()),
        Err(Problems::Named(errors)) => listed(errors).map_or(Ok(()), Err),
        Err(Problems::Unnamed) => Err(UNNAMED.to_owned()),
        Err(Problems::OverBudget) => Err(OVER_BUDGET.to_owned()),
    };
    if compiled.is_within(value, CHECKED_AT_ONCE) { check() } else { off_workers(check) }
}

/// Does something that takes long. The other tasks of this async worker go on elsewhere meanwhile.
fn off_workers<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}

/// The names of fields in a schema. Only these are repeated in messages: others are the caller's content, and a message is
/// recorded in the ledger.
fn collect_names<'a>(schema: &'a Value, names: &mut BTreeSet<&'a str>) {
    match schema {
        Value::Object(fields) => {
            if let Some(Value::Object(properties)) = fields.get("properties") {
                names.extend(properties.keys().map(String::as_str));
            }
            fields.values().for_each(|value| collect_names(value, names));
        }
        Value::Array(items) => items.iter().for_each(|item| collect_names(item, names)),
        _ => {}
    }
}

fn describe_action(error: &ValidationError<'_>, names: &BTreeSet<&str>) -> String {
    let pointer = error.instance_path().to_string();
    let mut parts = pointer.split('/').skip(1);
    if !parts.all(|part| part.parse::<usize>().is_ok() || names.contains(part)) {
        return "a field that the schema does not name does not fit it".to_owned();
    }
    match error.kind() {
        ValidationErrorKind::AdditionalProperties { unexpected } => {
            format!("{} must not have other fields ({} found)", field(&pointer), unexpected.len())
        }
        _ => describe(error),
    }
}

fn describe(error: &ValidationError<'_>) -> String {
    let field = field(&error.instance_path().to_string());
    match error.kind() {
        ValidationErrorKind::Required { property } => {
            let property = property.as_str().unwrap_or_default();
            if field == ROOT_PATH {
                format!("{property} is required")
            } else {
                format!("{field}.{property} is required")
            }
        }
        ValidationErrorKind::AdditionalProperties { unexpected } => {
            let names =
                first(MAX_LISTED_VIOLATIONS, unexpected, |name| place(name).to_owned()).unwrap_or_default();
            format!("{field} has unknown fields: {names}")
        }
        ValidationErrorKind::Type { kind: TypeKind::Single(kind) } => {
            format!("{field} must be {}", name(*kind))
        }
        ValidationErrorKind::MinLength { limit } => format!("{field} must have at least {limit} characters"),
        ValidationErrorKind::MaxLength { limit } => format!("{field} must have at most {limit} characters"),
        ValidationErrorKind::MinItems { limit } => format!("{field} must have at least {limit} entries"),
        ValidationErrorKind::MaxItems { limit } => format!("{field} must have at most {limit} entries"),
        ValidationErrorKind::Minimum { limit } => format!("{field} must be at least {limit}"),
        ValidationErrorKind::Maximum { limit } => format!("{field} must be at most {limit}"),
        ValidationErrorKind::Enum { options } => format!("{field} must be one of {options}"),
        ValidationErrorKind::Format { format } => {
            let known = STRING_FORMATS.iter().find(|known| known.name == format);
            format!("{field} must be {}", known.map_or(format.as_str(), |known| known.meaning))
        }
        _ => format!("{field} does not fit the schema"),
    }
}

const ROOT_PATH: &str = "the arguments";

/// The field at a JSON pointer: `/commands/0/name` is `commands[0].name`.
fn field(pointer: &str) -> String {
    if pointer.is_empty() {
        return ROOT_PATH.to_owned();
    }
    let mut field = String::new();
    for part in place(pointer).trim_start_matches('/').split('/') {
        if part.parse::<usize>().is_ok() {
            let _ = write!(field, "[{part}]");
        } else {
            let dot = if field.is_empty() { "" } else { "." };
            let _ = write!(field, "{dot}{part}");
        }
    }
    field
}

const fn name(kind: JsonType) -> &'static str {
    match kind {
        JsonType::String => "a text",
        JsonType::Array => "a list",
        JsonType::Object => "an object",
        JsonType::Boolean => "true or false",
        JsonType::Integer => "a whole number",
        JsonType::Number => "a number",
        JsonType::Null => "null",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn problems(arguments: &Value) -> String {
        let text = json!({"type": "string", "minLength": 2, "maxLength": 4, "format": "line"});
        let schema = json!({
            "type": "object", "additionalProperties": false, "required": ["list", "also"],
            "properties": {
                "list": {"type": "array", "maxItems": 3, "items": text},
                "also": {"type": "boolean"},
                "kind": {"enum": ["a", "b"]},
                "path": {"type": "string", "format": "workspace-path"},
                "key": {"type": "string", "format": "variable"},
            },
        });
        let compiled = validator(schema).unwrap();
        check(&compiled, arguments).err().unwrap_or_default()
    }

    #[test]
    fn every_violation_is_named_with_its_field_and_limit_and_without_its_value() {
        assert_eq!(problems(&json!({"list": [], "also": true, "path": "a/.b", "key": "A_1"})), "");
        let said = problems(&json!({
            "list": ["x", "secret", 7, "a\u{1b}b", "ok"], "kind": "secret", "path": "../secret", "key": "1secret",
            "more": 1, "sec ret": 2,
        }));
        for part in [
            "list must have at most 3 entries",
            "list[0] must have at least 2 characters",
            "list[1] must have at most 4 characters",
            "list[2] must be a text",
            "list[3] must be one line without control characters",
            "also is required",
            r#"kind must be one of ["a","b"]"#,
            "path must be a path inside the workspace",
            "key must be the name of an environment variable",
            "the arguments has unknown fields: more, a parameter",
        ] {
            assert!(said.contains(part), "{part} is not in {said}");
        }
        assert!(!said.contains("sec"), "{said}");
    }

    #[test]
    fn an_action_names_all_violations_and_survives_a_hostile_schema() {
        let schema = json!({"required": ["a"], "properties": {
            "n": {"type": "integer", "maximum": 3}, "m": {"minimum": 2}, "s": {"type": "string"}}});
        let said = check_schema(&schema, &json!({"n": 4, "m": 1, "s": 7})).unwrap_err();
        assert_eq!(
            said,
            "Invalid params: a is required, m must be at least 2, n must be at most 3, s must be a text"
        );
        let closed = json!({"additionalProperties": false, "properties": {"s": {}}});
        let said = check_schema(&closed, &json!({"canary": 1})).unwrap_err();
        assert_eq!(said, "Invalid params: the arguments must not have other fields (1 found)");
        let texts = json!({"additionalProperties": {"type": "string"}});
        let said = check_schema(&texts, &json!({"canary": 1})).unwrap_err();
        assert_eq!(said, "Invalid params: a field that the schema does not name does not fit it");
        assert_eq!(check_schema(&json!({}), &json!({"anything": 1})), Ok(()));
        for hostile in [
            json!({"properties": {"s": {"$ref": "http://127.0.0.1/schema"}}}),
            json!({"properties": {"s": {"$ref": "file:///etc/passwd"}}}),
            json!({"properties": {"s": {"pattern": "(a{1000}){1000}"}}}),
            json!({"properties": {"s": {"pattern": r"(a)\1"}}}),
            json!({"type": 7}),
        ] {
            assert!(check_schema(&hostile, &json!({"s": "a"})).is_err(), "{hostile}");
        }
        let slow = json!({"properties": {"s": {"pattern": "^(a+)+$"}}});
        assert!(check_schema(&slow, &json!({"s": format!("{}b", "a".repeat(50_000))})).is_err());
    }

    #[test]
    fn a_long_list_of_violations_is_counted() {
        let said = problems(&json!({"list": vec![7; 8000], "also": true}));
        assert!(said.len() < 2000 && said.contains("at most 3 entries") && said.ends_with(" more"), "{said}");
    }

    #[test]
    fn a_call_cannot_take_more_memory_or_time_than_its_budget() {
        let branches: Vec<_> =
            (0..400).map(|at| json!({"type": "object", "required": [format!("a{at}")]})).collect();
        let names: Vec<_> = (0..4500).map(|at| format!("n{at}")).collect();
        let list = |items: Value| json!({"properties": {"l": {"items": items}}});
        let (texts, wrong) = (list(json!({"type": "string"})), |count: usize| json!({"l": vec![1; count]}));
        for (schema, parameters, said) in [
            (list(json!({"anyOf": branches})), wrong(30_000), OVER_BUDGET),
            (list(json!({"enum": names})), wrong(100_000), OVER_BUDGET),
            (texts.clone(), wrong(200_000), UNNAMED),
            (list(json!({"anyOf": branches})), wrong(100), UNNAMED),
        ] {
            assert_eq!(check_schema(&schema, &parameters), Err(format!("Invalid params: {said}")));
        }
        let fits = json!({"l": vec!["a"; 200_000]});
        assert_eq!(check_schema(&texts, &fits), Ok(()));
        assert_eq!(
            problems(&json!({"list": vec![7; 200_000], "also": true})),
            format!("Invalid arguments: {UNNAMED}")
        );
    }

    #[test]
    fn models_get_the_schema_without_our_formats() {
        let schema = json!({"items": [{"format": "line"}], "format": {"type": "string", "format": "date"}});
        assert_eq!(
            schema_for_models(&schema),
            json!({"items": [{}], "format": {"type": "string", "format": "date"}})
        );
    }

    #[test]
    fn paths_stay_inside() {
        for inside in ["", ".", "a", "a/b..c", ".env"] {
            assert!(is_inside(inside), "{inside}");
        }
        for outside in ["/", "/etc", "..", "a/../b", "a\\b", "a\nb", "a\0"] {
            assert!(!is_inside(outside), "{outside:?}");
        }
    }
}
