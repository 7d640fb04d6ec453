//! Request bodies. Handlers get JSON through [`Body`], which limits the size, time and memory of a request body, and
//! refuses JSON that two parsers could read differently.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{ConnectInfo, FromRequest, MatchedPath, Request};
use axum::http::header;
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::Response;
use bytes::BytesMut;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;

use super::ApiError;
use crate::app::AppState;
use shares::{Held, Party, Pool};

/// A JSON body of type `T`. The answer is 413 if the body is too large; 400 if it is malformed, has the wrong shape,
/// repeats a key, or contains an integer that some parsers round; and 429 if it exceeds the caller's share of memory.
pub struct Body<T>(pub T);

impl<T: DeserializeOwned + Send + 'static> FromRequest<AppState> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &AppState) -> Result<Self, ApiError> {
        parse_off_workers(read_limited(request, app).await?).await.map(Self)
    }
}

async fn read_limited(request: Request, app: &AppState) -> Result<Bytes, ApiError> {
    let (parts, body) = request.into_parts();
    let limit = limit(app, parts.extensions.get());
    read(app, &parts, body, limit).await
}

/// Parses a large body on a blocking thread.
async fn parse_off_workers<T: DeserializeOwned + Send + 'static>(bytes: Bytes) -> Result<T, ApiError> {
    if bytes.len() <= PARSED_AT_ONCE {
        return parse(&bytes);
    }
    let parsed = tokio::task::spawn_blocking(move || parse(&bytes)).await;
    parsed.map_err(|error| ApiError::internal(error.to_string()))?
}

/// Like [`Body`], but a request without a body has the default.
pub struct OptionalBody<T>(pub T);

impl<T: DeserializeOwned + Default + Send + 'static> FromRequest<AppState> for OptionalBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &AppState) -> Result<Self, ApiError> {
        // Only reading tells: the layer that limits the time of a body hides that it is empty.
        let bytes = read_limited(request, app).await?;
        if bytes.is_empty() { Ok(Self(T::default())) } else { parse_off_workers(bytes).await.map(Self) }
    }
}

/// The size in bytes above which a body is parsed on a blocking thread, so that it does not block an async worker.
const PARSED_AT_ONCE: usize = 256 * 1024;

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    ledger::check(bytes).map_err(|error| ApiError::invalid_json(format!("The body is {error}")))?;
    // Without this, a list of the fields' values in their order would pass as the object.
    if !bytes.trim_ascii_start().starts_with(b"{") {
        return Err(ApiError::wrong_shape("The body must be an object".to_owned()));
    }
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    serde_path_to_error::deserialize(&mut reader).map_err(|error| shape_error(&error))
}

/// The shares that a request holds until it is answered: a slot, and the memory of its body.
#[derive(Clone, Default)]
pub(super) struct RequestShares(Arc<Mutex<Vec<Held>>>);

impl RequestShares {
    fn add(&self, held: Held) {
        self.0.lock().push(held);
    }
}

/// Middleware that attaches [`RequestShares`] to each request, and releases them after the response.
pub(super) async fn count_shares(mut request: Request, next: Next) -> Response {
    let shares = RequestShares::default();
    request.extensions_mut().insert(shares.clone());
    let response = next.run(request).await;
    drop(shares);
    response
}

/// Takes a slot for a request that has arrived completely. A request whose body is still arriving does not occupy one.
pub(super) fn take_slot(app: &AppState, parts: &Parts, sharer: Party) -> Result<(), ApiError> {
    if let Some(shares) = parts.extensions.get::<RequestShares>() {
        shares.add(app.shares.requests.take(sharer, 1)?);
    }
    Ok(())
}

/// The route of prompts. They may contain images, so the limit is the same as for a message over the socket.
const PROMPT_ROUTE: &str = "/proliferate/{id}/message";
const MAX_PROMPT: usize = 32 * 1024 * 1024;
/// The route of MCP clients. The SDK parses their messages once more, on an async worker.
const MCP_ROUTE: &str = "/mcp";

/// The most bytes of a request body on this route.
fn limit(app: &AppState, route: Option<&MatchedPath>) -> usize {
    let usual = app.config.max_body_bytes;
    match route.map(MatchedPath::as_str) {
        Some(PROMPT_ROUTE) => usual.max(MAX_PROMPT),
        Some(MCP_ROUTE) => usual.min(PARSED_AT_ONCE),
        _ => usual,
    }
}

/// The error for a body of the wrong shape: names the field and what is expected there.
fn shape_error(error: &serde_path_to_error::Error<serde_json::Error>) -> ApiError {
    ApiError::wrong_shape(explain(&error.path().to_string(), &error.inner().to_string(), "The body"))
}

/// Explains a deserialization error without repeating the value, which may be a secret. The explanation contains only
/// the names of fields and what is expected. Old clients look for the text about a missing field.
pub(super) fn explain(path: &str, problem: &str, whole: &str) -> String {
    let parent = if path == "." { "" } else { path };
    if let Some(name) = problem.strip_prefix("missing field `").and_then(|rest| rest.split('`').next()) {
        let dot = if parent.is_empty() { "" } else { "." };
        return format!("{parent}{dot}{name} is required");
    }
    // In serde's messages the value comes first and may contain any text; what is expected comes last.
    let expected = problem.rsplit_once("expected ").filter(|(given, _)| given.ends_with([',', ' ', ':']));
    let expected = expected.map(|(_, expected)| expected);
    let expected = expected.map(|text| text.split(" at line ").next().unwrap_or(text).replace('`', ""));
    let what = if parent.is_empty() { whole } else { parent };
    match expected {
        Some(expected) if problem.starts_with("unknown field") => {
            // The path ends with the name of the unknown field.
            let problem = match parent {
                path if is_plain_path(path) => format!("{path} is an unknown field"),
                _ => format!("{whole} has an unknown field"),
            };
            format!("{problem}; allowed: {}", expected.trim_start_matches("one of "))
        }
        Some(expected) => format!("{what} must be {}", in_plain_words(&expected)),
        None => format!("{what} is not of the expected shape"),
    }
}

/// What is expected, without the names of our types.
fn in_plain_words(expected: &str) -> &str {
    match expected.split(' ').next() {
        Some("struct" | "map") => "an object",
        Some("tuple") => "a list",
        _ if expected.starts_with("internally tagged enum") || expected.starts_with("a map") => "an object",
        _ if expected.starts_with("a sequence") => "a list",
        _ => expected,
    }
}

/// Whether a path consists of plain field names. Anything else may be a value in the wrong place, and must not be
/// repeated.
fn is_plain_path(path: &str) -> bool {
    !path.is_empty()
        && path.len() <= 80
        && path.chars().all(|c| c.is_ascii_alphanumeric() || "_-.[]".contains(c))
}

/// How many times the client timeout a whole body may take. The timeout itself applies to each chunk, so a client that
/// sends one byte at a time could otherwise hold a connection for days.
const TIMEOUTS_PER_BODY: u32 = 6;

/// The most bytes of a body from a client that is not authenticated, such as one with a login code.
const MAX_ANONYMOUS: usize = 4 * 1024;
/// The step, in bytes, by which the memory share of a body grows: the pool is locked once per step, not once per
/// packet.
const SHARE_STEP_BYTES: usize = 16 * 1024;

/// Reads a whole body within `limit` bytes, the time limit and the caller's share of memory. A body whose
/// `Content-Length` exceeds the limit is refused at once. If the caller is not authenticated yet, the limit is a few
/// KiB.
pub(super) async fn read(
    app: &AppState,
    parts: &Parts,
    body: axum::body::Body,
    limit: usize,
) -> Result<Bytes, ApiError> {
    match parts.extensions.get::<Party>() {
        Some(sharer) => read_for(app, parts, body, (&app.shares.memory, *sharer, limit)).await,
        None => read_anonymous(app, parts, body, limit.min(MAX_ANONYMOUS)).await,
    }
}

/// Reads a whole body of a client that is not authenticated, at the expense of its address.
pub(super) async fn read_anonymous(
    app: &AppState,
    parts: &Parts,
    body: axum::body::Body,
    limit: usize,
) -> Result<Bytes, ApiError> {
    read_for(app, parts, body, (&app.shares.anonymous_memory, address(parts), limit)).await
}

async fn read_for(
    app: &AppState,
    parts: &Parts,
    body: axum::body::Body,
    (pool, sharer, limit): (&Arc<Pool>, Party, usize),
) -> Result<Bytes, ApiError> {
    let announced =
        parts.headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|announced| announced > limit as u64) {
        return Err(ApiError::too_large(limit));
    }
    let patience = app.config.client_timeout.saturating_mul(TIMEOUTS_PER_BODY);
    let mut memory = pool.take(sharer, 0)?;
    let arrived = tokio::time::timeout(patience, collect(body, limit, &mut memory)).await;
    let bytes = arrived.unwrap_or_else(|_| Err(ApiError::body_timeout()))?;
    if let Some(shares) = parts.extensions.get::<RequestShares>() {
        shares.add(memory);
    }
    take_slot(app, parts, sharer)?;
    Ok(bytes)
}

/// Collects a body. The memory share grows as bytes arrive, so that a client cannot reserve memory by announcing a
/// length.
async fn collect(body: axum::body::Body, limit: usize, memory: &mut Held) -> Result<Bytes, ApiError> {
    let (mut body, mut bytes) = (Limited::new(body, limit), BytesMut::new());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            if error.is::<LengthLimitError>() { ApiError::too_large(limit) } else { ApiError::body_timeout() }
        })?;
        let Ok(data) = frame.into_data() else { continue };
        let held = usize::try_from(memory.amount()).unwrap_or(usize::MAX);
        let missing = (bytes.len() + data.len()).saturating_sub(held);
        if missing > 0 {
            memory.grow(missing.next_multiple_of(SHARE_STEP_BYTES) as u64)?;
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes.freeze())
}

fn address(parts: &Parts) -> Party {
    Party::address(parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0.ip()))
}

#[cfg(test)]
mod tests {
    use proto::http::CreateSession;
    use serde_json::json;

    use super::*;

    fn refusal_of(body: &serde_json::Value) -> String {
        let text = body.to_string();
        let mut reader = serde_json::Deserializer::from_str(&text);
        let error = serde_path_to_error::deserialize::<_, CreateSession>(&mut reader).unwrap_err();
        shape_error(&error).status_and_text().1.to_owned()
    }

    #[test]
    fn an_error_names_the_field_and_what_it_must_be_and_never_the_value() {
        let with = |field: &str, value: serde_json::Value| {
            let mut body = json!({"sessionType": "coding", "clientType": "web"});
            body[field] = value;
            refusal_of(&body)
        };
        assert_eq!(
            with("sessionType", json!("s3cret, expected one of `x`")),
            "sessionType must be one of coding, setup, cli"
        );
        assert_eq!(with("title", json!(7)), "title must be a string");
        assert_eq!(refusal_of(&json!({"clientType": "web"})), "sessionType is required");
        assert_eq!(
            explain("repos[0]", "missing field `repoId` at line 1 column 9", "The body"),
            "repos[0].repoId is required"
        );
        for (problem, told) in [
            ("invalid length 0, expected struct InvokeAction with 3 elements", "params must be an object"),
            ("invalid type: integer `7`, expected struct NewRepo", "params must be an object"),
            ("invalid type: string \"x\", expected a sequence", "params must be a list"),
            ("invalid type: string \"x\", expected a map", "params must be an object"),
        ] {
            assert_eq!(explain("params", problem, "The body"), told);
        }
        let long = "x".repeat(81);
        for (path, told) in [
            ("repos[0].titel", "repos[0].titel is an unknown field"),
            ("a b", "The body has an unknown field"),
            (&long, "The body has an unknown field"),
        ] {
            let problem = format!("unknown field `{path}`, expected one of `a`, `b` at line 1 column 9");
            assert_eq!(explain(path, &problem, "The body"), format!("{told}; allowed: a, b"));
        }
        assert_eq!(explain(".", "trailing characters", "The body"), "The body is not of the expected shape");
    }
}
