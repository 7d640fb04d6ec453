//! The header fields of a request or response, and the two things a proxy must not get wrong about them: where
//! the body ends, and which fields end here.

/// How the end of a body is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    None,
    Length(u64),
    Chunked,
    /// By the end of the connection; responses only.
    UntilClose,
}

/// Why a head cannot be taken. Says nothing of the bytes, which are not safe to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum HeadError {
    #[error("the first line is not `METHOD target HTTP/1.1`")]
    FirstLine,
    #[error("this is a proxy: ask for a whole URL such as http://example.com/, or use CONNECT")]
    NotAbsolute,
    #[error("only http:// goes through here in the clear: use CONNECT for https")]
    Scheme,
    #[error(
        "the URL holds a user, a backslash, a fragment or another character that programs read differently"
    )]
    Url,
    #[error("{0}")]
    Target(#[from] crate::host::TargetError),
    #[error("a header is malformed, folded or holds a control character")]
    Field,
    #[error("a line ends without a carriage return")]
    BareLineFeed,
    #[error("the length of the body is given twice, or in a way that could be read differently")]
    Length,
    #[error("there are too many headers")]
    TooManyFields,
    #[error("the headers are too long")]
    TooLong,
    #[error("the headers took too long to arrive")]
    TooSlow,
    #[error("the connection ended within the headers")]
    Incomplete,
}

/// Fields that are about one connection; RFC 9110 §7.6.1, and `Proxy-*` besides.
const HOP_BY_HOP: [&str; 6] = ["connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"];

/// Fields that only we write. A `Connection` header that names one would make us drop what we rely on.
const OURS: [&str; 3] = ["host", "content-length", "transfer-encoding"];

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Fields(Vec<Field>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Field {
    name: String,
    value: Vec<u8>,
}

impl Fields {
    /// Reads the lines between the first line and the empty one, each without its end.
    pub(crate) fn parse<'a>(lines: impl Iterator<Item = &'a [u8]>, most: usize) -> Result<Self, HeadError> {
        let mut fields = Vec::new();
        for line in lines {
            if fields.len() == most {
                return Err(HeadError::TooManyFields);
            }
            fields.push(Field::parse(line).ok_or(HeadError::Field)?);
        }
        let fields = Self(fields);
        if fields.all("host").count() > 1 || OURS.iter().any(|name| fields.connection_says(name)) {
            return Err(HeadError::Field);
        }
        Ok(fields)
    }

    /// Where the body ends; `silent` is what it means when nothing is said. Anything that two programs could
    /// read differently is an error: that is how one request hides inside of another.
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

    /// Whether the `Connection` header lists this word.
    pub(crate) fn connection_says(&self, word: &str) -> bool {
        let words = self.all("connection").flat_map(|value| value.split(|byte| *byte == b','));
        words.map(<[u8]>::trim_ascii).any(|found| found.eq_ignore_ascii_case(word.as_bytes()))
    }

    /// Writes what is meant for the other end; framing and host are left to the caller.
    pub(crate) fn write_end_to_end(&self, out: &mut Vec<u8>) {
        for Field { name, value } in &self.0 {
            if self.ends_here(name) {
                continue;
            }
            for part in [name.as_bytes(), b": ", value, b"\r\n"] {
                out.extend_from_slice(part);
            }
        }
    }

    fn ends_here(&self, name: &str) -> bool {
        let lower = name.to_ascii_lowercase();
        let listed = |list: &[&str]| list.contains(&lower.as_str());
        listed(&HOP_BY_HOP) || listed(&OURS) || lower.starts_with("proxy-") || self.connection_says(&lower)
    }

    fn all(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        self.0.iter().filter(move |field| field.name.eq_ignore_ascii_case(name)).map(|field| &*field.value)
    }
}

impl Field {
    fn parse(line: &[u8]) -> Option<Self> {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let (name, value) = (&line[..colon], &line[colon + 1..]);
        // Before the trimming, which would take a carriage return at the edge away unseen.
        if !is_token(name) || !value.iter().all(|byte| is_text(*byte)) {
            return None;
        }
        Some(Self { name: String::from_utf8(name.to_vec()).ok()?, value: value.trim_ascii().to_vec() })
    }
}

/// Looks for the empty line that ends a head. `from` is where the bytes begin that were not looked at before.
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

/// The lines of a whole head, without their ends and without the empty one.
pub(crate) fn lines(head: &[u8]) -> Result<impl Iterator<Item = &[u8]>, HeadError> {
    if end_of_head(head, 0)? != Some(head.len()) {
        return Err(HeadError::Incomplete);
    }
    let lines = &head[..head.len() - 2];
    // What follows the last line feed is the empty rest after the last line.
    Ok(lines.split_inclusive(|byte| *byte == b'\n').map(|line| &line[..line.len() - 2]))
}

/// RFC 9110 §5.6.2.
pub(crate) fn is_token(text: &[u8]) -> bool {
    let letter = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !text.is_empty() && text.iter().all(letter)
}

/// Digits alone, and few enough to fit: `+5`, `5, 5` and `0x5` are read differently by different programs.
fn decimal(text: &[u8]) -> Option<u64> {
    let digits = !text.is_empty() && text.len() <= 19 && text.iter().all(u8::is_ascii_digit);
    digits.then(|| text.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')))
}

/// What may stand in a value; a carriage return alone would end the line for some.
fn is_text(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}
