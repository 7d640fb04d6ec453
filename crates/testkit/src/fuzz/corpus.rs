//! Corpus files: text with escapes, so that they are readable and editors do not change them. Real line
//! breaks are ignored.

use std::path::Path;

/// Loads all inputs of a corpus directory, sorted by file name.
pub fn kept(directory: impl AsRef<Path>) -> Vec<Vec<u8>> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths.iter().filter_map(|path| std::fs::read_to_string(path).ok()).map(|text| decode(&text)).collect()
}

/// Decodes a corpus file: `\x` and two digits for a byte, and the usual `
/// `, `\r`, `\t` and `\\`.
pub fn decode(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut letters = text.bytes().filter(|byte| *byte != b'\n');
    while let Some(letter) = letters.next() {
        if letter != b'\\' {
            bytes.push(letter);
            continue;
        }
        bytes.push(match letters.next() {
            Some(b'r') => b'\r',
            Some(b'n') => b'\n',
            Some(b't') => b'\t',
            Some(b'x') => {
                let digits = [letters.next(), letters.next()].map(|digit| digit.unwrap_or(b'0') as char);
                u8::from_str_radix(&String::from_iter(digits), 16).unwrap_or_default()
            }
            other => other.unwrap_or(b'\\'),
        });
    }
    bytes
}

/// Encodes an input for the corpus; see [`decode`].
pub fn encode(bytes: &[u8]) -> String {
    let escaped =
        bytes.escape_ascii().to_string().replace("\\n", "\\n\n").replace("\\'", "'").replace("\\\"", "\"");
    let lines = escaped.lines().map(|line| match line.strip_suffix(' ') {
        Some(rest) => format!("{rest}\\x20\n"),
        None => format!("{line}\n"),
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corpus_encoding_round_trips() {
        let inputs =
            [&b"{\"a\":'b'} \r\n\t\0\xff\\x41\\ \r\n\r\n"[..], b"", b"\n\n", b" \n", b"\\n", b"a\\\\n\n"];
        for input in inputs {
            assert_eq!(decode(&encode(input)), input, "{}", encode(input));
        }
    }
}
