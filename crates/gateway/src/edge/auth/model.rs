//! Agents that speak the Messages API: they send our credentials where the provider's would stand.

use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};

use super::super::ApiError;
use super::caller::bearer;
use super::{Caller, authenticate};
use crate::app::AppState;
use crate::llm::failure;

/// A caller with `x-api-key` or a bearer token. Cookies do not count: a browser is no agent.
pub struct ModelCaller(pub Caller);

/// A refusal in the form that clients of the Messages API expect.
pub struct ModelRefusal(ApiError);

impl From<ApiError> for ModelRefusal {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl IntoResponse for ModelRefusal {
    fn into_response(self) -> Response {
        let (status, body) = self.0.tell();
        failure(status, &body.error)
    }
}

impl FromRequestParts<AppState> for ModelCaller {
    type Rejection = ModelRefusal;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, ModelRefusal> {
        let key = key(&parts.headers).ok_or_else(ApiError::missing_authorization)?;
        Ok(Self(authenticate(app, key, None).await?))
    }
}

/// The one key: of two, a proxy before us may have looked at the other one.
fn key(headers: &HeaderMap) -> Option<&str> {
    let mut all = headers.get_all("x-api-key").iter();
    match (all.next(), all.next()) {
        (None, _) => bearer(headers),
        (Some(key), None) => key.to_str().ok(),
        (Some(_), Some(_)) => None,
    }
}
