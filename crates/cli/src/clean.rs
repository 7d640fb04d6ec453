//! Escapes text for the terminal. Text from an agent, a caller or an export is hostile: its control characters could
//! move the cursor, rename the window or disguise what is shown. We print them as escapes, so that nothing is hidden
//! either.

use std::fmt::Write as _;

/// Escapes every character that a terminal interprets, except line breaks and tabs.
pub(crate) fn clean(text: &str) -> String {
    let mut cleaned = String::with_capacity(text.len());
    let mut letters = text.chars().peekable();
    while let Some(c) = letters.next() {
        match c {
            '\n' | '\t' => cleaned.push(c),
            // A Windows line break: drop the carriage return.
            '\r' if letters.peek() == Some(&'\n') => {}
            c if is_obeyed(c) => cleaned.extend(c.escape_unicode()),
            c => cleaned.push(c),
        }
    }
    cleaned
}

/// Like [`clean`], but also escapes line breaks and replaces tabs, so that the result is one line.
pub(crate) fn one_line(text: &str) -> String {
    clean(text).replace('\n', "\\n").replace('\t', " ")
}

/// Escapes every character in JSON text that a terminal interprets. The meaning stays the same: such characters can
/// only occur in strings, where JSON allows an escape for each.
pub(crate) fn clean_json(json: &str) -> String {
    let mut cleaned = String::with_capacity(json.len());
    for c in json.chars() {
        if is_obeyed(c) && c != '\n' {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(cleaned, "\\u{unit:04x}");
            }
        } else {
            cleaned.push(c);
        }
    }
    cleaned
}

/// Whether a terminal interprets this character: control characters, characters that change the text direction, and
/// the Unicode line and paragraph separators.
fn is_obeyed(c: char) -> bool {
    let is_direction = matches!(c,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    is_direction || c.is_control()
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
    fn escaped_json_has_the_same_meaning() {
        let value = serde_json::json!({"a\u{9b}": "x\u{202e}y\u{7f}\u{1b}\n🙂"});
        let text = clean_json(&value.to_string());
        assert!(text.is_ascii() || !text.chars().any(is_obeyed), "{text}");
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
