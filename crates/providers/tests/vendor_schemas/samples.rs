//! Parameters made from a schema: the fewest, all, and all with every value of each enumeration.

use serde_json::{Map, Value, json};

pub(crate) fn samples(schema: &Value) -> Vec<Value> {
    let properties = schema["properties"].as_object().unwrap();
    let required: Vec<_> =
        schema["required"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    let full: Map<_, _> =
        properties.iter().map(|(name, param)| (name.clone(), sample(name, param))).collect();
    let least = full.iter().filter(|(name, _)| required.contains(&name.as_str()));
    let mut all = vec![Value::Object(least.map(|(name, value)| (name.clone(), value.clone())).collect())];
    for (name, param) in properties {
        for value in param["enum"].as_array().into_iter().flatten() {
            let mut variant = full.clone();
            variant.insert(name.clone(), value.clone());
            all.push(variant.into());
        }
    }
    all.push(full.into());
    all
}

fn sample(name: &str, param: &Value) -> Value {
    if let Some(values) = param["enum"].as_array() {
        return values[0].clone();
    }
    match (name, param["type"].as_str().unwrap()) {
        ("issue_id", _) => "1234".into(),
        ("event_id", _) => "latest".into(),
        ("path", _) => "src/main.rs".into(),
        ("since", _) => "2026-01-31T00:00:00Z".into(),
        ("ref", _) => "heads/feature/x".into(),
        (_, "integer") => param["minimum"].clone(),
        (_, "boolean") => true.into(),
        (_, "array") => json!([sample("", &param["items"])]),
        _ => "octocat".into(),
    }
}
