//! Decodes texts in which a secret may be wrapped or escaped. Every decoded byte can be traced back, so what is found in
//! the decoded text is removed from the original.

use std::ops::Range;

/// A decoded copy of a text.
pub(super) struct Decoded {
    pub(super) bytes: Vec<u8>,
    parts: Vec<Part>,
}

/// A piece of the copy, until the next part: bytes as they were, or what one escape became.
struct Part {
    start: usize,
    /// Longer than the part exactly if it was an escape.
    source: Range<usize>,
}

impl Decoded {
    /// The ranges of the original text that became these ranges of the copy.
    pub(super) fn sources(&self, ranges: &[Range<usize>]) -> impl Iterator<Item = Range<usize>> {
        ranges
            .iter()
            .map(|range| self.source_of(range.start).start..self.source_of(range.end.saturating_sub(1)).end)
    }

    fn source_of(&self, at: usize) -> Range<usize> {
        let next = self.parts.partition_point(|part| part.start <= at);
        let Some(part) = next.checked_sub(1).and_then(|index| self.parts.get(index)) else { return 0..0 };
        let end = self.parts.get(next).map_or(self.bytes.len(), |next| next.start);
        if end - part.start == part.source.len() {
            let start = part.source.start + (at - part.start);
            start..start + 1
        } else {
            part.source.clone()
        }
    }

    fn push(&mut self, bytes: &[u8], source: Range<usize>) {
        if !bytes.is_empty() {
            self.parts.push(Part { start: self.bytes.len(), source });
            self.bytes.extend_from_slice(bytes);
        }
    }
}

/// What an escape stands for.
enum Unit {
    Nothing,
    Byte(u8),
    Char(char),
}

/// Removes line breaks: encoders of base64 and hexadecimal wrap their output.
pub(super) fn join_lines(text: &[u8]) -> Option<Decoded> {
    decode(text, is_line_break, |_| Some((1, Unit::Nothing)))
}

/// The hexadecimal digits of bytes that are printed in groups of one or two, without what is between the groups. `None`
/// if a text has no such groups in a row.
pub(super) fn join_hex(text: &[u8]) -> Option<Decoded> {
    let mut joined = Decoded { bytes: Vec::new(), parts: Vec::new() };
    let (mut at, mut row_end) = (0, 0);
    while at < text.len() {
        let length = text[at..].iter().take_while(|byte| byte.is_ascii_alphanumeric()).count();
        let group = &text[at..at + length];
        if matches!(length, 2 | 4) && group.iter().all(u8::is_ascii_hexdigit) {
            // Anything else between two groups ends a row, and what is in different rows does not belong together.
            if !text[row_end..at].iter().all(|byte| is_group_separator(*byte)) {
                joined.push(b" ", row_end..at);
            }
            joined.push(group, at..at + length);
            row_end = at + length;
        }
        at += length.max(1);
    }
    (joined.parts.len() > 1).then_some(joined)
}

const fn is_group_separator(byte: u8) -> bool {
    byte.is_ascii_whitespace() || matches!(byte, b':' | b'-' | b',')
}

/// Decodes percent-encoding, in which libraries differ in the characters that they encode, and removes encoded line breaks.
pub(super) fn decode_percent(text: &[u8]) -> Option<Decoded> {
    decode(text, |byte| byte == b'%', |escape| Some((3, Unit::from(byte_of(escape.get(1..3)?)?))))
}

/// Decodes the escapes of JSON strings, in which libraries differ too, and removes escaped line breaks.
pub(super) fn decode_json(text: &[u8]) -> Option<Decoded> {
    decode(text, |byte| byte == b'\\', json_escape)
}

/// Copies a text that contains a mark. At each mark `escape` reads an escape, and returns its length and what it stands for.
fn decode(
    text: &[u8],
    is_mark: impl Fn(u8) -> bool,
    escape: impl Fn(&[u8]) -> Option<(usize, Unit)>,
) -> Option<Decoded> {
    let mut next = text.iter().position(|byte| is_mark(*byte))?;
    let mut decoded = Decoded { bytes: Vec::with_capacity(text.len()), parts: Vec::new() };
    let mut at = 0;
    while let Some(rest) = text.get(next..).filter(|rest| !rest.is_empty()) {
        decoded.push(&text[at..next], at..next);
        let (length, unit) = escape(rest).unwrap_or((1, Unit::Byte(rest[0])));
        at = next + length;
        match unit {
            Unit::Nothing => {}
            Unit::Byte(byte) => decoded.push(&[byte], next..at),
            Unit::Char(c) => decoded.push(c.encode_utf8(&mut [0; 4]).as_bytes(), next..at),
        }
        next = text[at..].iter().position(|byte| is_mark(*byte)).map_or(text.len(), |plain| at + plain);
    }
    decoded.push(&text[at..], at..text.len());
    Some(decoded)
}

impl From<u8> for Unit {
    fn from(byte: u8) -> Self {
        if is_line_break(byte) { Self::Nothing } else { Self::Byte(byte) }
    }
}

const fn is_line_break(byte: u8) -> bool {
    matches!(byte, b'\r' | b'\n')
}

fn json_escape(escape: &[u8]) -> Option<(usize, Unit)> {
    let byte = match escape.get(1)? {
        b'u' => return unicode_escape(escape),
        byte @ (b'"' | b'\\' | b'/') => *byte,
        b'b' => 0x08,
        b'f' => 0x0c,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        _ => return None,
    };
    Some((2, Unit::from(byte)))
}

/// Reads `\u` and four digits, or two of these that are a pair of surrogates.
fn unicode_escape(escape: &[u8]) -> Option<(usize, Unit)> {
    let unit = |at: usize| {
        let digits = escape.get(at..at + 6)?.strip_prefix(b"\\u")?;
        Some(u16::from_be_bytes([byte_of(&digits[..2])?, byte_of(&digits[2..])?]))
    };
    let first = unit(0)?;
    let pair = [first, unit(6).unwrap_or_default()];
    match char::from_u32(first.into()) {
        Some('\r' | '\n') => Some((6, Unit::Nothing)),
        Some(c) => Some((6, Unit::Char(c))),
        None => Some((12, Unit::Char(char::decode_utf16(pair).next()?.ok()?))),
    }
}

/// The byte that two hexadecimal digits stand for.
fn byte_of(digits: &[u8]) -> Option<u8> {
    let mut byte = [0];
    hex::decode_to_slice(digits, &mut byte).ok()?;
    Some(byte[0])
}

#[cfg(test)]
mod tests {
    use std::slice;

    use super::*;

    type Decode = fn(&[u8]) -> Option<Decoded>;

    #[test]
    fn decoded_bytes_are_traced_back_to_what_they_were_decoded_from() {
        for (decode, text, expected) in [
            (join_lines as Decode, "ab\r\n\ncd\n", "abcd"),
            (decode_percent, "a%62%0a%c3%A9%4x%", "abé%4x%"),
            (decode_json, r#"\\\"\/\u00e9\ud83d\ude00\n\u000a\ud83dx\q\u00"#, "\\\"/é😀\\ud83dx\\q\\u00"),
        ] {
            let decoded = decode(text.as_bytes()).unwrap();
            assert_eq!(String::from_utf8(decoded.bytes.clone()).unwrap(), expected);
            for (start, c) in expected.char_indices() {
                let range = start..start + c.len_utf8();
                let source = decoded.sources(slice::from_ref(&range)).next().unwrap();
                let again = decode(text[source.clone()].as_bytes());
                let again = again.map_or_else(|| text[source].into(), |again| again.bytes);
                assert_eq!(again, c.to_string().as_bytes(), "{text} at {start}");
            }
        }
    }

    #[test]
    fn text_without_escapes_is_not_copied() {
        for decode in [join_lines as Decode, decode_percent, decode_json] {
            assert!(decode(b"plain text").is_none());
        }
    }
}
