//! Parses the head of a request from a sandbox strictly: anything ambiguous is refused, and the head that is sent
//! on is written from the parsed values.

use crate::fields::{Fields, Framing, HeadError, is_token, lines};
use crate::host::Target;

/// The longest method; the longest registered one has 17 letters.
const MAX_METHOD: usize = 32;
const MAX_FIELDS: usize = 100;
const HTTP_PORT: u16 = 80;

/// A request that was accepted as well-formed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestHead {
    pub request: Request,
    pub target: Target,
    pub body: Framing,
    /// The client uses HTTP/1.1, so it understands chunks and `100 Continue`.
    pub modern: bool,
    /// The client may send another request on this connection.
    pub keep_alive: bool,
    fields: Fields,
}

/// The kind of request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    Connect,
    Http { method: String, path: String },
}

impl RequestHead {
    /// Parses a head up to and including the empty line.
    pub fn parse(head: &[u8]) -> Result<Self, HeadError> {
        let mut lines = lines(head)?;
        let first = lines.next().ok_or(HeadError::FirstLine)?;
        let (method, uri, modern) = first_line(first).ok_or(HeadError::FirstLine)?;
        let fields = Fields::parse(lines, MAX_FIELDS)?;
        let body = fields.framing(Framing::None)?;
        if body == Framing::Chunked && !modern {
            return Err(HeadError::Length);
        }
        let (request, target) = if method == "CONNECT" {
            if !matches!(body, Framing::None | Framing::Length(0)) {
                return Err(HeadError::Length);
            }
            (Request::Connect, Target::parse(uri, None)?)
        } else {
            let (target, path) = absolute(uri)?;
            (Request::Http { method: method.to_owned(), path }, target)
        };
        let keep_alive = modern && !fields.connection_lists("close");
        Ok(Self { request, target, body, modern, keep_alive, fields })
    }

    /// The head for the target: the target's own name as the host, a single framing, and `Connection: close`, so
    /// that no second request can be smuggled in.
    pub fn for_target(&self) -> Vec<u8> {
        let Request::Http { method, path } = &self.request else { return Vec::new() };
        let mut out = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n", self.host_header()).into_bytes();
        self.fields.write_end_to_end(&mut out);
        write_framing(self.body, &mut out);
        out.extend_from_slice(b"Connection: close\r\n\r\n");
        out
    }

    fn host_header(&self) -> String {
        let Target { host, port } = &self.target;
        if *port == HTTP_PORT { host.to_string() } else { format!("{host}:{port}") }
    }
}

/// Writes the one field that determines where the body ends, if one is needed.
pub(crate) fn write_framing(framing: Framing, out: &mut Vec<u8>) {
    match framing {
        Framing::None | Framing::UntilClose => {}
        Framing::Length(length) => out.extend_from_slice(format!("Content-Length: {length}\r\n").as_bytes()),
        Framing::Chunked => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
    }
}

fn first_line(line: &[u8]) -> Option<(&str, &str, bool)> {
    // Only visible ASCII: some implementations treat other bytes as a space or a line end.
    if !line.iter().all(|byte| matches!(byte, b' '..=b'~')) {
        return None;
    }
    let mut words = str::from_utf8(line).ok()?.split(' ');
    let (method, uri, version) = (words.next()?, words.next()?, words.next()?);
    let modern = match version {
        "HTTP/1.1" => true,
        "HTTP/1.0" => false,
        _ => return None,
    };
    let valid = words.next().is_none() && !uri.is_empty() && method.len() <= MAX_METHOD;
    (valid && is_token(method.as_bytes())).then_some((method, uri, modern))
}

/// Splits `http://host:port/path?query`.
fn absolute(uri: &str) -> Result<(Target, String), HeadError> {
    if uri.starts_with('/') || uri == "*" {
        return Err(HeadError::NotAbsolute);
    }
    let (scheme, rest) = uri.split_once("://").ok_or(HeadError::NotAbsolute)?;
    if !scheme.eq_ignore_ascii_case("http") {
        return Err(HeadError::Scheme);
    }
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    if rest.contains(['\\', '#']) || authority.contains('@') {
        return Err(HeadError::Url);
    }
    let target = Target::parse(authority, Some(HTTP_PORT))?;
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    Ok((target, path))
}
