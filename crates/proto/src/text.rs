//! Checks for text that people enter, such as names: one line of limited length.

/// Maximum length of a person's name or email address.
pub const MAX_NAME: usize = 320;

/// Whether `text` is one line of 1 to `most` characters that people see as it is: not only white space, and without
/// deceptive characters.
pub fn is_line(text: &str, most: usize) -> bool {
    !text.trim().is_empty() && !has_deceptive(text) && text.chars().count() <= most
}

/// Whether a text contains characters that people do not see, or that change how the others are shown: with them, a name
/// in a request for approval could look like another.
pub fn has_deceptive(text: &str) -> bool {
    let is_joined = |letter: Option<char>| letter.is_some_and(|letter| !letter.is_ascii());
    let mut letters = text.chars().peekable();
    let mut before = None;
    while let Some(letter) = letters.next() {
        // Emoji and several scripts need joiners between their characters.
        let joins = matches!(letter, '\u{200c}' | '\u{200d}');
        if is_deceptive(letter) && !(joins && is_joined(before) && is_joined(letters.peek().copied())) {
            return true;
        }
        before = Some(letter).filter(|letter| !is_deceptive(*letter));
    }
    false
}

/// Control characters, characters without a visible form (but for the selectors of emoji), and those that change the
/// direction of the text.
pub fn is_deceptive(letter: char) -> bool {
    letter.is_control()
        || matches!(letter,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{2800}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// Whether a character only selects how the one before it looks. People do not see it: a row of them can hide a text.
pub fn is_selector(letter: char) -> bool {
    matches!(letter, '\u{fe00}'..='\u{fe0f}')
}

/// Whether `text` looks like an email address: text, `@`, text, no white space. Only sending a mail would
/// prove more.
pub fn is_email(text: &str) -> bool {
    let parts = text.split_once('@');
    is_line(text, MAX_NAME)
        && !text.contains(char::is_whitespace)
        && parts.is_some_and(|(name, host)| !name.is_empty() && !host.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        assert!(is_line("Ada Lovelace", 20) && is_line("x", 1) && is_line("ä".repeat(5).as_str(), 5));
        for wrong in ["", "  ", "a\nb", "a\0", "a\u{1b}[31m", "toolong"] {
            assert!(!is_line(wrong, 6), "{wrong:?}");
        }
    }

    #[test]
    fn names_that_look_like_others_are_no_lines() {
        for fine in ["Grüße 漢字", "👩\u{200d}💻 laptop", "❤\u{fe0f}", "می\u{200c}خواهم", "שלום"]
        {
            assert!(is_line(fine, 20), "{fine:?}");
        }
        let deceptive = [
            "ad\u{200b}min",
            "ad\u{200d}min",
            "ad\u{200c}min",
            "\u{202e}nimda",
            "a\u{2066}b\u{2069}",
            "ad\u{ad}min",
            "\u{feff}admin",
            "a\u{e0061}b",
            "\u{3164}",
            "\u{2800}",
            "a\u{2028}b",
            "a\u{61c}b",
            "é\u{200d}\u{200d}é",
            "é\u{200d}",
            "a\u{fff9}b\u{fffb}",
        ];
        for name in deceptive {
            assert!(!is_line(name, 20), "{name:?}");
        }
    }

    #[test]
    fn addresses() {
        assert!(is_email("ada@example.com") && is_email("a@b"));
        for wrong in ["", "@", "a@", "@b", "ada", "a b@c", "a@b\n", &format!("{}@b", "a".repeat(400))] {
            assert!(!is_email(wrong), "{wrong:?}");
        }
    }
}
