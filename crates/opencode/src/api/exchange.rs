//! One request and its reply over a byte stream of their own.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::driven::Driven;
use super::{Allow, ApiError, Dial, Place};

/// The first request for a project loads it, which takes seconds on a busy machine.
pub(super) const PATIENCE: Duration = Duration::from_mins(1);
const DIAL_PATIENCE: Duration = Duration::from_secs(10);
/// What is read of an answer that says no.
const MAX_REFUSAL: usize = 64 * 1024;
pub(super) const MAX_HEAD: usize = 64 * 1024;
pub(super) const MAX_HEADERS: usize = 64;
const MAX_ID: usize = 128;
const MAX_CURSOR: usize = 512;

/// A whole answer.
pub(super) struct Reply {
    what: &'static str,
    pub(super) body: Bytes,
    /// Where the next older page begins.
    pub(super) cursor: Option<String>,
}

impl Reply {
    pub(super) fn read<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        serde_json::from_slice(&self.body).map_err(|_| ApiError::Malformed(self.what))
    }
}

/// Ids go into paths, so they must not be able to change what a path means.
pub(super) fn segment(id: &str) -> Result<&str, ApiError> {
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if !id.is_empty() && id.len() <= MAX_ID && id.bytes().all(fine) { Ok(id) } else { Err(ApiError::BadId) }
}

/// How much of an answer is held.
pub(super) struct Limit<'a, 'b> {
    pub(super) most: usize,
    pub(super) allow: &'a mut Allow<'b>,
}

/// Asks, and reads the whole answer.
pub(super) async fn whole<D: Dial>(
    dial: &D,
    place: &Place,
    what: &'static str,
    method: Method,
    path: &str,
    body: Option<Bytes>,
    limit: Limit<'_, '_>,
) -> Result<Reply, ApiError> {
    let asking = async {
        let (response, mut connection) = send(dial, what, request(place, method, path, body)?).await?;
        let status = response.status();
        if !status.is_success() {
            let limit = Limit { most: MAX_REFUSAL, allow: &mut |_| true };
            let body = connection.until(collect(what, response.into_body(), limit)).await;
            return Err(refused(what, status, &body.unwrap_or_default()));
        }
        let cursor = response.headers().get("x-next-cursor").and_then(|value| value.to_str().ok());
        let cursor = cursor.filter(|cursor| is_cursor(cursor)).map(str::to_owned);
        let body = connection.until(collect(what, response.into_body(), limit)).await?;
        Ok(Reply { what, body, cursor })
    };
    timeout(PATIENCE, Box::pin(asking)).await.unwrap_or(Err(ApiError::TimedOut(what)))
}

/// A byte stream to the agent, if there is one soon.
pub(super) async fn dialled<D: Dial>(dial: &D) -> Result<D::Stream, ApiError> {
    let dialled = timeout(DIAL_PATIENCE, dial.dial()).await;
    dialled
        .unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
        .map_err(|error| ApiError::Unreachable(error.kind()))
}

async fn send<D: Dial>(
    dial: &D,
    what: &'static str,
    request: Request<Full<Bytes>>,
) -> Result<(Response<Incoming>, Driven), ApiError> {
    let stream = dialled(dial).await?;
    let broken = |_| ApiError::Broken(what);
    let mut builder = http1::Builder::new();
    builder.max_headers(MAX_HEADERS).max_buf_size(MAX_HEAD);
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(broken)?;
    let mut connection = Driven::new(async {
        // Whoever reads the answer sees how the connection ends.
        let _ = connection.await;
    });
    let response = connection.until(sender.send_request(request)).await.map_err(broken)?;
    Ok((response, connection))
}

fn request(
    place: &Place,
    method: Method,
    path: &str,
    body: Option<Bytes>,
) -> Result<Request<Full<Bytes>>, ApiError> {
    let mut request = Request::builder()
        .method(method)
        .uri(format!("{}{path}", place.prefix))
        .header(HOST, &place.authority)
        .header(ACCEPT, "application/json");
    if let Some((name, value)) = &place.header {
        request = request.header(name, value);
    }
    if body.is_some() {
        request = request.header(CONTENT_TYPE, "application/json");
    }
    request.body(Full::new(body.unwrap_or_default())).map_err(|_| ApiError::BadPlace)
}

async fn collect(what: &'static str, body: Incoming, limit: Limit<'_, '_>) -> Result<Bytes, ApiError> {
    let (mut body, mut bytes) = (Limited::new(body, limit.most), BytesMut::new());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            let too_long = error.is::<http_body_util::LengthLimitError>();
            if too_long { ApiError::TooLong(what) } else { ApiError::Broken(what) }
        })?;
        let Ok(data) = frame.into_data() else { continue };
        if !(limit.allow)(data.len()) {
            return Err(ApiError::NoMemory(what));
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes.freeze())
}

/// Of what the agent says to a refusal only the name of the error is kept, if it looks like one.
fn refused(what: &'static str, status: StatusCode, body: &[u8]) -> ApiError {
    #[derive(Deserialize)]
    struct Refusal {
        name: String,
    }
    let name = serde_json::from_slice(body).map(|Refusal { name }| name).unwrap_or_default();
    let is_name = name.len() <= MAX_ID && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let name = if is_name { name } else { String::new() };
    ApiError::Refused { what, status: status.as_u16(), name }
}

fn is_cursor(cursor: &str) -> bool {
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~%=+".contains(&byte);
    !cursor.is_empty() && cursor.len() <= MAX_CURSOR && cursor.bytes().all(fine)
}
