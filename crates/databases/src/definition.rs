//! The queries that operators define: each is an action with a schema of its parameters.

use std::collections::BTreeSet;

use proto::JsonObject;
use proto::http::{DatabaseQuery, QueryParameter};
use schemas::{MAX_PATTERNS, Size, measure};
use serde_json::{Value, json};

use crate::MAX_SQL;

/// The name of the action that executes a statement of the caller.
pub const FREE_FORM: &str = "query";
/// The maximum number of queries of a database, and of parameters of a query.
const MAX_QUERIES: usize = 100;
const MAX_PARAMETERS: usize = 30;
const MAX_NAME: usize = 60;
const MAX_DESCRIPTION: usize = 4000;

/// The JSON Schema of a query's parameters.
pub fn schema(query: &DatabaseQuery) -> Value {
    let properties: JsonObject = query
        .parameters
        .iter()
        .map(|parameter| (parameter.name.clone(), Value::Object(parameter.schema.clone())))
        .collect();
    let required: Vec<_> = query
        .parameters
        .iter()
        .filter(|parameter| parameter.required)
        .map(|parameter| &parameter.name)
        .collect();
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}

/// The JSON Schema of the parameters of [`FREE_FORM`].
pub fn free_form_schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "sql": {"type": "string", "minLength": 1, "maxLength": MAX_SQL,
                "description": "One SELECT statement"},
            "params": {"type": "array", "maxItems": MAX_PARAMETERS,
                "description": "The values of its parameters in order"},
        },
        "required": ["sql"],
        "additionalProperties": false,
    })
}

/// The values of a query's parameters in order. One that is absent has the default of its schema, or is NULL.
pub fn arguments(query: &DatabaseQuery, parameters: &Value) -> Vec<Value> {
    let value = |parameter: &QueryParameter| {
        let given = parameters.get(&parameter.name).or_else(|| parameter.schema.get("default"));
        given.cloned().unwrap_or(Value::Null)
    };
    query.parameters.iter().map(value).collect()
}

/// Checks the queries of a database. Returns what is wrong with the first that is not usable. The schemas of usable ones can
/// be compiled in bounded time.
pub fn check_queries(queries: &[DatabaseQuery]) -> Result<(), String> {
    if queries.len() > MAX_QUERIES {
        return Err(format!("a database has at most {MAX_QUERIES} queries"));
    }
    let (mut names, mut patterns) = (BTreeSet::new(), 0);
    for query in queries {
        let name = &query.name;
        if !is_name(name) {
            return Err(format!(
                "the name of a query has 1 to {MAX_NAME} letters, digits and _: {:.80}",
                quote(name)
            ));
        }
        if name == FREE_FORM {
            return Err(format!(
                "`{FREE_FORM}` is the name of the action for statements of agents: choose another"
            ));
        }
        if !names.insert(name) {
            return Err(format!("two queries have the name {name}"));
        }
        check_query(query).map_err(|problem| format!("query {name}: {problem}"))?;
        patterns += measure(&schema(query)).map_or(0, Size::patterns);
    }
    if patterns > MAX_PATTERNS {
        return Err(format!(
            "the schemas of their parameters have more than {MAX_PATTERNS} patterns together"
        ));
    }
    Ok(())
}

fn check_query(query: &DatabaseQuery) -> Result<(), String> {
    let DatabaseQuery { description, sql, parameters, .. } = query;
    if description.trim().is_empty() || description.len() > MAX_DESCRIPTION {
        return Err(format!("description must have 1 to {MAX_DESCRIPTION} bytes: agents choose by it"));
    }
    if sql.trim().is_empty() || sql.len() > MAX_SQL || sql.contains('\0') {
        return Err(format!("sql must have 1 to {MAX_SQL} bytes without NUL"));
    }
    if parameters.len() > MAX_PARAMETERS {
        return Err(format!("it has more than {MAX_PARAMETERS} parameters"));
    }
    let mut names = BTreeSet::new();
    match parameters.iter().find(|parameter| !is_name(&parameter.name) || !names.insert(&parameter.name)) {
        Some(wrong) => Err(format!(
            "the names of parameters have 1 to {MAX_NAME} letters, digits and _, and differ: {:.80}",
            quote(&wrong.name)
        )),
        None => parameters.iter().try_for_each(check_schema),
    }
}

fn check_schema(parameter: &QueryParameter) -> Result<(), String> {
    check_references(parameter)?;
    let name = &parameter.name;
    let size = measure(&Value::Object(parameter.schema.clone()));
    match size.map_err(|problem| format!("the schema of the parameter {name} {problem}"))? {
        size if size.has_unevaluated() => Err(format!(
            "the schema of the parameter {name} has unevaluatedProperties or unevaluatedItems, which can take exponential \
             time: use additionalProperties or items"
        )),
        _ => Ok(()),
    }
}

/// A reference would be looked up in the schema of the whole query, and be followed wherever it occurs, so that a small
/// schema could take exponential time.
fn check_references(parameter: &QueryParameter) -> Result<(), String> {
    match parameter.schema.iter().find_map(|(key, value)| reference(key, value)) {
        Some(key) => Err(format!(
            "the schema of the parameter {} contains {key}: write out what it refers to",
            parameter.name
        )),
        None => Ok(()),
    }
}

/// The keyword of a reference in a part of a schema. A parameter may have a field of that name, which is no text.
fn reference<'a>(key: &'a str, value: &'a Value) -> Option<&'a str> {
    match value {
        Value::String(_) => ["$ref", "$dynamicRef", "$recursiveRef"].contains(&key).then_some(key),
        Value::Object(fields) => fields.iter().find_map(|(key, value)| reference(key, value)),
        Value::Array(items) => items.iter().find_map(|item| reference("", item)),
        _ => None,
    }
}

fn quote(text: &str) -> String {
    format!("{text:?}")
}

fn is_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && !name.starts_with(|first: char| first.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(change: &Value) -> DatabaseQuery {
        let mut raw = json!({"name": "orders", "description": "Lists orders", "sql": "SELECT $1, $2",
            "parameters": [{"name": "customer", "schema": {"type": "integer"}},
                {"name": "limit", "schema": {"type": "integer", "default": 10}, "required": false}]});
        raw.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        serde_json::from_value(raw).unwrap()
    }

    #[test]
    fn parameters_become_a_schema_and_values_in_order() {
        let query = query(&json!({}));
        assert_eq!(
            schema(&query),
            json!({"type": "object", "required": ["customer"], "additionalProperties": false,
                "properties": {"customer": {"type": "integer"}, "limit": {"type": "integer", "default": 10}}})
        );
        assert_eq!(arguments(&query, &json!({"limit": 3, "customer": 7})), [json!(7), json!(3)]);
        assert_eq!(arguments(&query, &json!({"customer": 7})), [json!(7), json!(10)]);
        assert_eq!(query.risk, proto::Risk::Read);
    }

    #[test]
    fn unusable_queries_are_refused() {
        assert_eq!(check_queries(&[query(&json!({}))]), Ok(()));
        let fields = json!({"properties": {"$ref": {"type": "string"}}, "enum": [{"name": "$ref"}]});
        let field = query(&json!({"parameters": [{"name": "a", "schema": fields}]}));
        assert_eq!(check_queries(&[field]), Ok(()), "a field with the name of a keyword");
        for (change, part) in [
            (json!({"name": ""}), "1 to 60 letters"),
            (json!({"name": "a:b"}), "1 to 60 letters"),
            (json!({"name": "query"}), "choose another"),
            (json!({"description": " "}), "description"),
            (json!({"sql": ""}), "sql must have"),
            (json!({"sql": "SELECT '\u{0}'"}), "without NUL"),
            (json!({"parameters": [{"name": "a b", "schema": {}}]}), "names of parameters"),
            (
                json!({"parameters": [{"name": "a", "schema": {"$ref": "#/properties/b"}}]}),
                "parameter a contains $ref",
            ),
            (
                json!({"parameters": [{"name": "a", "schema": {"anyOf": [{"items": {"$dynamicRef": "#x"}}]}}]}),
                "parameter a contains $dynamicRef",
            ),
            (json!({"parameters": [{"name": "a", "schema": {}}, {"name": "a", "schema": {}}]}), "and differ"),
        ] {
            let problem = check_queries(&[query(&change)]).unwrap_err();
            assert!(problem.contains(part), "{change}: {problem}");
        }
        let nested = (0..18).fold(
            json!({"properties": {"x": {}}}),
            |schema, _| json!({"anyOf": [schema], "unevaluatedProperties": false}),
        );
        let pattern = json!({"anyOf": vec![json!({"pattern": "^a$"}); 60]});
        for (schema, part) in [
            (nested, "parameter a has unevaluatedProperties"),
            (json!({"unevaluatedItems": false}), "parameter a has unevaluatedProperties or unevaluatedItems"),
            (json!({"allOf": [pattern, pattern]}), "parameter a has more than 100 patterns"),
        ] {
            let problem = check_queries(&[query(&json!({"parameters": [{"name": "a", "schema": schema}]}))]);
            assert!(problem.as_ref().is_err_and(|problem| problem.contains(part)), "{problem:?}");
        }
        let patterns =
            |name: &str| query(&json!({"name": name, "parameters": [{"name": "a", "schema": pattern}]}));
        assert_eq!(check_queries(&[patterns("one")]), Ok(()));
        let together = check_queries(&[patterns("one"), patterns("two")]).unwrap_err();
        assert!(together.contains("more than 100 patterns together"), "{together}");
        let twice = check_queries(&[query(&json!({})), query(&json!({}))]);
        assert_eq!(twice, Err("two queries have the name orders".to_owned()));
        assert!(check_queries(&vec![query(&json!({})); 101]).is_err());
    }
}
