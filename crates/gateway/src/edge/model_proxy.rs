//! The model as agents reach it: the Messages API under `/llm`, with our own credentials instead of the provider's.

use axum::body::Body;
use axum::extract::{OriginalUri, Request};
use axum::http::Response;

use super::ApiError;
use super::auth::{ModelCaller, ModelRefusal};
use super::body::read;
use crate::app::AppState;

/// As large as the provider itself takes.
const MAX_BODY: usize = model::MAX_BODY;

/// Passes a request of the Messages API on and streams the answer back.
#[utoipa::path(post, path = "/llm/v1/messages", tag = "model", request_body = serde_json::Value,
    responses((status = 200, description = "As the Messages API answers", content_type = "text/event-stream")))]
pub(super) async fn messages(
    app: AppState,
    _: ModelCaller,
    uri: OriginalUri,
    request: Request,
) -> Result<Response<Body>, ModelRefusal> {
    pass(app, uri, request).await
}

#[utoipa::path(post, path = "/llm/v1/messages/count_tokens", tag = "model",
    request_body = serde_json::Value,
    responses((status = 200, description = "As the Messages API answers")))]
pub(super) async fn count_tokens(
    app: AppState,
    _: ModelCaller,
    uri: OriginalUri,
    request: Request,
) -> Result<Response<Body>, ModelRefusal> {
    pass(app, uri, request).await
}

#[utoipa::path(get, path = "/llm/v1/models", tag = "model",
    responses((status = 200, description = "As the Messages API answers")))]
pub(super) async fn models(
    app: AppState,
    _: ModelCaller,
    uri: OriginalUri,
    request: Request,
) -> Result<Response<Body>, ModelRefusal> {
    pass(app, uri, request).await
}

async fn pass(
    app: AppState,
    OriginalUri(uri): OriginalUri,
    request: Request,
) -> Result<Response<Body>, ModelRefusal> {
    let (parts, body) = request.into_parts();
    // Whoever has to wait has sent no body yet; it is asked for when there is room.
    let _room = app.model_requests.acquire().await.map_err(|error| ApiError::internal(error.to_string()))?;
    let body = read(&app, &parts.headers, body, MAX_BODY).await?;
    let path = uri.path_and_query().and_then(|path| path.as_str().strip_prefix("/llm")).unwrap_or_default();
    Ok(app.llm.answer(&parts.method, path, &parts.headers, body).await)
}
