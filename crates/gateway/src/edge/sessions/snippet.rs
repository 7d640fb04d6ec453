//! Shortens the first prompt of a session to one line, for lists. Prompts from automations are often JSON, those from
//! people Markdown.

use serde_json::Value;

/// The number of characters of a prompt that are examined.
const LOOKED_AT: usize = 2000;
/// The most and the fewest characters of a snippet.
const MAX_CHARS: usize = 150;
const MIN_CHARS: usize = 10;
/// The JSON fields that may contain the text of a prompt. The first one that is present is used.
const TEXT_FIELDS: [&str; 6] = ["message", "content", "body", "description", "prompt", "text"];
const CODE_FENCE: &str = "```";
/// The characters of Markdown markers at the start of a line.
const LINE_MARKERS: &str = "#>-*+=_";
/// The characters around emphasized words in Markdown.
const EMPHASIS_MARKERS: [char; 4] = ['*', '_', '~', '`'];

/// The prompt in one line; `None` if it is too short to be useful.
pub(super) fn snippet(prompt: &str) -> Option<String> {
    let seen: String = prompt.chars().take(LOOKED_AT).collect();
    let line = strip_markdown(&text_of_json_prompt(&seen).unwrap_or(seen));
    let length = line.chars().count();
    if length < MIN_CHARS {
        return None;
    }
    if length <= MAX_CHARS {
        return Some(line);
    }
    // The snippet has at most `MAX_CHARS` characters including the ellipsis.
    let cut: String = line.chars().take(MAX_CHARS).collect();
    let end = cut.rfind(' ').or_else(|| cut.char_indices().next_back().map(|(at, _)| at));
    Some(format!("{}…", &cut[..end.unwrap_or_default()]))
}

/// The text field of a JSON prompt; `None` if the prompt is not JSON or has no such field.
fn text_of_json_prompt(text: &str) -> Option<String> {
    let value: Value = serde_json::from_str(text).ok()?;
    TEXT_FIELDS.iter().find_map(|field| value.get(field)?.as_str()).map(str::to_owned)
}

/// The words of a text, without code blocks, HTML tags and Markdown.
fn strip_markdown(text: &str) -> String {
    let outside: String = text.split(CODE_FENCE).step_by(2).collect::<Vec<_>>().join("\n");
    let text = without_links(&without_tags(&outside));
    let words: Vec<String> = text.lines().flat_map(words).collect();
    words.join(" ")
}

fn words(line: &str) -> impl Iterator<Item = String> {
    let marker = |word: &&str| word.chars().all(|c| LINE_MARKERS.contains(c));
    let bare = |word: &str| word.replace("**", "").replace('`', "").trim_matches(EMPHASIS_MARKERS).to_owned();
    line.split_whitespace().skip_while(marker).map(bare).filter(|word| !word.is_empty())
}

/// Replaces HTML tags with spaces. A `<` that does not start a tag stays.
fn without_tags(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('<') {
        out.push_str(before);
        match after.split_once('>') {
            Some((tag, after))
                if tag.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/' || c == '!') =>
            {
                out.push(' ');
                rest = after;
            }
            _ => {
                out.push('<');
                rest = after;
            }
        }
    }
    out + rest
}

/// Replaces `[words](where)` with its words, and removes images.
fn without_links(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('[') {
        let link = after.split_once("](").and_then(|(words, after)| Some((words, after.split_once(')')?.1)));
        if let Some((words, after)) = link.filter(|(words, _)| !words.contains(['[', ']', '\n'])) {
            match before.strip_suffix('!') {
                Some(before) => out.push_str(before),
                None => out.extend([before, words]),
            }
            rest = after;
        } else {
            out.extend([before, "["]);
            rest = after;
        }
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_shown_in_one_line() {
        let shown = |prompt: &str| snippet(prompt).unwrap_or_default();
        assert_eq!(
            (snippet("short"), snippet(""), snippet("# - >\n```\ncode and more\n```")),
            (None, None, None)
        );
        for json in [
            r#"{"message":"Fix the login redirect loop"}"#,
            r#"{"text": "no", "id": 5, "body": "Fix the login redirect loop"}"#,
            r#"{"message": 7, "prompt": "Fix the login\nredirect loop"}"#,
        ] {
            assert_eq!(shown(json), "Fix the login redirect loop");
        }
        for (prompt, line) in [
            (r#"{"other": "some words"}"#, r#"{"other": "some words"}"#),
            ("{not JSON, for sure", "{not JSON, for sure"),
            ("# Title\n\n- do **this**, `now`\n> and _that_\n", "Title do this, now and that"),
            ("<p>Some <b>bold</b> words</p> if a < b > c", "Some bold words if a < b > c"),
            ("see [the page](https://h/x) ![shot](a.png) for it[1]", "see the page for it[1]"),
            ("before it\n```rust\nlet x = 1;\n```\nand after", "before it and after"),
            ("keep snake_case - and *this*", "keep snake_case - and this"),
        ] {
            assert_eq!(shown(prompt), line);
        }
    }

    #[test]
    fn a_long_prompt_is_truncated_between_words() {
        assert_eq!(snippet(&"a".repeat(200)).unwrap(), format!("{}…", "a".repeat(149)));
        assert_eq!(snippet(&"ä".repeat(200)).unwrap(), format!("{}…", "ä".repeat(149)));
        assert_eq!(snippet(&"a".repeat(150)).unwrap(), "a".repeat(150));
        assert_eq!(snippet(&"word ".repeat(40)).unwrap(), format!("{}…", ["word"; 30].join(" ")));
        let long = format!("{{\"message\":\"{}\"}}", "x".repeat(5000));
        assert!(snippet(&long).unwrap().starts_with("{\"message\":\"xx"), "it is not looked at to its end");
    }
}
