//! Keeps what an agent sends to a size that can be stored and shown to everyone who watches.

use serde_json::{Map, Value};

/// Strings are cut to this where a whole value is too large.
const LONG: usize = 2 * 1024;
/// Lists are cut to this many items in the same case.
const MANY: usize = 100;

/// The beginning of a text, and how much is missing.
pub(super) fn text(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let begin = head(text, most);
    format!("{begin}\n… ({} bytes more)", text.len() - begin.len())
}

/// The beginning of a text, cut between characters.
pub(super) fn head(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

/// The first line of a text for people, for that is where the reason is; what follows is a stack of calls.
pub(super) fn line(text: &str, most: usize) -> String {
    head(text.lines().next().unwrap_or_default().trim(), most).to_owned()
}

/// A JSON object with at most about so many bytes; anything else is an empty one.
pub(super) fn object(raw: &str, most: usize) -> Map<String, Value> {
    let Ok(Value::Object(mut object)) = serde_json::from_str(raw) else { return Map::new() };
    if raw.len() <= most {
        return object;
    }
    object.values_mut().for_each(shorten);
    let size = serde_json::to_string(&object).map_or(usize::MAX, |text| text.len());
    if size <= most { object } else { Map::from_iter([("truncated".to_owned(), Value::Bool(true))]) }
}

/// The end of a long text is kept, since that is what a running command said last.
fn shorten(value: &mut Value) {
    match value {
        Value::String(text) if text.len() > LONG => {
            let from = text.ceil_char_boundary(text.len() - LONG);
            text.replace_range(..from, "…");
        }
        Value::Array(items) => {
            items.truncate(MANY);
            items.iter_mut().for_each(shorten);
        }
        Value::Object(entries) => entries.values_mut().for_each(shorten),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_fits_is_untouched_and_what_does_not_says_so() {
        assert_eq!(text("äöü", 6), "äöü");
        assert_eq!(text("äöü", 5), "äö\n… (2 bytes more)");
        assert_eq!(line("  reason  \n at f()", 99), "reason");
    }

    #[test]
    fn a_large_value_is_cut_inside_and_a_hopeless_one_replaced() {
        let small = json!({ "command": "ls", "list": [1] });
        assert_eq!(Value::Object(object(&small.to_string(), 100)), small);
        let long = json!({ "path": "a", "content": format!("{}é end", "x".repeat(9_000)) });
        let cut = object(&long.to_string(), 4_000);
        assert_eq!(cut["path"], "a");
        assert!(cut["content"].as_str().unwrap().ends_with("é end"));
        let wide: Map<_, _> = (0..1_000).map(|n| (format!("key{n}"), json!(n))).collect();
        assert_eq!(
            Value::Object(object(&Value::Object(wide).to_string(), 4_000)),
            json!({ "truncated": true })
        );
        assert!(object("[1]", 9).is_empty() && object("{", 9).is_empty());
    }
}
