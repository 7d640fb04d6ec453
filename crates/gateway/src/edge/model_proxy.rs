//! The model proxy: agents use the Messages API under `/llm` with a credential of the gateway instead of the
//! provider's. The proxy meters their requests and enforces the budgets of sessions and organizations.

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
use crate::llm::{AnswerLost, Asked, Fit, Hold, Left, Meter, failure};
use shares::Held;

/// The number of chunks of a response that are buffered for the agent.
const PIECES: usize = 8;
/// How long the gateway waits for the start of a response after the agent has disconnected. The start reports the
/// number of input tokens, and without it the request is charged its worst-case cost.
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
    let party = caller.party();
    let Caller::Sandbox(session) = caller else {
        if app.llm.costs() {
            return Ok(failure(StatusCode::FORBIDDEN, "Only the agent of a session may ask the model"));
        }
        return pass(app, &caller, uri, request).await;
    };
    let mut asking = Asking::read(&app, request).await?;
    // The order matters: a shutdown either waits for this token or is noticed by the check below.
    let working = app.model_work.tasks.token();
    if app.closing.is_cancelled() {
        return Err(ApiError::stopping().into());
    }
    // The slot is taken only after the body has arrived, so that a slow upload does not occupy one.
    let slot = app.shares.model_requests.take(party, 1).map_err(ApiError::from)?;
    let mut asked = Asked::read(&asking.body).await;
    let mut hold = app.spending.hold(session.id, session.org_id, asked.at_most(&app.config.model_prices));
    if let Some(left) = left(&app, &session, &hold).await? {
        match fit(&app, &asked, &left) {
            Ok(Fit::Whole) => {}
            Ok(Fit::Lowered(output)) => {
                asking.body = asked.lower(&asking.body, output);
                hold.lower(asked.at_most(&app.config.model_prices));
            }
            Ok(Fit::Busy) => return Ok(busy()),
            Ok(Fit::Gone(least)) => return used_up(&app, &session, left.refusal(least)).await,
            Err((status, why)) => return Ok(failure(status, &why)),
        }
    }
    let counted =
        Counted { app, session, meter: Meter::new(asked), _hold: hold, _slot: slot, _working: working };
    Ok(counted.pass_on(asking, uri).await)
}

/// The remaining budget of the session and its organization; `None` if neither has one. The amounts spent are read
/// after `hold` was taken, so that every concurrent request is counted as held or as spent.
async fn left(app: &AppState, session: &SandboxSession, hold: &Hold) -> Result<Option<Left>, ApiError> {
    let org = app.store.org_budget(session.org_id).await?;
    let of_org = org.budget_micros.map(|budget| hold.left_of_org(budget, org.spent_micros));
    let Some(budget) = session.budget_micros.or(app.config.session_budget_micros) else { return Ok(of_org) };
    let spent = app.store.session_usage(session.org_id, session.id).await?.cost_micros;
    let own = hold.left_of_session(budget, spent);
    Ok(Some(of_org.map_or(own, |of_org| own.and(of_org))))
}

/// Whether a request fits into the remaining budget. A request whose cost cannot be computed is refused.
fn fit(app: &AppState, asked: &Asked, left: &Left) -> Result<Fit, (StatusCode, String)> {
    let price = app.llm.price(&app.config.model_prices, asked.model());
    let price = price.map_err(|error| (StatusCode::PAYMENT_REQUIRED, error.to_string()))?;
    asked.fit(price, left).map_err(|why| {
        let message = format!("A budget holds, and what this request costs cannot be known before: {why}");
        (StatusCode::BAD_REQUEST, message)
    })
}

/// Pauses a session whose budget is used up, and refuses the request with the reason.
async fn used_up(
    app: &AppState,
    session: &SandboxSession,
    why: String,
) -> Result<Response<Body>, ModelRefusal> {
    let answer = failure(StatusCode::PAYMENT_REQUIRED, &why);
    if let Some(hub) = app.hubs.get(session.id) {
        hub.over_budget(why).await.map_err(ApiError::from)?;
    }
    Ok(answer)
}

/// The answer when requests in flight may use up the rest of the budget. Agents retry on their own.
fn busy() -> Response<Body> {
    let message = "Other requests may need the rest of the budget: try again when they have ended";
    let mut answer = failure(StatusCode::TOO_MANY_REQUESTS, message);
    answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    answer
}

/// A metered request. It continues after the agent disconnects until its cost is known, so that disconnecting does not
/// make it cheaper. Its hold on the budget is released after the cost has been stored.
struct Counted {
    app: AppState,
    session: SandboxSession,
    meter: Meter,
    _hold: Hold,
    _slot: Held,
    _working: TaskTrackerToken,
}

impl Counted {
    async fn pass_on(self, asking: Asking, uri: OriginalUri) -> Response<Body> {
        let (answered, answer) = oneshot::channel();
        tokio::spawn(self.run(asking, uri, answered).in_current_span());
        answer.await.unwrap_or_else(|_| failure(StatusCode::INTERNAL_SERVER_ERROR, "Internal server error"))
    }

    async fn run(mut self, asking: Asking, uri: OriginalUri, mut answered: oneshot::Sender<Response<Body>>) {
        let app = self.app.clone();
        if app.model_work.cut.is_cancelled() {
            // Nothing was sent to the provider, so nothing is charged.
            return drop(answered.send(ModelRefusal::from(ApiError::stopping()).into_response()));
        }
        let nobody_waits = async {
            answered.closed().await;
            tokio::time::sleep(LAST_PATIENCE).await;
        };
        let answer = tokio::select! {
            answer = asking.pass_on(&app, &uri) => Some(answer),
            () = nobody_waits => None,
            () = app.model_work.cut.cancelled() => None,
        };
        match answer {
            // The provider may have produced a response that was lost, and charge for it.
            Some(lost) if lost.extensions().get::<AnswerLost>().is_some() => {
                drop(answered.send(lost));
                self.count().await;
            }
            // The provider does not charge for requests that it refuses.
            Some(refusal) if !refusal.status().is_success() => drop(answered.send(refusal)),
            Some(answer) => {
                self.along(answer, answered).await;
                self.count().await;
            }
            None => self.count().await,
        }
    }

    /// Streams the response to the agent, and meters it.
    async fn along(&mut self, answer: Response<Body>, answered: oneshot::Sender<Response<Body>>) {
        let (parts, body) = answer.into_parts();
        let kind = parts.headers.get(header::CONTENT_TYPE);
        self.meter.answered(kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream")));
        let (pieces, rest) = mpsc::channel(PIECES);
        drop(answered.send(Response::from_parts(parts, Body::from_stream(from(rest)))));
        let mut body = body.into_data_stream();
        let cut = self.app.model_work.cut.clone();
        loop {
            let gone = async {
                pieces.closed().await;
                if !self.meter.knows_input() {
                    tokio::time::sleep(LAST_PATIENCE).await;
                }
            };
            let piece = tokio::select! {
                piece = body.next() => piece,
                () = gone => return,
                () = cut.cancelled() => return,
            };
            let Some(piece) = piece else { return };
            if let Ok(piece) = &piece {
                self.meter.pass(piece);
            }
            // The result does not matter: the `select!` above notices that the agent has disconnected.
            tokio::select! {
                _sent = pieces.send(piece) => {}
                () = cut.cancelled() => return,
            }
        }
    }

    async fn count(self) {
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
    pass(app, &caller, uri, request).await
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
    pass(app, &caller, uri, request).await
}

async fn pass(
    app: AppState,
    caller: &Caller,
    uri: OriginalUri,
    request: Request,
) -> Result<Response<Body>, ModelRefusal> {
    let asking = Asking::read(&app, request).await?;
    let slot = app.shares.model_requests.take(caller.party(), 1).map_err(ApiError::from)?;
    let answer = asking.pass_on(&app, &uri).await;
    // The stream owns the slot, and releases it when the response has been sent.
    Ok(answer.map(|body| {
        Body::from_stream(body.into_data_stream().map(move |piece| {
            let _held = &slot;
            piece
        }))
    }))
}

/// A request whose body is held in memory. [`read`] charges the memory to the caller's share.
struct Asking {
    parts: Parts,
    body: Bytes,
}

impl Asking {
    async fn read(app: &AppState, request: Request) -> Result<Self, ModelRefusal> {
        let (parts, body) = request.into_parts();
        let body = read(app, &parts, body, MAX_BODY).await?;
        Ok(Self { parts, body })
    }

    async fn pass_on(self, app: &AppState, OriginalUri(uri): &OriginalUri) -> Response<Body> {
        let path =
            uri.path_and_query().and_then(|path| path.as_str().strip_prefix("/llm")).unwrap_or_default();
        app.llm.answer(&self.parts.method, path, &self.parts.headers, self.body).await
    }
}
