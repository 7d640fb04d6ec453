//! One request and its response over a byte stream of their own.

use std::time::Duration;

use agent::AllowBytes;
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

use super::connection::Connection;
use super::{ApiError, Dial, Endpoint};

/// The first request for a project loads it, which takes seconds on a busy machine.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_mins(1);
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of bytes read of an error response.
const MAX_REFUSAL: usize = 64 * 1024;
pub(super) const MAX_HEAD: usize = 64 * 1024;
pub(super) const MAX_HEADERS: usize = 64;
const MAX_ID: usize = 128;
const MAX_CURSOR: usize = 512;

/// A complete response.
pub(super) struct Reply {
    what: &'static str,
    pub(super) body: Bytes,
    /// The cursor of the next older page.
    pub(super) cursor: Option<String>,
}

impl Reply {
    pub(super) fn read<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        serde_json::from_slice(&self.body).map_err(|_| ApiError::Malformed(self.what))
    }
}

/// Checks an id that becomes part of a path: it must not be able to change the meaning of the path.
pub(super) fn check_path_segment(id: &str) -> Result<&str, ApiError> {
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if !id.is_empty() && id.len() <= MAX_ID && id.bytes().all(valid) { Ok(id) } else { Err(ApiError::BadId) }
}

/// How much of a response may be held in memory.
pub(super) struct Limit<'a, 'b> {
    pub(super) max: usize,
    pub(super) allow: &'a mut AllowBytes<'b>,
}

/// Sends a request and reads the complete response.
pub(super) async fn request_complete<D: Dial>(
    dial: &D,
    endpoint: &Endpoint,
    what: &'static str,
    method: Method,
    path: &str,
    body: Option<Bytes>,
    limit: Limit<'_, '_>,
) -> Result<Reply, ApiError> {
    let exchange = async {
        let (response, mut connection) = send(dial, what, request(endpoint, method, path, body)?).await?;
        let status = response.status();
        if !status.is_success() {
            let limit = Limit { max: MAX_REFUSAL, allow: &mut |_| true };
            let body = connection.drive_until(collect(what, response.into_body(), limit)).await;
            return Err(refusal_error(what, status, &body.unwrap_or_default()));
        }
        let cursor = response.headers().get("x-next-cursor").and_then(|value| value.to_str().ok());
        let cursor = cursor.filter(|cursor| is_cursor(cursor)).map(str::to_owned);
        let body = connection.drive_until(collect(what, response.into_body(), limit)).await?;
        Ok(Reply { what, body, cursor })
    };
    timeout(REQUEST_TIMEOUT, Box::pin(exchange)).await.unwrap_or(Err(ApiError::TimedOut(what)))
}

/// Opens a byte stream to the agent, with a timeout.
pub(super) async fn dial_stream<D: Dial>(dial: &D) -> Result<D::Stream, ApiError> {
    let dial_stream = timeout(DIAL_TIMEOUT, dial.dial()).await;
    dial_stream
        .unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
        .map_err(|error| ApiError::Unreachable(error.kind()))
}

async fn send<D: Dial>(
    dial: &D,
    what: &'static str,
    request: Request<Full<Bytes>>,
) -> Result<(Response<Incoming>, Connection), ApiError> {
    let stream = dial_stream(dial).await?;
    let broken = |_| ApiError::Broken(what);
    let mut builder = http1::Builder::new();
    builder.max_headers(MAX_HEADERS).max_buf_size(MAX_HEAD);
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(broken)?;
    let mut connection = Connection::new(async {
        // The reader of the response sees how the connection ended.
        let _ = connection.await;
    });
    let response = connection.drive_until(sender.send_request(request)).await.map_err(broken)?;
    Ok((response, connection))
}

fn request(
    endpoint: &Endpoint,
    method: Method,
    path: &str,
    body: Option<Bytes>,
) -> Result<Request<Full<Bytes>>, ApiError> {
    let mut request = Request::builder()
        .method(method)
        .uri(format!("{}{path}", endpoint.prefix))
        .header(HOST, &endpoint.authority)
        .header(ACCEPT, "application/json");
    if let Some((name, value)) = &endpoint.header {
        request = request.header(name, value);
    }
    if body.is_some() {
        request = request.header(CONTENT_TYPE, "application/json");
    }
    request.body(Full::new(body.unwrap_or_default())).map_err(|_| ApiError::BadEndpoint)
}

async fn collect(what: &'static str, body: Incoming, limit: Limit<'_, '_>) -> Result<Bytes, ApiError> {
    let (mut body, mut bytes) = (Limited::new(body, limit.max), BytesMut::new());
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

/// Keeps only the name of the agent's error, and only if it looks like a name.
fn refusal_error(what: &'static str, status: StatusCode, body: &[u8]) -> ApiError {
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
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~%=+".contains(&byte);
    !cursor.is_empty() && cursor.len() <= MAX_CURSOR && cursor.bytes().all(valid)
}
