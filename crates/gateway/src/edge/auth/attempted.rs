//! Access to a route on which people decide, and that records refused attempts: the refusal goes to the handler, which knows
//! what was attempted.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

use super::super::ApiError;
use super::Caller;
use super::caller::identify;
use crate::app::AppState;

/// Marks the requests that come from within a sandbox.
#[derive(Clone, Copy)]
pub(crate) struct InsideSandbox;

/// Refuses requests from within a sandbox: an agent that finds a person's token must not decide about its own requests.
pub(super) fn refuse_inside(parts: &Parts) -> Result<(), ApiError> {
    match parts.extensions.get::<InsideSandbox>() {
        Some(_) => Err(ApiError::forbidden("Nobody decides about an action from within a sandbox")),
        None => Ok(()),
    }
}

/// A caller with a valid credential, and what another extractor says about its request.
pub(crate) struct Attempted<T> {
    pub(crate) caller: Caller,
    pub(crate) access: Result<T, ApiError>,
}

impl<T: FromRequestParts<AppState, Rejection = ApiError>> FromRequestParts<AppState> for Attempted<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, ApiError> {
        let caller = identify(parts, app).await?;
        let access = match refuse_inside(parts) {
            Ok(()) => T::from_request_parts(parts, app).await,
            Err(refusal) => Err(refusal),
        };
        Ok(Self { caller, access })
    }
}
