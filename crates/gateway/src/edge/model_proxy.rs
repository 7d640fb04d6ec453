//! The model as agents reach it: the Messages API under `/llm`, with our own credentials instead of the provider's.

use axum::body::Body;
use axum::extract::{OriginalUri, Request};
use axum::http::{HeaderMap, Response};

use super::ApiError;
use super::auth::{authenticate, bearer};
use super::body::read;
use crate::app::AppState;
use crate::llm::failure;

/// As large as the provider itself takes.
const MAX_BODY: usize = model::MAX_BODY;

/// Passes a request of the Messages API on and streams the answer back.
#[utoipa::path(post, path = "/llm/v1/messages", tag = "model", request_body = serde_json::Value,
    responses((status = 200, description = "As the Messages API answers", content_type = "text/event-stream")))]
pub(super) async fn messages(app: AppState, uri: OriginalUri, request: Request) -> Response<Body> {
    pass(app, uri, request).await
}

#[utoipa::path(post, path = "/llm/v1/messages/count_tokens", tag = "model",
    request_body = serde_json::Value,
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
    let admitted = async {
        let key = key(&parts.headers).ok_or_else(ApiError::missing_authorization)?;
        authenticate(&app, key, None).await?;
        read(&app, &parts.headers, body, MAX_BODY).await
    };
    let body = match admitted.await {
        Ok(body) => body,
        Err(error) => {
            let (status, body) = error.tell();
            return failure(status, &body.error);
        }
    };
    let path = uri.path_and_query().and_then(|path| path.as_str().strip_prefix("/llm")).unwrap_or_default();
    app.llm.answer(&parts.method, path, &parts.headers, body).await
}

/// Clients of the Messages API send their key in a header of its own.
fn key(headers: &HeaderMap) -> Option<&str> {
    headers.get("x-api-key").and_then(|key| key.to_str().ok()).or_else(|| bearer(headers))
}
