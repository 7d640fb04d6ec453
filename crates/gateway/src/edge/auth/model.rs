//! Authentication of agents that use a model API: they send a credential of the gateway in place of the
//! provider's.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};

use super::super::ApiError;
use super::super::error::Reason;
use super::caller::{act, bearer};
use super::{Caller, authenticate};
use crate::app::AppState;
use crate::llm::Protocol;

/// A caller with an `x-api-key` header or a bearer token. Cookies are not accepted, because browsers are not agents.
pub struct ModelCaller(pub Caller);

/// An error response in the form that clients of the API expect.
pub struct ModelRefusal(pub Protocol, pub ApiError);

impl IntoResponse for ModelRefusal {
    fn into_response(self) -> Response {
        let Self(protocol, error) = self;
        let retry_after = error.retry_after();
        let (status, body) = error.log_and_split();
        let mut answer = protocol.refusal(status, &body.error);
        if let Some(seconds) = retry_after {
            answer.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
        answer.extensions_mut().insert(Reason::of(&body));
        answer
    }
}

impl FromRequestParts<AppState> for ModelCaller {
    type Rejection = ModelRefusal;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, ModelRefusal> {
        let protocol = Protocol::of_path(parts.uri.path());
        let caller = identify(parts, app).await;
        caller.map(Self).map_err(|error| ModelRefusal(protocol, error))
    }
}

async fn identify(parts: &mut Parts, app: &AppState) -> Result<Caller, ApiError> {
    let key = key(&parts.headers).ok_or_else(ApiError::missing_authorization)?;
    let caller = authenticate(app, key, None, parts.extensions.get()).await?;
    parts.extensions.insert(caller.party());
    caller.must(act(parts)?, true)?;
    Ok(caller)
}

/// The only `x-api-key` header, or else the bearer token. A request with two keys is refused: a proxy in front of the
/// gateway may have checked the other one.
fn key(headers: &HeaderMap) -> Option<&str> {
    let mut all = headers.get_all("x-api-key").iter();
    match (all.next(), all.next()) {
        (None, _) => bearer(headers),
        (Some(key), None) => key.to_str().ok(),
        (Some(_), Some(_)) => None,
    }
}
