//! The model proxy: agents use the Messages API or the Chat Completions API under `/llm` with a credential of the gateway
//! instead of the provider's. The proxy meters their requests and enforces the budgets of sessions and organizations.

use std::pin::pin;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{OriginalUri, Request};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse as _;
use futures_util::{StreamExt as _, stream};
use store::SandboxSession;
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::Instrument as _;

use super::ApiError;
use super::auth::{Caller, ModelCaller, ModelRefusal};
use super::body::read;
use crate::app::AppState;
use crate::llm::{AnswerLost, Fit, Hold, Meter, ModelRequest, Protocol, Remaining};
use shares::Held;

/// The number of chunks of a response that are buffered for the agent.
const BUFFERED_CHUNKS: usize = 8;
/// How long the gateway waits for the usage of a response after the agent has disconnected. Without it the request is
/// charged its worst-case cost.
const LAST_PATIENCE: Duration = Duration::from_secs(30);
/// The largest request body that the provider accepts.
const MAX_BODY: usize = model::MAX_BODY;

/// Forwards a request of the Messages API to the provider, and streams the response back.
/// If the provider charges for requests, only sandboxes may send them, because their usage is metered and limited.
#[utoipa::path(post, path = "/llm/v1/messages", tag = "model", request_body = serde_json::Value,
    responses((status = 200, description = "As the Messages API answers", content_type = "text/event-stream"),
        (status = "default", description = "As the Messages API refuses, or 402 when a budget is used up")))]
pub(super) async fn messages(
    app: AppState,
    ModelCaller(caller): ModelCaller,
    uri: OriginalUri,
    request: Request,
) -> Result<Response<Body>, ModelRefusal> {
    let answer = answer(app, Protocol::Messages, caller, uri, request).await;
    answer.map_err(|error| ModelRefusal(Protocol::Messages, error))
}

/// Forwards a request of the Chat Completions API to the provider, and streams the response back.
/// If the provider charges for requests, only sandboxes may send them, because their usage is metered and limited.
#[utoipa::path(post, path = "/llm/v1/chat/completions", tag = "model", request_body = serde_json::Value,
    responses((status = 200, description = "As the Chat Completions API answers", content_type = "text/event-stream"),
        (status = "default", description = "As the Chat Completions API refuses, or 402 when a budget is used up")))]
pub(super) async fn chat_completions(
    app: AppState,
    ModelCaller(caller): ModelCaller,
    uri: OriginalUri,
    request: Request,
) -> Result<Response<Body>, ModelRefusal> {
    let answer = answer(app, Protocol::Chat, caller, uri, request).await;
    answer.map_err(|error| ModelRefusal(Protocol::Chat, error))
}

async fn answer(
    app: AppState,
    protocol: Protocol,
    caller: Caller,
    uri: OriginalUri,
    request: Request,
) -> Result<Response<Body>, ApiError> {
    let party = caller.party();
    let Caller::Sandbox(session) = caller else {
        if app.model.llm.costs() {
            let why = "Only the agent of a session may ask the model";
            return Ok(protocol.refusal(StatusCode::FORBIDDEN, why));
        }
        return forward_unmetered(app, &caller, uri, request).await;
    };
    let mut call = ModelCall::read(&app, request).await?;
    // The order matters: a shutdown either waits for this token or is noticed by the check below.
    let working = app.model.work.tasks.token();
    if app.process.closing.is_cancelled() {
        return Err(ApiError::stopping());
    }
    // The slot is taken only after the body has arrived, so that a slow upload does not occupy one.
    let slot = app.shares.model_requests.take(party, 1).map_err(ApiError::from)?;
    call.body = app.model.llm.prepare(protocol, call.body).await;
    let mut request = ModelRequest::read(protocol, &call.body).await;
    let mut hold =
        app.model.spending.hold(session.id, session.org_id, request.at_most(&app.config.model_prices));
    if let Some(left) = remaining_budget(&app, &session, &hold).await? {
        match fit_to_budget(&app, &request, &left) {
            Ok(Fit::Whole) => {}
            Ok(Fit::Lowered(output)) => {
                call.body = request.lower(&call.body, output);
                hold.lower(request.at_most(&app.config.model_prices));
            }
            Ok(Fit::Busy) => return Ok(busy(protocol)),
            Ok(Fit::Gone(least)) => return over_budget(&app, protocol, &session, left.refusal(least)).await,
            Err((status, why)) => return Ok(protocol.refusal(status, &why)),
        }
    }
    let meter = Meter::new(request);
    let metered =
        MeteredRequest { app, protocol, session, meter, _hold: hold, _slot: slot, _working: working };
    Ok(metered.forward(call, uri).await)
}

/// The remaining budget of the session and its organization; `None` if neither has one. The amounts spent are read
/// after `hold` was taken, so that every concurrent request is counted as held or as spent.
async fn remaining_budget(
    app: &AppState,
    session: &SandboxSession,
    hold: &Hold,
) -> Result<Option<Remaining>, ApiError> {
    let org = app.store.org_budget(session.org_id).await?;
    let of_org = org.budget_micros.map(|budget| hold.left_of_org(budget, org.spent_micros));
    let Some(budget) = session.budget_micros.or(app.config.session_budget_micros) else { return Ok(of_org) };
    let spent = app.store.session_usage(session.org_id, session.id).await?.cost_micros;
    let own = hold.left_of_session(budget, spent);
    Ok(Some(of_org.map_or(own, |of_org| own.and(of_org))))
}

/// Whether a request fits into the remaining budget. A request whose cost cannot be computed is refused.
fn fit_to_budget(
    app: &AppState,
    request: &ModelRequest,
    left: &Remaining,
) -> Result<Fit, (StatusCode, String)> {
    let price = app.model.llm.price(&app.config.model_prices, request.model());
    let price = price.map_err(|error| (StatusCode::PAYMENT_REQUIRED, error.to_string()))?;
    request.fit(price, left).map_err(|why| {
        let message = format!("A budget holds, and what this request costs cannot be known before: {why}");
        (StatusCode::BAD_REQUEST, message)
    })
}

/// Pauses a session whose budget is used up, and refuses the request with the reason.
async fn over_budget(
    app: &AppState,
    protocol: Protocol,
    session: &SandboxSession,
    why: String,
) -> Result<Response<Body>, ApiError> {
    let answer = protocol.refusal(StatusCode::PAYMENT_REQUIRED, &why);
    if let Some(hub) = app.hubs.get(session.id) {
        hub.over_budget(why).await.map_err(ApiError::from)?;
    }
    Ok(answer)
}

/// The answer when requests in flight may use up the rest of the budget. Agents retry on their own.
fn busy(protocol: Protocol) -> Response<Body> {
    let message = "Other requests may need the rest of the budget: try again when they have ended";
    let mut answer = protocol.refusal(StatusCode::TOO_MANY_REQUESTS, message);
    answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    answer
}

/// A metered request. It continues after the agent disconnects until its cost is known, so that disconnecting does not
/// make it cheaper. Its hold on the budget is released after the cost has been stored.
struct MeteredRequest {
    app: AppState,
    protocol: Protocol,
    session: SandboxSession,
    meter: Meter,
    _hold: Hold,
    _slot: Held,
    _working: TaskTrackerToken,
}

impl MeteredRequest {
    async fn forward(self, call: ModelCall, uri: OriginalUri) -> Response<Body> {
        let (answered, answer) = oneshot::channel();
        let protocol = self.protocol;
        tokio::spawn(self.run(call, uri, answered).in_current_span());
        answer
            .await
            .unwrap_or_else(|_| protocol.refusal(StatusCode::INTERNAL_SERVER_ERROR, "Internal server error"))
    }

    async fn run(mut self, call: ModelCall, uri: OriginalUri, mut answered: oneshot::Sender<Response<Body>>) {
        let app = self.app.clone();
        if app.model.work.cut.is_cancelled() {
            // Nothing was sent to the provider, so nothing is charged.
            return drop(answered.send(ModelRefusal(self.protocol, ApiError::stopping()).into_response()));
        }
        let nobody_waits = async {
            answered.closed().await;
            tokio::time::sleep(LAST_PATIENCE).await;
        };
        let answer = tokio::select! {
            answer = call.forward(&app, &uri) => Some(answer),
            () = nobody_waits => None,
            () = app.model.work.cut.cancelled() => None,
        };
        match answer {
            // The provider may have produced a response that was lost, and charge for it.
            Some(lost) if lost.extensions().get::<AnswerLost>().is_some() => {
                drop(answered.send(lost));
                self.record_usage().await;
            }
            // The provider does not charge for requests that it refuses.
            Some(refusal) if !refusal.status().is_success() => drop(answered.send(refusal)),
            Some(answer) => {
                self.stream(answer, answered).await;
                self.record_usage().await;
            }
            None => self.record_usage().await,
        }
    }

    /// Streams the response to the agent, and meters it.
    async fn stream(&mut self, answer: Response<Body>, answered: oneshot::Sender<Response<Body>>) {
        let (parts, body) = answer.into_parts();
        let kind = parts.headers.get(header::CONTENT_TYPE);
        self.meter.start(kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream")));
        let (chunks, rest) = mpsc::channel(BUFFERED_CHUNKS);
        drop(answered.send(Response::from_parts(parts, Body::from_stream(from(rest)))));
        let mut body = body.into_data_stream();
        let cut = self.app.model.work.cut.clone();
        let mut out_of_patience = pin!(async {
            chunks.closed().await;
            tokio::time::sleep(LAST_PATIENCE).await;
        });
        loop {
            let chunk = tokio::select! {
                chunk = body.next() => chunk,
                () = chunks.closed(), if self.meter.knows_input() => return,
                () = &mut out_of_patience => return,
                () = cut.cancelled() => return,
            };
            let Some(chunk) = chunk else { return self.meter.end() };
            if let Ok(chunk) = &chunk {
                self.meter.pass(chunk);
            }
            let is_cut = chunk.is_err();
            // The result does not matter: the `select!` above notices that the agent has disconnected.
            tokio::select! {
                _sent = chunks.send(chunk) => {}
                () = cut.cancelled() => return,
            }
            // The stream ends after an error, but the response is not complete.
            if is_cut {
                return;
            }
        }
    }

    async fn record_usage(self) {
        let (app, session) = (self.app, self.session);
        let (model, used) = self.meter.usage(&app.config.model_prices);
        crate::telemetry::count_usage(&used);
        let added = app.store.add_usage(session.org_id, session.id, &model, used, app.clock.now());
        if let Err(error) = added.await {
            tracing::error!(session = %session.id, %error, "what the model used was not counted");
        }
    }
}

/// Turns the chunks into a body stream. Yields before an error, because the server flushes the earlier chunks only when
/// the body is pending.
fn from<E>(rest: mpsc::Receiver<Result<Bytes, E>>) -> impl stream::Stream<Item = Result<Bytes, E>> {
    stream::unfold(rest, |mut rest| async {
        let piece = rest.recv().await?;
        if piece.is_err() {
            tokio::task::yield_now().await;
        }
        Some((piece, rest))
    })
}

#[utoipa::path(post, path = "/llm/v1/messages/count_tokens", tag = "model",
    request_body = serde_json::Value,
    responses((status = 200, description = "As the Messages API answers"),
        (status = "default", description = "As the Messages API refuses")))]
pub(super) async fn count_tokens(
    app: AppState,
    ModelCaller(caller): ModelCaller,
    uri: OriginalUri,
    request: Request,
) -> Result<Response<Body>, ModelRefusal> {
    let answer = forward_unmetered(app, &caller, uri, request).await;
    answer.map_err(|error| ModelRefusal(Protocol::Messages, error))
}

#[utoipa::path(get, path = "/llm/v1/models", tag = "model",
    responses((status = 200, description = "As the Messages API answers"),
        (status = "default", description = "As the Messages API refuses")))]
pub(super) async fn models(
    app: AppState,
    ModelCaller(caller): ModelCaller,
    uri: OriginalUri,
    request: Request,
) -> Result<Response<Body>, ModelRefusal> {
    let answer = forward_unmetered(app, &caller, uri, request).await;
    answer.map_err(|error| ModelRefusal(Protocol::Messages, error))
}

async fn forward_unmetered(
    app: AppState,
    caller: &Caller,
    uri: OriginalUri,
    request: Request,
) -> Result<Response<Body>, ApiError> {
    let call = ModelCall::read(&app, request).await?;
    let slot = app.shares.model_requests.take(caller.party(), 1).map_err(ApiError::from)?;
    let answer = call.forward(&app, &uri).await;
    // The stream owns the slot, and releases it when the response has been sent.
    Ok(answer.map(|body| {
        Body::from_stream(body.into_data_stream().map(move |piece| {
            let _held = &slot;
            piece
        }))
    }))
}

/// A request whose body is held in memory. [`read`] charges the memory to the caller's share.
struct ModelCall {
    parts: Parts,
    body: Bytes,
}

impl ModelCall {
    async fn read(app: &AppState, request: Request) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        let body = read(app, &parts, body, MAX_BODY).await?;
        Ok(Self { parts, body })
    }

    async fn forward(self, app: &AppState, OriginalUri(uri): &OriginalUri) -> Response<Body> {
        let path =
            uri.path_and_query().and_then(|path| path.as_str().strip_prefix("/llm")).unwrap_or_default();
        app.model.llm.answer(&self.parts.method, path, &self.parts.headers, self.body).await
    }
}
