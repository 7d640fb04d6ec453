//! Parses and writes `.env` files. Values are often secrets, so no error ever repeats one.

use std::collections::HashMap;

/// The line at which a text could not be parsed, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct DotenvError {
    /// Line number, from 1. For an unclosed quote, the line where it opens.
    pub line: usize,
    pub reason: DotenvFault,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DotenvFault {
    #[error("expected KEY=VALUE")]
    NoAssignment,
    #[error("a key must consist of letters, digits and underscores, and must not start with a digit")]
    InvalidKey,
    #[error("the quote is never closed")]
    UnclosedQuote,
    #[error("only a comment may follow the closing quote")]
    TextAfterQuote,
    #[error("a value cannot contain a NUL character")]
    NulInValue,
}

/// Returns the pairs of a `.env` text in order. A repeated key keeps its first position and takes the last
/// value.
pub fn parse(text: &str) -> Result<Vec<(String, String)>, DotenvError> {
    let mut reader = Reader::new(text);
    let mut pairs: Vec<(String, String)> = Vec::new();
    let mut positions: HashMap<String, usize> = HashMap::new();
    while let Some(line) = reader.next_line() {
        let start = reader.line;
        let pair = reader.read_pair(line).map_err(|reason| DotenvError { line: start, reason })?;
        let Some((key, value)) = pair else { continue };
        if let Some(place) = positions.get(&key) {
            pairs[*place].1 = value;
        } else {
            positions.insert(key.clone(), pairs.len());
            pairs.push((key, value));
        }
    }
    Ok(pairs)
}

/// Quotes a value so that [`parse`] returns it unchanged. Prefers no quotes or single quotes, which shells
/// and other parsers read alike; they differ in the escapes inside double quotes.
pub fn quote(value: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+,=".contains(c);
    if value.chars().all(bare) {
        return value.to_owned();
    }
    if !value.contains(['\'', '\n', '\r']) {
        return format!("'{value}'");
    }
    let mut quoted = String::with_capacity(value.len() + 2);
    quoted.push('"');
    for c in value.chars() {
        match ESCAPE_SEQUENCES.iter().find(|(_, meant)| *meant == c) {
            Some((letter, _)) => quoted.extend(['\\', *letter]),
            None => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// Returns the text with these values, and without these other variables. Everything else stays as it is, also what
/// cannot be parsed: other programs wrote it.
pub fn merge(text: &str, values: &[(&str, &str)], removed: &[&str]) -> String {
    let lines: Vec<&str> = text.split('\n').collect();
    let mut merged: Vec<String> = Vec::new();
    let mut set: Vec<&str> = Vec::new();
    let mut reader = Reader::new(text);
    while let Some(line) = reader.next_line() {
        let first = reader.line - 1;
        let mut ahead = reader.clone();
        let pair = ahead.read_pair(line).ok().flatten();
        if pair.is_some() {
            reader = ahead;
        }
        let value = |key: &str| values.iter().find(|(name, _)| *name == key);
        match pair.as_ref().map(|(key, _)| key.as_str()) {
            Some(key) if removed.contains(&key) || set.contains(&key) => {}
            Some(key) if value(key).is_some() => {
                let (name, value) = value(key).copied().unwrap_or_default();
                let plain = line.trim_start();
                let export = if strip_export(plain) == plain { "" } else { "export " };
                merged.push(format!("{export}{name}={}", quote(value)));
                set.push(name);
            }
            _ => merged.extend(lines[first..reader.line].iter().map(|line| (*line).to_owned())),
        }
    }
    // The last line ends without a line break, if it is not empty.
    if merged.last().is_some_and(String::is_empty) {
        merged.pop();
    }
    let new = values.iter().filter(|(key, _)| !set.contains(key));
    merged.extend(new.map(|(key, value)| format!("{key}={}", quote(value))));
    merged.join("\n") + "\n"
}

/// Escape sequences inside double quotes: the character after the backslash, and its meaning.
const ESCAPE_SEQUENCES: [(char, char); 6] =
    [('n', '\n'), ('r', '\r'), ('t', '\t'), ('\\', '\\'), ('"', '"'), ('$', '$')];

#[derive(Clone)]
struct Reader<'a> {
    lines: std::str::Split<'a, char>,
    /// The number of the line that was returned last.
    line: usize,
}

impl<'a> Reader<'a> {
    fn new(text: &'a str) -> Self {
        Self { lines: text.strip_prefix('\u{feff}').unwrap_or(text).split('\n'), line: 0 }
    }

    fn next_line(&mut self) -> Option<&'a str> {
        let line = self.lines.next()?;
        self.line += 1;
        Some(line.strip_suffix('\r').unwrap_or(line))
    }

    /// Parses the pair that starts on this line; `None` for a blank line or a comment.
    fn read_pair(&mut self, line: &'a str) -> Result<Option<(String, String)>, DotenvFault> {
        let line = line.trim_start();
        if line.is_empty() || line.starts_with('#') {
            return Ok(None);
        }
        let (key, rest) = strip_export(line).split_once('=').ok_or(DotenvFault::NoAssignment)?;
        let key = key.trim_end();
        if !is_key(key) {
            return Err(DotenvFault::InvalidKey);
        }
        let value = match rest.trim_start().split_at_checked(1) {
            Some(("'", rest)) => single_quoted(rest)?,
            Some(("\"", rest)) => self.double_quoted(rest)?,
            _ => unquote(rest),
        };
        if value.contains('\0') {
            return Err(DotenvFault::NulInValue);
        }
        Ok(Some((key.to_owned(), value)))
    }

    /// Continues over the following lines until the quote closes.
    fn double_quoted(&mut self, first: &'a str) -> Result<String, DotenvFault> {
        let mut value = String::new();
        let mut line = first;
        loop {
            if let Some(rest) = take_until_quote(line, &mut value) {
                return check_rest_of_line(rest).map(|()| value);
            }
            value.push('\n');
            line = self.next_line().ok_or(DotenvFault::UnclosedQuote)?;
        }
    }
}

/// Appends text to `value` up to a closing double quote and returns the text after it, or `None` if the quote
/// does not close on this line.
fn take_until_quote<'a>(line: &'a str, value: &mut String) -> Option<&'a str> {
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => return Some(chars.as_str()),
            '\\' => {
                let escape = chars
                    .clone()
                    .next()
                    .and_then(|n| ESCAPE_SEQUENCES.iter().find(|(letter, _)| *letter == n));
                if escape.is_some() {
                    chars.next();
                }
                value.push(escape.map_or('\\', |(_, meant)| *meant));
            }
            other => value.push(other),
        }
    }
    None
}

fn single_quoted(rest: &str) -> Result<String, DotenvFault> {
    let (value, after) = rest.split_once('\'').ok_or(DotenvFault::UnclosedQuote)?;
    check_rest_of_line(after).map(|()| value.to_owned())
}

fn check_rest_of_line(rest: &str) -> Result<(), DotenvFault> {
    let rest = rest.trim_start();
    if rest.is_empty() || rest.starts_with('#') { Ok(()) } else { Err(DotenvFault::TextAfterQuote) }
}

/// A `#` starts a comment only after white space, so that colours and URL fragments stay intact.
fn unquote(rest: &str) -> String {
    let comment = rest
        .char_indices()
        .find(|(at, c)| *c == '#' && rest[..*at].ends_with(char::is_whitespace))
        .map(|(at, _)| at);
    rest[..comment.unwrap_or(rest.len())].trim().to_owned()
}

/// Removes a leading `export`, unless `export` itself is the key.
fn strip_export(line: &str) -> &str {
    match line.strip_prefix("export") {
        Some(rest) if rest.starts_with([' ', '\t']) && !rest.trim_start().starts_with('=') => {
            rest.trim_start()
        }
        _ => line,
    }
}

fn is_key(text: &str) -> bool {
    !text.starts_with(|c: char| c.is_ascii_digit())
        && !text.is_empty()
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pairs(text: &str) -> Vec<(String, String)> {
        parse(text).unwrap_or_else(|error| panic!("{text:?}: {error}"))
    }

    #[test]
    fn parses_every_notation_of_a_value() {
        let table = [
            ("A=1", "1"),
            ("A=", ""),
            ("A =  x y  ", "x y"),
            ("export A=1", "1"),
            ("  export\tA=1", "1"),
            ("A=1 # note", "1"),
            ("A= # note", ""),
            ("A=1#2", "1#2"),
            ("A=#fff", "#fff"),
            ("A=http://h/p?q=1#f", "http://h/p?q=1#f"),
            ("A=it's", "it's"),
            ("A='a \\n # $b \"c\"'", "a \\n # $b \"c\""),
            ("A='' # note", ""),
            (r#"A="a\nb\rc\td\\e\"f\$g""#, "a\nb\rc\td\\e\"f$g"),
            (r#"A="\d$HOME""#, r"\d$HOME"),
            ("A=\"one\ntwo # no comment\n\nfour\"#x", "one\ntwo # no comment\n\nfour"),
            ("A=\"one\r\ntwo\"\r\n", "one\ntwo"),
            ("\u{feff}A=1", "1"),
            ("# c\r\n\r\n  # d\r\nA=1\r\n", "1"),
            ("A=ä ö", "ä ö"),
        ];
        for (text, value) in table {
            assert_eq!(pairs(text), [("A".to_owned(), value.to_owned())], "{text:?}");
        }
    }

    #[test]
    fn export_can_be_a_key_and_empty_text_has_no_pairs() {
        assert_eq!(pairs("export=1"), [("export".to_owned(), "1".to_owned())]);
        assert_eq!(pairs("export = 1"), [("export".to_owned(), "1".to_owned())]);
        assert_eq!(pairs(""), []);
    }

    #[test]
    fn a_repeated_key_keeps_its_position_and_takes_the_last_value() {
        let read = pairs("B=1\nA=2\nB=3\n_c9=4");
        let expected = [("B", "3"), ("A", "2"), ("_c9", "4")];
        assert_eq!(read, expected.map(|(k, v)| (k.to_owned(), v.to_owned())));
    }

    #[test]
    fn errors_name_line_and_reason_but_never_the_value() {
        let table = [
            ("A=1\nhunter2", 2, DotenvFault::NoAssignment),
            ("=hunter2", 1, DotenvFault::InvalidKey),
            ("9A=hunter2", 1, DotenvFault::InvalidKey),
            ("A B=hunter2", 1, DotenvFault::InvalidKey),
            ("Ä=hunter2", 1, DotenvFault::InvalidKey),
            ("export export A=hunter2", 1, DotenvFault::InvalidKey),
            ("\nA='hunter2\nB='", 2, DotenvFault::UnclosedQuote),
            ("A=1\n\nB=\"hunter2\n\n", 3, DotenvFault::UnclosedQuote),
            ("A='x' hunter2", 1, DotenvFault::TextAfterQuote),
            ("A=\"x\ny\"hunter2", 1, DotenvFault::TextAfterQuote),
            ("A=hunter2\0", 1, DotenvFault::NulInValue),
        ];
        for (text, line, reason) in table {
            let error = parse(text).expect_err(text);
            assert_eq!(error, DotenvError { line, reason }, "{text:?}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn merging_changes_only_the_variables_that_it_names() {
        let written = "# mine\nOWN=1\nexport KEY=old\nBLOCK=\"a\nKEY=in a quote\n\"\nnot a pair\nGONE='x'\nKEY=again\nOPEN=\"";
        let merged = merge(written, &[("KEY", "it's"), ("NEW", "n")], &["GONE"]);
        let wanted =
            "# mine\nOWN=1\nexport KEY=\"it's\"\nBLOCK=\"a\nKEY=in a quote\n\"\nnot a pair\nOPEN=\"\nNEW=n\n";
        assert_eq!(merged, wanted);
        assert_eq!(merge(&merged, &[("KEY", "it's"), ("NEW", "n")], &["GONE"]), wanted, "the second time");
        assert_eq!(merge("", &[("A", "1"), ("B", "2")], &[]), "A=1\nB=2\n");
        assert_eq!(merge("", &[], &[]), "\n");
        assert_eq!(merge("A=1\nB=2\n", &[], &["A", "B"]), "\n");
        assert_eq!(merge("A=1\r\nB=2\r\n", &[("B", "3")], &[]), "A=1\r\nB=3\n");
    }

    #[test]
    fn quote_uses_the_simplest_notation() {
        assert_eq!(quote(""), "");
        assert_eq!(quote("postgres://u@h:5432/db"), "postgres://u@h:5432/db");
        assert_eq!(quote("a b$c\\n"), "'a b$c\\n'");
        assert_eq!(quote("a\rb"), r#""a\rb""#, "other parsers treat a bare carriage return as a line break");
        assert_eq!(quote("it's\n\"$5\""), r#""it's\n\"\$5\"""#);
    }

    proptest! {
        #[test]
        fn quoted_values_round_trip(value in "[^\0]*", other in r#"[ \t\r\n'"\\$#=a\u{feff}\u{85}]*"#) {
            let text = format!("A={}\r\nB={}\nC=end", quote(&value), quote(&other));
            let expected = [("A", value.as_str()), ("B", &other), ("C", "end")];
            prop_assert_eq!(pairs(&text), expected.map(|(k, v)| (k.to_owned(), v.to_owned())));
        }

        #[test]
        fn merged_values_are_read_back_and_others_stay(
            own in "[^\0'\r\n]*", value in "[^\0]*", other in "[^\0]*",
        ) {
            let text = format!("OWN='{own}'\nA={}\n", quote(&other));
            let merged = merge(&text, &[("A", &value), ("B", &other)], &[]);
            let expected = [("OWN", own.as_str()), ("A", &value), ("B", &other)];
            prop_assert_eq!(pairs(&merged), expected.map(|(k, v)| (k.to_owned(), v.to_owned())));
        }

        #[test]
        fn arbitrary_text_never_panics(text in r#"(.|[ \r\n'"\\$#=A])*"#) {
            let _ = parse(&text);
            merge(&text, &[("A", "1")], &["B"]);
        }
    }
}
