//! A fake OpenCode server: it accepts the requests of the real one, and tests control its turns step by step.
//! `tests/agent.rs` compares its events with recordings of the real one.

mod requests;
mod turn;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::{DefaultBodyLimit, Path, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use futures_util::stream;
use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use crate::serve::{HangUp, Server};
pub use turn::Turn;

/// Maximum size of a prompt.
const MAX_BODY: usize = 64 * 1024 * 1024;
/// A time in 2026, in milliseconds; every event is one millisecond later.
const START_MILLIS: u64 = 1_794_709_467_000;

/// A fake agent on loopback, for any number of sessions.
#[derive(Debug)]
pub struct FakeAgent {
    server: Server,
    state: Arc<Shared>,
}

/// How the fake agent behaves.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "the faults are independent and can be combined")]
pub struct AgentBehavior {
    /// Whether it reports that it is healthy.
    pub healthy: bool,
    /// Whether the agent accepts health checks and never answers them.
    pub mute_health: bool,
    /// Answers every prompt by itself with `echo: ` and the prompt.
    pub echoes: bool,
    /// The number of prompts that are accepted, but whose connection is closed without a response.
    pub lost_replies: u32,
    /// How many of the next prompts are rejected.
    pub refusals: u32,
    /// How it reacts to a cancel request.
    pub abort: Abort,
    /// Whether the agent never answers requests for its history.
    pub mute_history: bool,
    /// Serves an endless history with pages of this size instead of the real one.
    pub endless_history: Option<usize>,
    /// Whether the agent closes every event stream immediately.
    pub drops_listeners: bool,
    /// The models of its provider `litellm`. `None` if it cannot list them.
    pub models: Option<Vec<String>>,
}

/// How the agent reacts to a cancel request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Abort {
    /// The agent ends the active turn.
    Honest,
    /// Waits until the behavior changes, then ends the turn that is active at that time.
    Late,
    /// The agent answers successfully but does nothing.
    Deaf,
}

impl Default for AgentBehavior {
    fn default() -> Self {
        Self {
            healthy: true,
            mute_health: false,
            echoes: false,
            lost_replies: 0,
            refusals: 0,
            abort: Abort::Honest,
            mute_history: false,
            endless_history: None,
            drops_listeners: false,
            models: None,
        }
    }
}

/// A request as it was received.
#[derive(Debug, Clone)]
pub struct AgentRequest {
    pub method: String,
    pub path: String,
    pub body: Value,
}

#[derive(Debug)]
pub(crate) struct Shared {
    inner: Mutex<Inner>,
    /// Incremented with every change of the state.
    changes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
pub(crate) struct Inner {
    behavior: AgentBehavior,
    asked: Vec<AgentRequest>,
    /// Health checks that were never answered and whose client disconnected.
    hung_up: usize,
    /// The sessions and their history.
    pub(crate) sessions: BTreeMap<String, Memory>,
    /// Prompts that no test has picked up yet.
    waiting: VecDeque<Turn>,
    /// Requests that wait for a person, by id.
    requests: BTreeMap<String, Value>,
    listeners: Vec<mpsc::UnboundedSender<io::Result<Bytes>>>,
    /// The source of ids and timestamps.
    counter: u64,
}

/// The state of a session.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    pub(crate) messages: Vec<Value>,
    pub(crate) busy: bool,
    pub(crate) turn: Option<turn::MessageInProgress>,
    /// Whether the agent was restarted: it does not work on what it had, but on a prompt that is sent again.
    pub(crate) restarted: bool,
}

impl FakeAgent {
    pub async fn start() -> io::Result<Self> {
        let state = Arc::new(Shared { inner: Mutex::default(), changes: watch::Sender::new(0) });
        let router = Router::new()
            .route("/global/health", get(health))
            .route("/experimental/tool/ids", get(async || Json(["bash", "read"])))
            .route("/config/providers", get(providers))
            .route("/session", post(create))
            .route("/session/status", get(status))
            .route("/session/{id}", get(get_session))
            .route("/session/{id}/message", get(history))
            .route("/session/{id}/prompt_async", post(prompt))
            .route("/session/{id}/abort", post(abort))
            .route("/event", get(events))
            .merge(requests::routes())
            // Prompts may contain images.
            .layer(DefaultBodyLimit::disable())
            .layer(axum::middleware::from_fn_with_state(Arc::clone(&state), record))
            .with_state(Arc::clone(&state));
        Ok(Self { server: Server::start(router).await?, state })
    }

    pub fn url(&self) -> String {
        self.server.url()
    }

    /// Changes the behavior from now on.
    pub fn behave(&self, change: impl FnOnce(&mut AgentBehavior)) {
        self.state.change(|inner| change(&mut inner.behavior));
    }

    /// The next accepted prompt, for the test to answer. Use it with a timeout.
    pub async fn next_turn(&self) -> Turn {
        self.wait(|inner| inner.waiting.pop_front()).await
    }

    /// All requests so far whose path ends with `ending`.
    pub fn asked(&self, ending: &str) -> Vec<AgentRequest> {
        let inner = self.state.inner();
        inner.asked.iter().filter(|asked| asked.path.ends_with(ending)).cloned().collect()
    }

    /// Waits until there were `count` requests whose path ends with `ending`. Use it with a timeout.
    pub async fn wait_for_asked(&self, ending: &str, count: usize) {
        let enough = |inner: &mut Inner| {
            let seen = inner.asked.iter().filter(|asked| asked.path.ends_with(ending)).count();
            (seen >= count).then_some(())
        };
        self.wait(enough).await;
    }

    /// Waits until `count` clients disconnected from an unanswered health check. Use it with a timeout.
    pub async fn wait_for_hung_up(&self, count: usize) {
        self.wait(|inner| (inner.hung_up >= count).then_some(())).await;
    }

    /// Sends an event on every event stream.
    pub fn emit(&self, event: &Value) {
        self.state.inner().emit(event);
    }

    /// Sends raw bytes on every event stream.
    pub fn send_raw(&self, bytes: &[u8]) {
        self.state.inner().send(&Bytes::copy_from_slice(bytes));
    }

    /// Breaks every event stream; new subscriptions are accepted.
    pub fn cut(&self) {
        for listener in self.state.inner().listeners.drain(..) {
            let _ = listener.send(Err(io::ErrorKind::ConnectionAborted.into()));
        }
    }

    /// Drops all sessions, like a restart without state, and breaks the event streams.
    pub fn forget(&self) {
        self.state.change(|inner| inner.sessions.clear());
        self.cut();
    }

    async fn wait<T>(&self, mut found: impl FnMut(&mut Inner) -> Option<T>) -> T {
        let mut changes = self.state.changes.subscribe();
        loop {
            changes.mark_unchanged();
            let now = found(&mut self.state.inner());
            if let Some(found) = now {
                return found;
            }
            // The sender lives in `self.state`, so this wait cannot fail.
            let _ = changes.changed().await;
        }
    }
}

impl Shared {
    pub(crate) fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        let changed = change(&mut self.inner());
        self.changes.send_modify(|count| *count += 1);
        changed
    }
}

impl Inner {
    /// A strictly increasing number.
    pub(crate) fn next(&mut self) -> u64 {
        self.counter += 1;
        START_MILLIS + self.counter
    }

    pub(crate) fn emit(&mut self, event: &Value) {
        let mut event = event.clone();
        event["id"] = json!(format!("evt_{}", self.next()));
        self.send(&Bytes::from(format!("data: {event}\n\n")));
    }

    fn send(&mut self, bytes: &Bytes) {
        self.listeners.retain(|listener| listener.send(Ok(bytes.clone())).is_ok());
    }
}

async fn record(
    State(state): State<Arc<Shared>>,
    request: Request,
    next: axum::middleware::Next,
) -> Response {
    let (parts, body) = request.into_parts();
    let Ok(body) = to_bytes(body, MAX_BODY).await else {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    };
    let asked = AgentRequest {
        method: parts.method.to_string(),
        path: parts.uri.path().to_owned(),
        body: serde_json::from_slice(&body).unwrap_or_default(),
    };
    state.change(|inner| inner.asked.push(asked));
    next.run(Request::from_parts(parts, Body::from(body))).await
}

/// Counts a client that disconnects: the server drops the handler, and this with it.
struct UnansweredHealth(Arc<Shared>);

impl Drop for UnansweredHealth {
    fn drop(&mut self) {
        self.0.change(|inner| inner.hung_up += 1);
    }
}

async fn health(State(state): State<Arc<Shared>>) -> Response {
    if state.inner().behavior.mute_health {
        let _unanswered = UnansweredHealth(state);
        return std::future::pending().await;
    }
    if state.inner().behavior.healthy {
        return Json(json!({ "healthy": true, "version": "1.18.33" })).into_response();
    }
    StatusCode::SERVICE_UNAVAILABLE.into_response()
}

async fn providers(State(state): State<Arc<Shared>>) -> Result<Json<Value>, StatusCode> {
    let models = state.inner().behavior.models.clone().ok_or(StatusCode::NOT_FOUND)?;
    let models: BTreeMap<String, Value> = models.into_iter().map(|name| (name, json!({}))).collect();
    Ok(Json(json!({ "providers": [{ "id": "litellm", "models": models }] })))
}

async fn create(State(state): State<Arc<Shared>>, Json(body): Json<Value>) -> Json<Value> {
    state.change(|inner| {
        let id = format!("ses_{}", inner.next());
        inner.sessions.insert(id.clone(), Memory::default());
        Json(json!({ "id": id, "title": body["title"], "version": "1.18.33" }))
    })
}

async fn get_session(State(state): State<Arc<Shared>>, Path(id): Path<String>) -> Response {
    if state.inner().sessions.contains_key(&id) {
        Json(json!({ "id": id })).into_response()
    } else {
        not_found()
    }
}

async fn status(State(state): State<Arc<Shared>>) -> Response {
    if state.inner().behavior.mute_history {
        return std::future::pending().await;
    }
    let inner = state.inner();
    let busy = inner.sessions.iter().filter(|(_, memory)| memory.busy);
    Json(busy.map(|(id, _)| (id.clone(), json!({ "type": "busy" }))).collect::<serde_json::Map<_, _>>())
        .into_response()
}

async fn history(State(state): State<Arc<Shared>>, Path(id): Path<String>) -> Response {
    if let Some(size) = state.inner().behavior.endless_history {
        let page = format!(r#"[{{"info":{{"id":"msg_x"}},"parts":[{}{{}}]}}]"#, "{},".repeat(size / 3));
        return ([("x-next-cursor", "more"), ("content-type", "application/json")], page).into_response();
    }
    match state.inner().sessions.get(&id) {
        Some(memory) => Json(memory.messages.clone()).into_response(),
        None => not_found(),
    }
}

async fn prompt(
    State(state): State<Arc<Shared>>,
    Path(id): Path<String>,
    Json(body): Json<Value>,
) -> Response {
    let outcome = state.change(|inner| accept_prompt(&state, inner, &id, &body));
    match outcome {
        PromptOutcome::Accepted => StatusCode::NO_CONTENT.into_response(),
        PromptOutcome::Unknown => not_found(),
        PromptOutcome::Refused => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        PromptOutcome::Lost => {
            let mut response = Response::new(Body::empty());
            response.extensions_mut().insert(HangUp);
            response
        }
    }
}

enum PromptOutcome {
    Accepted,
    Unknown,
    Refused,
    Lost,
}

fn accept_prompt(state: &Arc<Shared>, inner: &mut Inner, session: &str, body: &Value) -> PromptOutcome {
    if !inner.sessions.contains_key(session) {
        return PromptOutcome::Unknown;
    }
    if inner.behavior.refusals > 0 {
        inner.behavior.refusals -= 1;
        return PromptOutcome::Refused;
    }
    let id = body["messageID"].as_str().unwrap_or_default();
    turn::forget_unanswered(inner, session, id);
    let known = inner.sessions[session].messages.iter().any(|message| message["info"]["id"] == id);
    // A repeated id is the same message, so nothing happens twice.
    if !known {
        let turn = Turn::new(Arc::clone(state), inner, session, body);
        if inner.behavior.echoes { turn.echo(inner) } else { inner.waiting.push_back(turn) }
    }
    if inner.behavior.lost_replies > 0 {
        inner.behavior.lost_replies -= 1;
        return PromptOutcome::Lost;
    }
    PromptOutcome::Accepted
}

async fn abort(State(state): State<Arc<Shared>>, Path(id): Path<String>) -> Response {
    let mut changes = state.changes.subscribe();
    // The sender lives in the state, so this wait cannot fail.
    let _ = changes.wait_for(|_| state.inner().behavior.abort != Abort::Late).await;
    state.change(|inner| {
        if inner.behavior.abort == Abort::Honest {
            turn::abort(inner, &id);
        }
    });
    Json(true).into_response()
}

async fn events(State(state): State<Arc<Shared>>) -> Response {
    let (sender, receiver) = mpsc::unbounded_channel();
    let connected =
        Bytes::from_static(b"data: {\"id\":\"evt_0\",\"type\":\"server.connected\",\"properties\":{}}\n\n");
    let _ = sender.send(Ok(connected));
    state.change(|inner| {
        if !inner.behavior.drops_listeners {
            inner.listeners.push(sender);
        }
    });
    let body =
        stream::unfold(receiver, |mut receiver| async move { Some((receiver.recv().await?, receiver)) });
    ([("content-type", "text/event-stream")], Body::from_stream(body)).into_response()
}

fn not_found() -> Response {
    (StatusCode::NOT_FOUND, Json(json!({ "name": "NotFoundError", "data": { "message": "not found" } })))
        .into_response()
}
