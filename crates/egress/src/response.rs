//! Parses the head of a target's response as strictly as a request, because the proxy tells the client where the
//! body ends.

use crate::fields::{Fields, Framing, HeadError, lines};
use crate::head::write_framing;

const MAX_FIELDS: usize = 256;

#[derive(Debug)]
pub(crate) struct ResponseHead {
    pub(crate) status: u16,
    pub(crate) body: Framing,
    /// The body that the headers announce without sending it: a response to `HEAD` says how long it would be.
    pub(crate) announced: Framing,
    reason: String,
    fields: Fields,
}

impl ResponseHead {
    /// Parses a head up to and including the empty line. A response to `HEAD` never has a body.
    pub(crate) fn parse(head: &[u8], to_head: bool) -> Result<Self, HeadError> {
        let mut lines = lines(head)?;
        let first = lines.next().ok_or(HeadError::FirstLine)?;
        let (status, reason) = status_line(first).ok_or(HeadError::FirstLine)?;
        let fields = Fields::parse(lines, MAX_FIELDS)?;
        let framing = fields.framing(Framing::UntilClose)?;
        let (body, announced) = match status {
            100..200 | 204 => (Framing::None, Framing::None),
            304 => (Framing::None, framing),
            _ if to_head => (Framing::None, framing),
            _ => (framing, framing),
        };
        Ok(Self { status, body, announced, reason, fields })
    }

    pub(crate) fn is_interim(&self) -> bool {
        self.status < 200
    }

    /// The head for the client, announcing the body as `framing`.
    pub(crate) fn for_client(&self, framing: Framing, keep_alive: bool) -> Vec<u8> {
        let mut out = format!("HTTP/1.1 {} {}\r\n", self.status, self.reason).into_bytes();
        self.fields.write_end_to_end(&mut out);
        write_framing(framing, &mut out);
        if !self.is_interim() {
            let connection: &[u8] = if keep_alive { b"keep-alive" } else { b"close" };
            for part in [b"Connection: ", connection, b"\r\n"] {
                out.extend_from_slice(part);
            }
        }
        out.extend_from_slice(b"\r\n");
        out
    }
}

fn status_line(line: &[u8]) -> Option<(u16, String)> {
    let line = str::from_utf8(line).ok()?;
    let rest = line.strip_prefix("HTTP/1.1 ").or_else(|| line.strip_prefix("HTTP/1.0 "))?;
    let (status, reason) = rest.split_once(' ').unwrap_or((rest, ""));
    let digits = status.len() == 3 && status.bytes().all(|byte| byte.is_ascii_digit());
    let status = status.parse().ok().filter(|status| digits && *status >= 100)?;
    let reason = reason.chars().filter(|letter| matches!(letter, ' '..='~')).collect();
    Some((status, reason))
}
