//! The model as agents reach it: the Messages API under `/llm`, with our own credentials instead of the provider's, and
//! with an end to what a session may spend.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{OriginalUri, Request};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Response, StatusCode, header};
use futures_util::TryStreamExt as _;
use store::SessionRecord;
use tokio::sync::SemaphorePermit;

use super::ApiError;
use super::auth::{Caller, ModelCaller, ModelRefusal};
use super::body::read;
use crate::app::AppState;
use crate::llm::{Asked, Hold, Meter, Room, failure};

/// As large as the provider itself takes.
const MAX_BODY: usize = model::MAX_BODY;

/// Passes a request of the Messages API on and streams the answer back. Where it costs money only sandboxes may ask, for
/// what they use is counted and has an end.
#[utoipa::path(post, path = "/llm/v1/messages", tag = "model", request_body = serde_json::Value,
    responses((status = 200, description = "As the Messages API answers", content_type = "text/event-stream")))]
pub(super) async fn messages(
    app: AppState,
    ModelCaller(caller): ModelCaller,
    uri: OriginalUri,
    request: Request,
) -> Result<Response<Body>, ModelRefusal> {
    let Caller::Sandbox(session) = caller else {
        if app.llm.costs() {
            return Ok(failure(StatusCode::FORBIDDEN, "Only the agent of a session may ask the model"));
        }
        return pass(app, uri, request).await;
    };
    let taken = Taken::read(&app, request).await?;
    let asked = Asked::read(&taken.body).await;
    let most = asked.at_most(&app.config.model_prices);
    let hold = app.spending.hold(session.id, session.org_id, most);
    match room(&app, &session, &hold).await? {
        Room::Gone => return used_up(&app, &session).await,
        Room::Busy => return Ok(busy()),
        Room::Free => {}
    }
    let mut count = Count { app: app.clone(), session, open: Some((Meter::new(asked), hold)) };
    let answer = taken.pass_on(&app, &uri).await;
    if !answer.status().is_success() {
        count.open = None;
        return Ok(answer);
    }
    Ok(count.along(answer))
}

/// Whether the session and its organisation may spend what is held.
async fn room(app: &AppState, session: &SessionRecord, hold: &Hold) -> Result<Room, ApiError> {
    let org = app.store.org_budget(session.org_id).await?;
    let of_org = org.budget_micros.map_or(Room::Free, |budget| hold.room_of_org(budget, org.spent_micros));
    let Some(budget) = session.budget_micros.or(app.config.session_budget_micros) else { return Ok(of_org) };
    let spent = app.store.session_usage(session.org_id, session.id).await?.cost_micros;
    Ok(of_org.max(hold.room_of_session(budget, spent)))
}

/// Pauses the session and says why.
async fn used_up(app: &AppState, session: &SessionRecord) -> Result<Response<Body>, ModelRefusal> {
    if let Some(hub) = app.hubs.get(session.id) {
        hub.over_budget().await.map_err(|error| ApiError::unavailable("The session", error.to_string()))?;
    }
    Ok(failure(StatusCode::PAYMENT_REQUIRED, "The budget of this session is used up"))
}

/// Agents try again by themselves; nothing is over yet.
fn busy() -> Response<Body> {
    let message = "Other requests may need the rest of the budget: try again when they have ended";
    let mut answer = failure(StatusCode::TOO_MANY_REQUESTS, message);
    answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    answer
}

/// Writes down what was used when it goes out of scope, so that a client that hangs up does not get it for nothing. What
/// was held for it is free only then.
struct Count {
    app: AppState,
    session: Arc<SessionRecord>,
    /// `None`: there is nothing to count.
    open: Option<(Meter, Hold)>,
}

impl Count {
    /// The same answer, counted when it has passed, or when nobody wants the rest.
    fn along(mut self, answer: Response<Body>) -> Response<Body> {
        let (parts, body) = answer.into_parts();
        let kind = parts.headers.get(header::CONTENT_TYPE).map(|value| value.as_bytes().to_owned());
        if let Some((meter, _)) = &mut self.open {
            meter.answered(kind.is_some_and(|kind| kind.starts_with(b"text/event-stream")));
        }
        let body = body.into_data_stream().inspect_ok(move |piece| {
            if let Some((meter, _)) = &mut self.open {
                meter.pass(piece);
            }
        });
        Response::from_parts(parts, Body::from_stream(body))
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        let Some((meter, hold)) = self.open.take() else { return };
        let (app, session) = (self.app.clone(), self.session.clone());
        tokio::spawn(async move {
            let (model, used) = meter.usage(&app.config.model_prices);
            let added = app.store.add_usage(session.org_id, session.id, &model, used, app.clock.now());
            if let Err(error) = added.await {
                tracing::error!(session = %session.id, %error, "what the model used was not counted");
            }
            drop(hold);
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

async fn pass(app: AppState, uri: OriginalUri, request: Request) -> Result<Response<Body>, ModelRefusal> {
    Ok(Taken::read(&app, request).await?.pass_on(&app, &uri).await)
}

/// A request that is held in memory, and the room that it takes.
struct Taken<'a> {
    parts: Parts,
    body: Bytes,
    _room: SemaphorePermit<'a>,
}

impl<'a> Taken<'a> {
    async fn read(app: &'a AppState, request: Request) -> Result<Self, ModelRefusal> {
        let (parts, body) = request.into_parts();
        // Whoever has to wait has sent no body yet; it is asked for when there is room.
        let room = app.model_requests.acquire().await;
        let room = room.map_err(|error| ApiError::internal(error.to_string()))?;
        let body = read(app, &parts.headers, body, MAX_BODY).await?;
        Ok(Self { parts, body, _room: room })
    }

    async fn pass_on(self, app: &AppState, OriginalUri(uri): &OriginalUri) -> Response<Body> {
        let path =
            uri.path_and_query().and_then(|path| path.as_str().strip_prefix("/llm")).unwrap_or_default();
        app.llm.answer(&self.parts.method, path, &self.parts.headers, self.body).await
    }
}
