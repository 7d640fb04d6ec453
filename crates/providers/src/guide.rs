//! The guide of a provider in Markdown, written from the same table that requests are made from, for the actions that its
//! reader can use.

use std::fmt::Write as _;

use serde_json::Value;

use crate::{Action, Provider};

pub(crate) fn guide(provider: &Provider, shows: impl Fn(&Action) -> bool) -> String {
    let mut page = format!("# {}\n\n{}\n\n## Actions\n", provider.name, provider.introduction);
    let selected: Vec<_> = provider.actions.iter().filter(|action| shows(action)).collect();
    for action in &selected {
        describe(&mut page, action);
    }
    let example = selected.first().map_or("", |action| action.name);
    let _ = write!(
        page,
        "\n## Usage\n\n```\nproliferate actions run --integration {} --action {example} --params '{{…}}'\n```\n",
        provider.id
    );
    page
}

fn describe(page: &mut String, action: &Action) {
    let _ = write!(page, "\n### {} ({})\n\n{}\n", action.name, action.risk.as_str(), action.description);
    let schema = action.schema();
    let required = |name: &str| {
        let names = schema["required"].as_array();
        names.is_some_and(|names| names.iter().any(|found| found == name))
    };
    for (name, param) in schema["properties"].as_object().into_iter().flatten() {
        let kind = param["type"].as_str().unwrap_or("any");
        let required = if required(name) { ", required" } else { "" };
        let description = param["description"].as_str().unwrap_or_default();
        let values = param["enum"].as_array().map(|values| one_of(values)).unwrap_or_default();
        let _ = writeln!(page, "- `{name}` ({kind}{required}): {description}{values}");
    }
}

fn one_of(values: &[Value]) -> String {
    let names: Vec<_> = values.iter().filter_map(Value::as_str).map(|name| format!("`{name}`")).collect();
    format!(" One of {}.", names.join(", "))
}
