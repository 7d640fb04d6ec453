//! Substitutes `{prompt}` and `{tool_result}` in the text of a step, and what a prompt names in the input of a tool.

use serde_json::Value;

/// Maximum length of an answer, whatever the request or script contains: an answer becomes many small frames
/// in memory.
const MAX_FILLED: usize = 256 * 1024;
/// Maximum length of one substituted value.
const MAX_VALUE: usize = 4_000;

/// A single pass, so that a placeholder inside the user's own text is not substituted.
pub(crate) fn fill(template: &str, prompt: &str, tool_result: &str) -> String {
    let values = [("{prompt}", shorten(prompt)), ("{tool_result}", shorten(tool_result))];
    let mut filled = String::with_capacity(template.len());
    let mut rest = template;
    while !rest.is_empty() && filled.len() < MAX_FILLED {
        let hit = values.iter().find_map(|(name, value)| Some((value, rest.strip_prefix(name)?)));
        if let Some((value, after)) = hit {
            filled.push_str(value);
            rest = after;
        } else {
            let plain = rest.char_indices().skip(1).find(|(_, c)| *c == '{').map_or(rest.len(), |(at, _)| at);
            filled.push_str(&rest[..plain]);
            rest = &rest[plain..];
        }
    }
    filled
}

/// Replaces the texts `{prompt:NAME}` in a tool's input by what stands in backticks after this name in the prompt.
pub(crate) fn fill_input(input: Value, prompt: &str) -> Value {
    match input {
        Value::String(text) => Value::String(match named(&text, prompt) {
            Some(value) => value.to_owned(),
            None => text,
        }),
        Value::Array(items) => items.into_iter().map(|item| fill_input(item, prompt)).collect(),
        Value::Object(fields) => {
            Value::Object(fields.into_iter().map(|(key, value)| (key, fill_input(value, prompt))).collect())
        }
        other => other,
    }
}

fn named<'a>(text: &str, prompt: &'a str) -> Option<&'a str> {
    let name = text.strip_prefix("{prompt:")?.strip_suffix('}')?;
    let (_, after) = prompt.split_once(&format!("{name} `"))?;
    after.split_once('`').map(|(value, _)| value)
}

fn shorten(value: &str) -> String {
    match value.char_indices().nth(MAX_VALUE) {
        Some((end, _)) => format!("{}…", &value[..end]),
        None => value.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_substituted_everywhere() {
        assert_eq!(fill("{prompt}: é {tool_result}!{prompt}", "p", "r"), "p: é r!p");
        assert_eq!(fill("no {such} {prompt", "p", "r"), "no {such} {prompt");
        assert_eq!(fill("", "p", "r"), "");
    }

    #[test]
    fn placeholders_in_user_text_are_not_substituted() {
        assert_eq!(fill("<{prompt}>", "{tool_result}{prompt}", "secret"), "<{tool_result}{prompt}>");
    }

    #[test]
    fn the_input_of_a_tool_has_what_the_prompt_names() {
        let input = serde_json::json!({"id": "{prompt:run_id}", "list": ["{prompt:other}", "{prompt}", 1]});
        let filled = fill_input(input, "call it with run_id `r-1` and other_id `o`");
        assert_eq!(filled, serde_json::json!({"id": "r-1", "list": ["{prompt:other}", "{prompt}", 1]}));
    }

    #[test]
    fn long_values_and_answers_are_truncated() {
        let long = "ä".repeat(MAX_VALUE + 1);
        assert_eq!(fill("{prompt}", &long, "").chars().count(), MAX_VALUE + 1);
        assert!(fill("{prompt}", &long, "").ends_with('…'));
        let all = fill(&"{prompt}".repeat(1_000), &long, "");
        assert!(all.len() < MAX_FILLED + 3 * MAX_VALUE, "{}", all.len());
    }
}
