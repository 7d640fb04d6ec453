//! The model as agents reach it: the Messages API under `/llm`, with our own credentials instead of the provider's.

use axum::body::Body;
use axum::extract::{OriginalUri, Request};
use axum::http::{HeaderMap, Response, StatusCode, header};

use super::auth::authenticate;
use super::body::read;
use crate::app::AppState;
use crate::llm::failure;

/// As large as the provider itself takes.
const MAX_BODY: usize = model::MAX_BODY;

/// Passes a request of the Messages API on and streams the answer back.
#[utoipa::path(post, path = "/llm/v1/messages", tag = "model",
    responses((status = 200, description = "As the Messages API answers", content_type = "text/event-stream")))]
pub(super) async fn messages(app: AppState, uri: OriginalUri, request: Request) -> Response<Body> {
    pass(app, uri, request).await
}

#[utoipa::path(post, path = "/llm/v1/messages/count_tokens", tag = "model",
    responses((status = 200, description = "As the Messages API answers")))]
pub(super) async fn count_tokens(app: AppState, uri: OriginalUri, request: Request) -> Response<Body> {
    pass(app, uri, request).await
}

#[utoipa::path(get, path = "/llm/v1/models", tag = "model",
    responses((status = 200, description = "As the Messages API answers")))]
pub(super) async fn models(app: AppState, uri: OriginalUri, request: Request) -> Response<Body> {
    pass(app, uri, request).await
}

async fn pass(app: AppState, OriginalUri(uri): OriginalUri, request: Request) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let caller = match key(&parts.headers) {
        Some(key) => authenticate(&app, key, None).await.ok(),
        None => None,
    };
    if caller.is_none() {
        return failure(StatusCode::UNAUTHORIZED, "invalid x-api-key");
    }
    let Ok(body) = read(body, MAX_BODY).await else {
        return failure(StatusCode::PAYLOAD_TOO_LARGE, "the request is too large or did not arrive in time");
    };
    let path = uri.path().strip_prefix("/llm").unwrap_or_default().to_owned();
    app.llm.answer(&parts.method, &path, &parts.headers, body).await
}

/// Clients of the Messages API send their key in a header of its own.
fn key(headers: &HeaderMap) -> Option<&str> {
    let bearer = || headers.get(header::AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ");
    headers.get("x-api-key").and_then(|key| key.to_str().ok()).or_else(bearer)
}
