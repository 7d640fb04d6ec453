//! Parts of a URL as handlers get them: what is malformed is refused in JSON, and is not repeated.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

use super::ApiError;
use crate::app::AppState;

/// The part of the path that a route leaves open. What cannot be one names nothing: 404.
pub(super) struct Path<T>(pub(super) T);

/// The query. What is not of the expected shape is 400.
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
        query
            .map(|query| Self(query.0))
            .map_err(|_| ApiError::bad_request("The query is not of the expected shape"))
    }
}
