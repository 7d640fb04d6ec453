//! Escapes text for the terminal. Text from an agent, a caller or an export is hostile: its control characters could
//! move the cursor, rename the window or disguise what is shown, and its invisible characters could hide a text. We print
//! them as escapes, so that nothing is hidden.

use std::fmt::Write as _;

use proto::text;

/// Escapes every character that a terminal interprets or does not show, except line breaks and tabs.
pub(crate) fn clean(text: &str) -> String {
    let mut cleaned = String::with_capacity(text.len());
    let mut letters = text.chars().peekable();
    while let Some(c) = letters.next() {
        match c {
            '\n' | '\t' => cleaned.push(c),
            // A Windows line break: drop the carriage return.
            '\r' if letters.peek() == Some(&'\n') => {}
            c if is_hidden(c) => cleaned.extend(c.escape_unicode()),
            c => cleaned.push(c),
        }
    }
    cleaned
}

/// Like [`clean`], but also escapes line breaks and replaces tabs, so that the result is one line.
pub(crate) fn one_line(text: &str) -> String {
    clean(text).replace('\n', "\\n").replace('\t', " ")
}

/// Escapes every character in JSON text that a terminal interprets or does not show. The meaning stays the same: such characters can
/// only occur in strings, where JSON allows an escape for each.
pub(crate) fn clean_json(json: &str) -> String {
    let mut cleaned = String::with_capacity(json.len());
    for c in json.chars() {
        if is_hidden(c) && c != '\n' {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(cleaned, "\\u{unit:04x}");
            }
        } else {
            cleaned.push(c);
        }
    }
    cleaned
}

/// Whether a terminal interprets this character or shows nothing for it: instructions for an agent must not be hidden from
/// people who review or approve them.
fn is_hidden(c: char) -> bool {
    text::is_deceptive(c) || text::is_selector(c)
}

/// Joins the text into one line and truncates it to this many characters.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    cut(&text.split_whitespace().collect::<Vec<_>>().join(" "), most)
}

/// Truncates a line to this many characters and keeps its indentation.
pub(crate) fn cut(line: &str, most: usize) -> String {
    if line.chars().count() <= most {
        return line.to_owned();
    }
    line.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_nothing_is_hidden() {
        assert_eq!(clean("a\x1b[2Jb\x07c\r\u{9b}31m\td\r\n"), "a\\u{1b}[2Jb\\u{7}c\\u{d}\\u{9b}31m\td\n");
        assert_eq!(clean("safe\u{202e}txt.exe"), "safe\\u{202e}txt.exe");
        assert_eq!(clean("Grüße 漢字 🙂"), "Grüße 漢字 🙂");
        assert_eq!(one_line("a\nb\tc"), "a\\nb c");
    }

    #[test]
    fn characters_that_nobody_sees_are_escaped() {
        let ranges = [
            '\u{ad}'..='\u{ad}',
            '\u{34f}'..='\u{34f}',
            '\u{61c}'..='\u{61c}',
            '\u{115f}'..='\u{1160}',
            '\u{17b4}'..='\u{17b5}',
            '\u{180b}'..='\u{180f}',
            '\u{200b}'..='\u{200f}',
            '\u{2060}'..='\u{206f}',
            '\u{3164}'..='\u{3164}',
            '\u{fe00}'..='\u{fe0f}',
            '\u{feff}'..='\u{feff}',
            '\u{ffa0}'..='\u{ffa0}',
            '\u{fff0}'..='\u{fff8}',
            '\u{1d173}'..='\u{1d17a}',
            '\u{e0000}'..='\u{e0fff}',
        ];
        for c in ranges.into_iter().flatten() {
            let (text, json) = (clean(&format!("a{c}b")), clean_json(&format!("\"a{c}b\"")));
            assert_eq!(text, format!("a{}b", c.escape_unicode()));
            assert!(json.is_ascii(), "{json}");
            assert_eq!(serde_json::from_str::<String>(&json).unwrap(), format!("a{c}b"));
        }
    }

    #[test]
    fn escaped_json_has_the_same_meaning() {
        let value = serde_json::json!({"a\u{9b}": "x\u{202e}y\u{7f}\u{1b}\n🙂"});
        let text = clean_json(&value.to_string());
        assert!(text.is_ascii() || !text.chars().any(is_hidden), "{text}");
        assert!(text.contains("\\u202e") && text.contains("\\u009b"), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }

    #[test]
    fn long_text_becomes_one_short_line_and_a_cut_line_keeps_its_indentation() {
        assert_eq!(shortened("one\n two\tthree", 20), "one two three");
        assert_eq!(shortened("äöüäöü", 4), "äöü…");
        assert_eq!(cut("    four", 8), "    four");
        assert_eq!(cut("    four", 6), "    f…");
    }
}
