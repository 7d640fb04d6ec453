//! The header fields of a request or response, and the two things that a proxy must get right about them: where the
//! body ends, and which fields are hop-by-hop.

/// How the end of a body is determined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    None,
    Length(u64),
    Chunked,
    /// The body ends with the connection; responses only.
    UntilClose,
}

/// Why a head was rejected. The error does not contain the bytes, which are not safe to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum HeadError {
    #[error("the first line is not `METHOD target HTTP/1.1`")]
    FirstLine,
    #[error("this is a proxy: send an absolute URL such as http://example.com/, or use CONNECT")]
    NotAbsolute,
    #[error("only http:// URLs can be requested directly: use CONNECT for https")]
    Scheme,
    #[error("the URL contains a user name, a backslash, a fragment or another ambiguous character")]
    Url,
    #[error("{0}")]
    Target(#[from] crate::host::TargetError),
    #[error("a header is malformed, folded or contains a control character")]
    Field,
    #[error("a line ends without a carriage return")]
    BareLineFeed,
    #[error("the length of the body is given twice, or in an ambiguous way")]
    Length,
    #[error("there are too many headers")]
    TooManyFields,
    #[error("the headers are too long")]
    TooLong,
    #[error("the headers took too long to arrive")]
    TooSlow,
    #[error("the connection ended before the end of the headers")]
    Incomplete,
}

/// Hop-by-hop fields, RFC 9110 §7.6.1; `Proxy-*` fields are treated the same.
const HOP_BY_HOP: [&str; 6] = ["connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"];

/// Fields that only the proxy writes. A `Connection` header that lists one would make us drop a field we rely on.
const PROXY_OWNED: [&str; 3] = ["host", "content-length", "transfer-encoding"];

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Fields(Vec<Field>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Field {
    name: String,
    value: Vec<u8>,
}

impl Fields {
    /// Parses the lines between the first line and the empty one, without their line ends.
    pub(crate) fn parse<'a>(lines: impl Iterator<Item = &'a [u8]>, most: usize) -> Result<Self, HeadError> {
        let mut fields = Vec::new();
        for line in lines {
            if fields.len() == most {
                return Err(HeadError::TooManyFields);
            }
            fields.push(Field::parse(line).ok_or(HeadError::Field)?);
        }
        let fields = Self(fields);
        if fields.all("host").count() > 1 || PROXY_OWNED.iter().any(|name| fields.connection_lists(name)) {
            return Err(HeadError::Field);
        }
        Ok(fields)
    }

    /// Determines where the body ends; `silent` applies when no field says so. Anything that two implementations
    /// could read differently is an error, because that enables request smuggling.
    pub(crate) fn framing(&self, silent: Framing) -> Result<Framing, HeadError> {
        let mut lengths = self.all("content-length");
        let mut codings = self.all("transfer-encoding");
        match (lengths.next(), lengths.next(), codings.next(), codings.next()) {
            (None, _, None, _) => Ok(silent),
            (Some(length), None, None, _) => Ok(Framing::Length(decimal(length).ok_or(HeadError::Length)?)),
            (None, _, Some(coding), None) if coding.eq_ignore_ascii_case(b"chunked") => Ok(Framing::Chunked),
            _ => Err(HeadError::Length),
        }
    }

    /// Whether the `Connection` header lists this option.
    pub(crate) fn connection_lists(&self, word: &str) -> bool {
        let words = self.all("connection").flat_map(|value| value.split(|byte| *byte == b','));
        words.map(<[u8]>::trim_ascii).any(|found| found.eq_ignore_ascii_case(word.as_bytes()))
    }

    /// Writes the end-to-end fields; the caller writes framing and host.
    pub(crate) fn write_end_to_end(&self, out: &mut Vec<u8>) {
        for Field { name, value } in &self.0 {
            if self.is_hop_by_hop(name) {
                continue;
            }
            for part in [name.as_bytes(), b": ", value, b"\r\n"] {
                out.extend_from_slice(part);
            }
        }
    }

    fn is_hop_by_hop(&self, name: &str) -> bool {
        let lower = name.to_ascii_lowercase();
        let listed = |list: &[&str]| list.contains(&lower.as_str());
        listed(&HOP_BY_HOP)
            || listed(&PROXY_OWNED)
            || lower.starts_with("proxy-")
            || self.connection_lists(&lower)
    }

    fn all(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        self.0.iter().filter(move |field| field.name.eq_ignore_ascii_case(name)).map(|field| &*field.value)
    }
}

impl Field {
    fn parse(line: &[u8]) -> Option<Self> {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let (name, value) = (&line[..colon], &line[colon + 1..]);
        // Check before trimming, which would silently remove a carriage return at the edge.
        if !is_token(name) || !value.iter().all(|byte| is_text(*byte)) {
            return None;
        }
        Some(Self { name: String::from_utf8(name.to_vec()).ok()?, value: value.trim_ascii().to_vec() })
    }
}

/// Finds the empty line that ends a head. `from` is the first byte that was not searched before.
pub(crate) fn end_of_head(head: &[u8], from: usize) -> Result<Option<usize>, HeadError> {
    for at in (from..head.len()).filter(|at| head[*at] == b'\n') {
        if !head[..at].ends_with(b"\r") {
            return Err(HeadError::BareLineFeed);
        }
        if at == 1 || head[..at].ends_with(b"\r\n\r") {
            return Ok(Some(at + 1));
        }
    }
    Ok(None)
}

/// The lines of a complete head, without their line ends and without the empty line.
pub(crate) fn lines(head: &[u8]) -> Result<impl Iterator<Item = &[u8]>, HeadError> {
    if end_of_head(head, 0)? != Some(head.len()) {
        return Err(HeadError::Incomplete);
    }
    let lines = &head[..head.len() - 2];
    // Everything ends with a line feed here, so no empty remainder follows the last line.
    Ok(lines.split_inclusive(|byte| *byte == b'\n').map(|line| &line[..line.len() - 2]))
}

/// A token as defined in RFC 9110 §5.6.2.
pub(crate) fn is_token(text: &[u8]) -> bool {
    let letter = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !text.is_empty() && text.iter().all(letter)
}

/// Accepts only digits that fit: implementations disagree about `+5`, `5, 5` and `0x5`.
fn decimal(text: &[u8]) -> Option<u64> {
    let digits = !text.is_empty() && text.len() <= 19 && text.iter().all(u8::is_ascii_digit);
    digits.then(|| text.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')))
}

/// The bytes allowed in a value; some implementations take a bare carriage return for a line end.
fn is_text(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}
