//! The head of a request from a sandbox, read strictly: what is not certainly well-formed is refused, and what is
//! passed on is written anew from what was understood.

use crate::fields::{Fields, Framing, HeadError, is_token, lines};
use crate::host::Target;

/// The longest method; the longest registered one has 17 letters.
const MAX_METHOD: usize = 32;
const MAX_FIELDS: usize = 100;
const HTTP_PORT: u16 = 80;

/// A request that is certainly well-formed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestHead {
    pub request: Request,
    pub target: Target,
    pub body: Framing,
    /// The client speaks HTTP/1.1: it understands chunks and `100 Continue`.
    pub modern: bool,
    /// The client means to ask again on this connection.
    pub keep_alive: bool,
    fields: Fields,
}

/// What is asked of the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    Connect,
    Http { method: String, path: String },
}

impl RequestHead {
    /// Reads all bytes up to and with the empty line.
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
        let keep_alive = modern && !fields.connection_says("close");
        Ok(Self { request, target, body, modern, keep_alive, fields })
    }

    /// The head that the target gets: its own name as the host, one framing, and one request per connection, so
    /// that no second request can ride along.
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

/// The one field that says where the body ends, if any has to.
pub(crate) fn write_framing(framing: Framing, out: &mut Vec<u8>) {
    match framing {
        Framing::None | Framing::UntilClose => {}
        Framing::Length(length) => out.extend_from_slice(format!("Content-Length: {length}\r\n").as_bytes()),
        Framing::Chunked => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
    }
}

fn first_line(line: &[u8]) -> Option<(&str, &str, bool)> {
    // Visible ASCII alone; every other byte is one that some program takes for a blank or an end.
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
    let fine = words.next().is_none() && !uri.is_empty() && method.len() <= MAX_METHOD;
    (fine && is_token(method.as_bytes())).then_some((method, uri, modern))
}

/// Takes `http://host:port/path?query` apart.
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
