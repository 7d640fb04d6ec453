//! Checks for text that people enter, such as names: one line of limited length.

/// Maximum length of a person's name or email address.
pub const MAX_NAME: usize = 320;

/// Whether `text` is one line of 1 to `most` characters, without control characters and not only white space.
pub fn is_line(text: &str, most: usize) -> bool {
    !text.trim().is_empty() && !text.chars().any(char::is_control) && text.chars().count() <= most
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
    fn addresses() {
        assert!(is_email("ada@example.com") && is_email("a@b"));
        for wrong in ["", "@", "a@", "@b", "ada", "a b@c", "a@b\n", &format!("{}@b", "a".repeat(400))] {
            assert!(!is_email(wrong), "{wrong:?}");
        }
    }
}
