//! Truncates what an agent sends to a size that can be stored and broadcast.

use agent::SecretFinder;
use serde_json::{Map, Value};

/// If a value is too large, each of its strings is truncated to this fraction of the limit.
const STRING_FRACTION: usize = 8;
/// The number of items to which lists are truncated in the same case.
const MAX_ITEMS: usize = 100;

/// The beginning of a text, and how many bytes are missing.
pub(super) fn text(text: &str, most: usize, secrets: &SecretFinder) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let begin = head(text, most, secrets);
    format!("{begin}\n… ({} bytes more)", text.len() - begin.len())
}

/// The beginning of a text.
pub(super) fn head<'a>(text: &'a str, most: usize, secrets: &SecretFinder) -> &'a str {
    if text.len() <= most { text } else { &text[..secrets.cut_before(text, most)] }
}

/// The first line of a text for people; the lines after it are usually a stack trace.
pub(super) fn line(text: &str, most: usize, secrets: &SecretFinder) -> String {
    let text = text.trim_start();
    let first = text.lines().next().unwrap_or_default().trim_end();
    let begin = head(text, first.len().min(most), secrets).trim_end();
    if begin.len() == first.len() { begin.to_owned() } else { format!("{begin}…") }
}

/// A JSON object of at most about `most` bytes; anything else becomes an empty object.
pub(super) fn object(raw: &str, most: usize, secrets: &SecretFinder) -> Map<String, Value> {
    let Ok(Value::Object(mut object)) = serde_json::from_str(raw) else { return Map::new() };
    if raw.len() <= most {
        return object;
    }
    for value in object.values_mut() {
        shorten(value, most / STRING_FRACTION, secrets);
    }
    let size = serde_json::to_string(&object).map_or(usize::MAX, |text| text.len());
    if size <= most {
        return object;
    }
    let ends = [
        ("truncated".to_owned(), Value::Bool(true)),
        ("raw".to_owned(), ends(raw, most / STRING_FRACTION, secrets).into()),
    ];
    Map::from_iter(ends)
}

/// The beginning and the end of a text, which are usually the most informative.
fn ends(text: &str, most: usize, secrets: &SecretFinder) -> String {
    let begin = &text[..secrets.cut_before(text, most / 2)];
    let end = &text[secrets.cut_after(text, text.len() - most / 2)..];
    format!("{begin}… ({} bytes left out) …{end}", text.len() - begin.len() - end.len())
}

fn shorten(value: &mut Value, most: usize, secrets: &SecretFinder) {
    match value {
        Value::String(text) if text.len() > most => *text = ends(text, most, secrets),
        Value::Array(items) => {
            if items.len() > MAX_ITEMS {
                let left_out = format!("… ({} items left out) …", items.len() - MAX_ITEMS);
                items.splice(MAX_ITEMS / 2..items.len() - MAX_ITEMS / 2, [Value::String(left_out)]);
            }
            for item in items {
                shorten(item, most, secrets);
            }
        }
        Value::Object(entries) => {
            for value in entries.values_mut() {
                shorten(value, most, secrets);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const SECRET: &str = "s3cret of the\nvault";

    fn none() -> SecretFinder {
        SecretFinder::default()
    }

    /// Finds the secret as it is and in JSON.
    fn finder() -> SecretFinder {
        SecretFinder::new(|text| {
            let text = std::str::from_utf8(text).unwrap();
            let escaped = SECRET.replace('\n', "\\n");
            let found = [SECRET, &escaped].map(|secret| {
                text.match_indices(secret).map(|(at, found)| at..at + found.len()).collect::<Vec<_>>()
            });
            found.concat()
        })
    }

    #[test]
    fn long_texts_are_truncated_with_a_note() {
        assert_eq!(text("äöü", 6, &none()), "äöü");
        assert_eq!(text("äöü", 5, &none()), "äö\n… (2 bytes more)");
        assert_eq!(line("  reason  \n at f()", 99, &none()), "reason");
        assert_eq!(line("reasons", 6, &none()), "reason…");
    }

    #[test]
    fn no_cut_leaves_part_of_a_secret() {
        for before in 0..60 {
            let long =
                format!("{} {SECRET} {} {SECRET} {}", "x".repeat(before), "y".repeat(60), "z".repeat(before));
            let (wide, quoted) = (r#""k":0,"#.repeat(100), json!(long));
            let many = format!(r#"{{"a":{quoted},{wide}"z":{quoted}}}"#);
            let raw = ends(&many, 80, &finder());
            let cuts = [
                text(&long, 60, &finder()),
                ends(&long, 80, &finder()),
                head(&long, 60, &finder()).to_owned(),
                line(&long, 60, &finder()),
                raw.replace("\\n", "\n"),
            ];
            for cut in cuts {
                let left = cut.replace(SECRET, "");
                assert!(!left.contains("s3c") && !left.contains("vault"), "{cut}");
                assert!(cut.len() < 140, "{cut}");
            }
        }
    }

    #[test]
    fn large_values_are_truncated_or_replaced() {
        let small = json!({ "command": "ls", "list": [1] });
        assert_eq!(Value::Object(object(&small.to_string(), 100, &none())), small);
        let content = format!("begin é {} é end", "x".repeat(9_000));
        let long = json!({ "path": "a", "content": content, "list": (0..1_000).collect::<Vec<_>>() });
        let cut = object(&long.to_string(), 4_000, &none());
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
        let cut = object(&Value::Object(wide).to_string(), 4_000, &none());
        assert_eq!(cut["truncated"], true);
        let raw = cut["raw"].as_str().unwrap();
        assert!(raw.starts_with(r#"{"key0":0"#) && raw.ends_with('}') && raw.len() < 600, "{raw}");
        assert!(object("[1]", 9, &none()).is_empty() && object("{", 9, &none()).is_empty());
    }
}
