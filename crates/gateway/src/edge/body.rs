//! The one way in which a handler gets JSON: bounded, in time, and meaning one thing only.

use axum::body::Bytes;
use axum::extract::{FromRequest, MatchedPath, Request};
use axum::http::{HeaderMap, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde::de::DeserializeOwned;

use super::ApiError;
use crate::app::AppState;

/// A JSON body of type `T`. Too large is 413; malformed, of another shape, with a key twice or with an integer that
/// readers round is 400; never 500.
pub struct Body<T>(pub T);

impl<T: DeserializeOwned> FromRequest<AppState> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &AppState) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        let limit = limit(app, parts.extensions.get());
        let bytes = read(app, &parts.headers, body, limit).await?;
        ledger::check(&bytes).map_err(|error| ApiError::invalid_json(format!("The body is {error}")))?;
        serde_json::from_slice(&bytes).map(Self).map_err(|error| misshapen(&error))
    }
}

/// A prompt may have images in it: as large as it may be in a frame of the socket.
const PROMPT_ROUTE: &str = "/proliferate/{id}/message";
const MAX_PROMPT: usize = 32 * 1024 * 1024;

/// The most bytes of a body on this route.
fn limit(app: &AppState, route: Option<&MatchedPath>) -> usize {
    let usual = app.config.max_body_bytes;
    if route.is_some_and(|route| route.as_str() == PROMPT_ROUTE) { usual.max(MAX_PROMPT) } else { usual }
}

/// Where a body is not what it should be. The reader's own words repeat values, which may be secrets; only the name
/// of a field that is missing is ours, and old clients know the words for that.
fn misshapen(error: &serde_json::Error) -> ApiError {
    let (line, column, text) = (error.line(), error.column(), error.to_string());
    let missing = text.strip_prefix("missing field `").and_then(|rest| rest.split('`').next());
    ApiError::misshapen(missing.map_or_else(
        || format!("The body is not of the expected shape at line {line}, column {column}"),
        |name| format!("{name} is required"),
    ))
}

/// The client's timeout is for each piece of a body; all pieces together may take this many of it, so that a client
/// that sends one byte at a time does not hold a connection for days.
const TIMEOUTS_PER_BODY: u32 = 6;

/// The whole body, if it comes within `limit` bytes and the client's time. One that says it is larger is not awaited.
pub(super) async fn read(
    app: &AppState,
    headers: &HeaderMap,
    body: axum::body::Body,
    limit: usize,
) -> Result<Bytes, ApiError> {
    let told = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if told.is_some_and(|told| told > limit as u64) {
        return Err(ApiError::too_large(limit));
    }
    let patience = app.config.client_timeout.saturating_mul(TIMEOUTS_PER_BODY);
    match tokio::time::timeout(patience, Limited::new(body, limit).collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(ApiError::too_large(limit)),
        _ => Err(ApiError::body_timeout()),
    }
}
