//! Truncates what an agent sends to a size that can be stored and broadcast.

use serde_json::{Map, Value};

/// If a value is too large, each of its strings is truncated to this fraction of the limit.
const STRING_FRACTION: usize = 8;
/// The number of items to which lists are truncated in the same case.
const MAX_ITEMS: usize = 100;
/// The longest word that is left out completely when a text is cut in it.
const MAX_WORD: usize = 1024;

/// The beginning of a text, and how many bytes are missing.
pub(super) fn text(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let begin = &text[..before_word(text, most)];
    format!("{begin}\n… ({} bytes more)", text.len() - begin.len())
}

/// The beginning of a text.
pub(super) fn head(text: &str, most: usize) -> &str {
    if text.len() <= most { text } else { &text[..before_word(text, most)] }
}

/// The first line of a text for people; the lines after it are usually a stack trace.
pub(super) fn line(text: &str, most: usize) -> String {
    let whole = text.lines().next().unwrap_or_default().trim();
    let begin = head(whole, most).trim_end();
    if begin.len() == whole.len() { begin.to_owned() } else { format!("{begin}…") }
}

/// A JSON object of at most about `most` bytes; anything else becomes an empty object.
pub(super) fn object(raw: &str, most: usize) -> Map<String, Value> {
    let Ok(Value::Object(mut object)) = serde_json::from_str(raw) else { return Map::new() };
    if raw.len() <= most {
        return object;
    }
    for value in object.values_mut() {
        shorten(value, most / STRING_FRACTION);
    }
    let size = serde_json::to_string(&object).map_or(usize::MAX, |text| text.len());
    if size <= most {
        return object;
    }
    let ends = [
        ("truncated".to_owned(), Value::Bool(true)),
        ("raw".to_owned(), ends(raw, most / STRING_FRACTION).into()),
    ];
    Map::from_iter(ends)
}

/// The beginning and the end of a text, which are usually the most informative.
fn ends(text: &str, most: usize) -> String {
    let begin = &text[..before_word(text, most / 2)];
    let end = &text[after_word(text, text.len() - most / 2)..];
    format!("{begin}… ({} bytes left out) …{end}", text.len() - begin.len() - end.len())
}

/// Where to cut a text at the latest. No word is cut, unless it is very long, because whoever removes secrets from the text
/// afterwards would not find half a secret.
fn before_word(text: &str, most: usize) -> usize {
    let at = text.floor_char_boundary(most);
    if text[..at].ends_with(is_break) || text[at..].starts_with(is_break) {
        return at;
    }
    let from = text.floor_char_boundary(at.saturating_sub(MAX_WORD));
    text[from..at].rfind(is_break).map_or(at, |found| from + found + 1)
}

/// Where the end of a text begins at the earliest.
fn after_word(text: &str, least: usize) -> usize {
    let at = text.ceil_char_boundary(least);
    if text[..at].ends_with(is_break) || text[at..].starts_with(is_break) {
        return at;
    }
    let to = text.floor_char_boundary(at + MAX_WORD);
    text[at..to].find(is_break).map_or(at, |found| at + found)
}

fn is_break(c: char) -> bool {
    c.is_ascii_whitespace() || matches!(c, '"' | '\'')
}

fn shorten(value: &mut Value, most: usize) {
    match value {
        Value::String(text) if text.len() > most => *text = ends(text, most),
        Value::Array(items) => {
            if items.len() > MAX_ITEMS {
                let left_out = format!("… ({} items left out) …", items.len() - MAX_ITEMS);
                items.splice(MAX_ITEMS / 2..items.len() - MAX_ITEMS / 2, [Value::String(left_out)]);
            }
            for item in items {
                shorten(item, most);
            }
        }
        Value::Object(entries) => {
            for value in entries.values_mut() {
                shorten(value, most);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn long_texts_are_truncated_with_a_note() {
        assert_eq!(text("äöü", 6), "äöü");
        assert_eq!(text("äöü", 5), "äö\n… (2 bytes more)");
        assert_eq!(line("  reason  \n at f()", 99), "reason");
    }

    #[test]
    fn words_are_not_cut_so_that_no_half_of_a_secret_is_left() {
        let secret = "s3cret-of-the-vault";
        for before in 0..60 {
            let long =
                format!("{} {secret} {} {secret} {}", "x".repeat(before), "y".repeat(60), "z".repeat(before));
            for cut in [text(&long, 60), ends(&long, 80), head(&long, 60).to_owned(), line(&long, 60)] {
                let left = cut.replace(secret, "");
                assert!(!left.contains("s3c") && !left.contains("ault"), "{cut}");
                assert!(cut.len() < 140, "{cut}");
            }
        }
    }

    #[test]
    fn large_values_are_truncated_or_replaced() {
        let small = json!({ "command": "ls", "list": [1] });
        assert_eq!(Value::Object(object(&small.to_string(), 100)), small);
        let content = format!("begin é {} é end", "x".repeat(9_000));
        let long = json!({ "path": "a", "content": content, "list": (0..1_000).collect::<Vec<_>>() });
        let cut = object(&long.to_string(), 4_000);
        assert_eq!(cut["path"], "a");
        let content = cut["content"].as_str().unwrap();
        assert!(
            content.starts_with("begin é") && content.ends_with("é end") && content.len() < 600,
            "{content}"
        );
        assert!(content.contains("bytes left out"), "{content}");
        let list = cut["list"].as_array().unwrap();
        assert_eq!((list.len(), &list[0], &list[100]), (MAX_ITEMS + 1, &json!(0), &json!(999)));
        let wide: Map<_, _> = (0..1_000).map(|n| (format!("key{n}"), json!(n))).collect();
        let cut = object(&Value::Object(wide).to_string(), 4_000);
        assert_eq!(cut["truncated"], true);
        let raw = cut["raw"].as_str().unwrap();
        assert!(raw.starts_with(r#"{"key0":0"#) && raw.ends_with('}') && raw.len() < 600, "{raw}");
        assert!(object("[1]", 9).is_empty() && object("{", 9).is_empty());
    }
}
