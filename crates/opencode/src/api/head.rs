//! The head of a response, and the decoding of its body.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _};

use super::ApiError;
use super::body::Body;
use super::exchange::{MAX_HEAD, MAX_HEADERS};

/// Maximum number of bytes read at once.
const READ_SIZE: usize = 4096;

/// The relevant parts of the head of a streaming response.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) status: u16,
    pub(super) content_type: Vec<u8>,
    pub(super) body: Body,
    /// The part of the body that was read together with the head.
    pub(super) body_start: Vec<u8>,
}

impl Head {
    pub(super) async fn read(
        stream: &mut (impl AsyncRead + Unpin),
        what: &'static str,
    ) -> Result<Self, ApiError> {
        let mut bytes = Vec::new();
        let mut searched = 0;
        loop {
            // Each byte is searched only once, however small the pieces are.
            if let Some(end) = find_head_end(&bytes, searched) {
                return Self::parse(&bytes[..end], &bytes[end..]).ok_or(ApiError::Broken(what));
            }
            searched = bytes.len().saturating_sub(3);
            let mut piece = [0; READ_SIZE];
            let read: io::Result<usize> = stream.read(&mut piece).await;
            match read {
                Ok(read @ 1..) if bytes.len() + read <= MAX_HEAD => bytes.extend_from_slice(&piece[..read]),
                _ => return Err(ApiError::Broken(what)),
            }
        }
    }

    fn parse(head: &[u8], body_start: &[u8]) -> Option<Self> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut response = httparse::Response::new(&mut headers);
        response.parse(head).ok()?;
        let find = |name: &str| {
            response
                .headers
                .iter()
                .find(|header| header.name.eq_ignore_ascii_case(name))
                .map(|header| header.value)
        };
        let body = match (find("transfer-encoding"), find("content-length")) {
            (Some(coding), _) if coding.eq_ignore_ascii_case(b"chunked") => Body::chunked(),
            (Some(_), _) => return None,
            (None, Some(length)) => Body::Counted(str::from_utf8(length).ok()?.parse().ok()?),
            (None, None) => Body::UntilClosed,
        };
        let content_type = find("content-type").unwrap_or_default().to_vec();
        Some(Self { status: response.code?, content_type, body, body_start: body_start.to_vec() })
    }
}

/// The offset after the first empty line, which ends the head.
fn find_head_end(bytes: &[u8], from: usize) -> Option<usize> {
    memchr::memchr_iter(b'\n', &bytes[from..]).map(|at| from + at).find_map(|at| match &bytes[at + 1..] {
        [b'\n', ..] => Some(at + 2),
        [b'\r', b'\n', ..] => Some(at + 3),
        _ => None,
    })
}
