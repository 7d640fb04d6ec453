//! What comes from an agent, a caller or an export is hostile: on a terminal its control characters would move the cursor, rename the window or
//! show something else than is there.

/// The text without anything that a terminal obeys; lines and tabs stay.
pub(crate) fn clean(text: &str) -> String {
    text.chars().filter(|c| !obeyed(*c)).collect()
}

fn obeyed(c: char) -> bool {
    let is_direction =
        matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    is_direction || (c.is_control() && c != '\n' && c != '\t')
}

/// One line of at most this many characters.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() <= most {
        return line;
    }
    line.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_nothing_to_obey() {
        assert_eq!(clean("a\x1b[2Jb\x1b]0;title\x07c\r\u{9b}31m\td\n"), "a[2Jb]0;titlec31m\td\n");
        assert_eq!(clean("safe\u{202e}txt.exe"), "safetxt.exe");
        assert_eq!(clean("Grüße 漢字 🙂"), "Grüße 漢字 🙂");
    }

    #[test]
    fn long_text_becomes_one_short_line() {
        assert_eq!(shortened("one\n two\tthree", 20), "one two three");
        assert_eq!(shortened("äöüäöü", 4), "äöü…");
        assert_eq!(shortened("four", 4), "four");
    }
}
