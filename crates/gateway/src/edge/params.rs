//! Path and query parameters, and the idempotency key. A malformed value is refused with a JSON error that does not
//! repeat it.

use axum::extract::FromRequestParts;
use axum::extract::rejection::QueryRejection;
use axum::http::HeaderMap;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

use super::ApiError;
use super::body::explain;
use crate::app::AppState;

const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// The most characters of an idempotency key.
const LONGEST_KEY: usize = 255;

/// The parameters of the path. A value of the wrong type cannot name anything, so the answer is 404.
pub(super) struct Path<T>(pub(super) T);

/// The query parameters. If they do not have the expected shape, the answer is 400.
pub(super) struct Query<T>(pub(super) T);

impl<T: DeserializeOwned + Send> FromRequestParts<AppState> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, ApiError> {
        let path = axum::extract::Path::from_request_parts(parts, app).await;
        path.map(|path| Self(path.0)).map_err(|_| ApiError::not_found("Not found"))
    }
}

impl<T: DeserializeOwned> FromRequestParts<AppState> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, ApiError> {
        let query = axum::extract::Query::from_request_parts(parts, app).await;
        query.map(|query| Self(query.0)).map_err(|error| shape_error(&error))
    }
}

/// The error for a malformed query: names the parameter and what is expected. The deserializer reports
/// `name: what is wrong with the value`.
fn shape_error(error: &QueryRejection) -> ApiError {
    let text = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    let (path, problem) = match text.split_once(": ") {
        Some((path, problem)) if path.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') => {
            (path, problem)
        }
        _ => (".", text.as_str()),
    };
    ApiError::bad_request(explain(path, problem, "The query"))
}

/// The `Idempotency-Key` of a request, if it has one.
pub(super) fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let Some(value) = headers.get(IDEMPOTENCY_KEY) else { return Ok(None) };
    let text = value.to_str().ok().filter(|text| (1..=LONGEST_KEY).contains(&text.len()));
    let text =
        text.ok_or_else(|| ApiError::bad_request("Idempotency-Key must be 1 to 255 visible characters"))?;
    Ok(Some(text.to_owned()))
}
