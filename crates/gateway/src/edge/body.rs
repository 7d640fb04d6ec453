//! The one way in which a handler gets JSON: bounded, in time, and meaning one thing only.

use axum::extract::{FromRequest, Request};
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
        let limit = app.config.max_body_bytes;
        let bytes = read(request.into_body(), limit).await?;
        ledger::check(&bytes).map_err(|error| ApiError::invalid_json(format!("The body is {error}")))?;
        let value = serde_json::from_slice(&bytes)
            .map_err(|error| ApiError::invalid_json(format!("The body is not of the expected shape: {error}")))?;
        Ok(Self(value))
    }
}

/// The whole body, if it comes within `limit` bytes and the client's time.
pub(super) async fn read(body: axum::body::Body, limit: usize) -> Result<axum::body::Bytes, ApiError> {
    match Limited::new(body, limit).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(ApiError::too_large(limit)),
        Err(_) => Err(ApiError::body_timeout()),
    }
}
