//! The model as agents reach it: the Messages API under `/llm`, with our own credentials instead of the provider's, and
//! with an end to what a session may spend.

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

/// Pieces of an answer that may wait for the agent to read them.
const PIECES: usize = 8;
/// How long the first word of an answer is awaited that nobody wants any more: it says what the request has cost.
const LAST_PATIENCE: Duration = Duration::from_secs(30);
/// As large as the provider itself takes.
const MAX_BODY: usize = model::MAX_BODY;

/// Passes a request of the Messages API on and streams the answer back. Where it costs money only sandboxes may ask, for
/// what they use is counted and has an end.
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
    // In this order: a stop either waits for this request or is seen here.
    let working = app.model_work.tasks.token();
    if app.closing.is_cancelled() {
        return Err(ApiError::stopping().into());
    }
    // Only now: a body that comes slowly holds up nobody else.
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

/// What the session and its organization may still spend; `None` is all they like. What was spent is asked for after the
/// request was held, so that each other one is either held or spent, and never neither.
async fn left(app: &AppState, session: &SandboxSession, hold: &Hold) -> Result<Option<Left>, ApiError> {
    let org = app.store.org_budget(session.org_id).await?;
    let of_org = org.budget_micros.map(|budget| hold.left_of_org(budget, org.spent_micros));
    let Some(budget) = session.budget_micros.or(app.config.session_budget_micros) else { return Ok(of_org) };
    let spent = app.store.session_usage(session.org_id, session.id).await?.cost_micros;
    let own = hold.left_of_session(budget, spent);
    Ok(Some(of_org.map_or(own, |of_org| own.and(of_org))))
}

/// Whether a request fits into what is left; one of which nobody knows what it costs does not.
fn fit(app: &AppState, asked: &Asked, left: &Left) -> Result<Fit, (StatusCode, String)> {
    let price = app.llm.price(&app.config.model_prices, asked.model());
    let price = price.map_err(|error| (StatusCode::PAYMENT_REQUIRED, error.to_string()))?;
    asked.fit(price, left).map_err(|why| {
        let message = format!("A budget holds, and what this request costs cannot be known before: {why}");
        (StatusCode::BAD_REQUEST, message)
    })
}

/// Pauses the session and says why.
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

/// Agents try again by themselves; nothing is over yet.
fn busy() -> Response<Body> {
    let message = "Other requests may need the rest of the budget: try again when they have ended";
    let mut answer = failure(StatusCode::TOO_MANY_REQUESTS, message);
    answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    answer
}

/// A request that is counted. It goes on without the agent that made it until it is known what it has cost, so that
/// whoever hangs up does not get it for less; what is held for it is free when that is written down.
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
            // Nothing was sent, so nothing is charged.
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
            // The provider may have answered, and bill it.
            Some(lost) if lost.extensions().get::<AnswerLost>().is_some() => {
                drop(answered.send(lost));
                self.count().await;
            }
            // What the provider refuses costs nothing.
            Some(refusal) if !refusal.status().is_success() => drop(answered.send(refusal)),
            Some(answer) => {
                self.along(answer, answered).await;
                self.count().await;
            }
            None => self.count().await,
        }
    }

    /// Brings the answer to the agent, and looks at it on its way.
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
            // Whether anybody is there to take it is looked at above.
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

/// The pieces as a body. The server writes out what it has before an error only if the body has nothing more to give for
/// the moment.
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
    // The slot is free again when the last byte has gone.
    Ok(answer.map(|body| {
        Body::from_stream(body.into_data_stream().map(move |piece| {
            let _held = &slot;
            piece
        }))
    }))
}

/// A request that is held in memory. Its memory is counted with its head, by [`read`].
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
