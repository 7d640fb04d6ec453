//! The model as agents reach it: the Messages API under `/llm`, with our own credentials instead of the provider's, and
//! with an end to what a session may spend.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{OriginalUri, Request};
use axum::http::{Response, StatusCode, header};
use futures_util::TryStreamExt as _;
use store::SessionRecord;

use super::ApiError;
use super::auth::{Caller, ModelCaller, ModelRefusal};
use super::body::read;
use crate::app::AppState;
use crate::llm::{Meter, failure};

/// As large as the provider itself takes.
const MAX_BODY: usize = model::MAX_BODY;

/// Passes a request of the Messages API on and streams the answer back.
#[utoipa::path(post, path = "/llm/v1/messages", tag = "model", request_body = serde_json::Value,
    responses((status = 200, description = "As the Messages API answers", content_type = "text/event-stream")))]
pub(super) async fn messages(
    app: AppState,
    ModelCaller(caller): ModelCaller,
    uri: OriginalUri,
    request: Request,
) -> Result<Response<Body>, ModelRefusal> {
    let Caller::Sandbox(session) = caller else { return pass(app, uri, request).await };
    if over_budget(&app, &session).await? {
        if let Some(hub) = app.hubs.get(session.id) {
            hub.over_budget()
                .await
                .map_err(|error| ApiError::unavailable("The session", error.to_string()))?;
        }
        return Ok(failure(StatusCode::PAYMENT_REQUIRED, "The budget of this session is used up"));
    }
    let answer = pass(app.clone(), uri, request).await?;
    Ok(if answer.status().is_success() { metered(app, session, answer) } else { answer })
}

/// Whether the session, or its organisation, has spent what it may.
async fn over_budget(app: &AppState, session: &SessionRecord) -> Result<bool, ApiError> {
    if app.store.org_budget(session.org_id).await?.is_exhausted() {
        return Ok(true);
    }
    let Some(budget) = session.budget_micros.or(app.config.session_budget_micros) else { return Ok(false) };
    Ok(app.store.session_usage(session.org_id, session.id).await?.cost_micros >= budget)
}

/// The same answer, counted when it has passed, or when nobody wants the rest.
fn metered(app: AppState, session: Arc<SessionRecord>, answer: Response<Body>) -> Response<Body> {
    let (parts, body) = answer.into_parts();
    let kind = parts.headers.get(header::CONTENT_TYPE).map(|value| value.as_bytes().to_owned());
    let streamed = kind.is_some_and(|kind| kind.starts_with(b"text/event-stream"));
    let mut count = Count { app, session, meter: Some(Meter::new(streamed)) };
    let body = body.into_data_stream().inspect_ok(move |piece| {
        if let Some(meter) = &mut count.meter {
            meter.pass(piece);
        }
    });
    Response::from_parts(parts, Body::from_stream(body))
}

/// Writes down what was used when it goes out of scope, so that a client that hangs up does not get it for nothing.
struct Count {
    app: AppState,
    session: Arc<SessionRecord>,
    meter: Option<Meter>,
}

impl Drop for Count {
    fn drop(&mut self) {
        let Some(meter) = self.meter.take() else { return };
        let (app, session) = (self.app.clone(), self.session.clone());
        tokio::spawn(async move {
            let (model, mut used) = meter.usage();
            used.cost_micros = app.config.model_prices.cost(&model, &used);
            let added = app.store.add_usage(session.org_id, session.id, &model, used, app.clock.now());
            if let Err(error) = added.await {
                tracing::error!(session = %session.id, %error, "what the model used was not counted");
            }
        });
    }
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
