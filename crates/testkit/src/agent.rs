//! An OpenCode that does what a test wants: the requests of the real one, and turns that a test plays by hand, breaks
//! or leaves alone. `tests/agent.rs` holds its events against recordings of the real one.

mod turn;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::{Body, to_bytes};
use axum::extract::{DefaultBodyLimit, Path, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use futures_util::stream;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use crate::serve::{HangUp, Server};
pub use turn::Turn;

/// The longest prompt.
const MAX_BODY: usize = 64 * 1024 * 1024;
/// A moment in 2026, in milliseconds; each thing that happens is one later.
const BEGINNING: u64 = 1_794_709_467_000;

/// An agent on loopback, for as many sessions as are asked for.
#[derive(Debug)]
pub struct FakeAgent {
    server: Server,
    state: Arc<Shared>,
}

/// How it behaves.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fault of its own, and any may go with any")]
pub struct Manner {
    /// Says that it is there.
    pub healthy: bool,
    /// It takes questions about its health and never answers them.
    pub mute_health: bool,
    /// Answers every prompt by itself with `echo: ` and the prompt.
    pub echoes: bool,
    /// So many prompts are taken and not answered for: the connection just ends.
    pub lost_replies: u32,
    /// So many prompts are refused and not taken.
    pub refusals: u32,
    /// What it does about a cancel.
    pub abort: Abort,
    /// It never answers questions about its history.
    pub mute_history: bool,
    /// Its history has pages of this size without end, instead of what it remembers.
    pub endless_history: Option<usize>,
    /// It ends every stream of events as soon as somebody listens.
    pub drops_listeners: bool,
}

/// What a cancel does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Abort {
    /// Ends the turn that runs.
    Honest,
    /// Waits until the manner is another one, and then ends the turn that runs by then.
    Late,
    /// Says yes and does nothing.
    Deaf,
}

impl Default for Manner {
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
        }
    }
}

/// A request as it came in.
#[derive(Debug, Clone)]
pub struct Asked {
    pub method: String,
    pub path: String,
    pub body: Value,
}

#[derive(Debug)]
pub(crate) struct Shared {
    inner: Mutex<Inner>,
    /// Goes up with everything that happens.
    changes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
pub(crate) struct Inner {
    manner: Manner,
    asked: Vec<Asked>,
    /// Unanswered questions about its health whose caller hung up.
    hung_up: usize,
    /// Its sessions with what it remembers of each.
    pub(crate) sessions: BTreeMap<String, Memory>,
    /// Prompts that nobody plays yet.
    waiting: VecDeque<Turn>,
    listeners: Vec<mpsc::UnboundedSender<io::Result<Bytes>>>,
    /// Numbers for ids and times.
    counter: u64,
}

/// What it remembers of a session.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    pub(crate) messages: Vec<Value>,
    pub(crate) busy: bool,
    pub(crate) turn: Option<turn::Running>,
}

impl FakeAgent {
    pub async fn start() -> io::Result<Self> {
        let state = Arc::new(Shared { inner: Mutex::default(), changes: watch::Sender::new(0) });
        let router = Router::new()
            .route("/global/health", get(health))
            .route("/experimental/tool/ids", get(async || Json(["bash", "read"])))
            .route("/session", post(create))
            .route("/session/status", get(status))
            .route("/session/{id}", get(known))
            .route("/session/{id}/message", get(history))
            .route("/session/{id}/prompt_async", post(prompt))
            .route("/session/{id}/abort", post(abort))
            .route("/event", get(events))
            // Prompts may bring images.
            .layer(DefaultBodyLimit::disable())
            .layer(axum::middleware::from_fn_with_state(Arc::clone(&state), record))
            .with_state(Arc::clone(&state));
        Ok(Self { server: Server::start(router).await?, state })
    }

    pub fn url(&self) -> String {
        self.server.url()
    }

    /// Changes how it behaves from now on.
    pub fn behave(&self, change: impl FnOnce(&mut Manner)) {
        self.state.change(|inner| change(&mut inner.manner));
    }

    /// The next prompt that it took, for the test to answer. Give it a timeout.
    pub async fn next_turn(&self) -> Turn {
        self.wait(|inner| inner.waiting.pop_front()).await
    }

    /// Everything that it was asked so far, by the end of the path.
    pub fn asked(&self, ending: &str) -> Vec<Asked> {
        let inner = self.state.inner();
        inner.asked.iter().filter(|asked| asked.path.ends_with(ending)).cloned().collect()
    }

    /// Waits until it was asked this so often. Give it a timeout.
    pub async fn wait_for_asked(&self, ending: &str, count: usize) {
        let enough = |inner: &mut Inner| {
            let seen = inner.asked.iter().filter(|asked| asked.path.ends_with(ending)).count();
            (seen >= count).then_some(())
        };
        self.wait(enough).await;
    }

    /// Waits until this many callers hung up on an unanswered question about its health. Give it a timeout.
    pub async fn wait_for_hung_up(&self, count: usize) {
        self.wait(|inner| (inner.hung_up >= count).then_some(())).await;
    }

    /// Waits until so many listen to its events. Give it a timeout.
    pub async fn wait_for_listeners(&self, count: usize) {
        self.wait(|inner| {
            inner.listeners.retain(|listener| !listener.is_closed());
            (inner.listeners.len() >= count).then_some(())
        })
        .await;
    }

    /// Says an event to everyone who listens.
    pub fn emit(&self, event: &Value) {
        self.state.inner().emit(event);
    }

    /// Sends these bytes on every stream of events.
    pub fn send_raw(&self, bytes: &[u8]) {
        self.state.inner().send(&Bytes::copy_from_slice(bytes));
    }

    /// Breaks every stream of events; whoever listens anew is welcome.
    pub fn cut(&self) {
        for listener in self.state.inner().listeners.drain(..) {
            let _ = listener.send(Err(io::ErrorKind::ConnectionAborted.into()));
        }
    }

    /// Forgets all its sessions, as after a restart with nothing kept, and breaks the streams.
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
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        let changed = change(&mut self.inner());
        self.changes.send_modify(|count| *count += 1);
        changed
    }
}

impl Inner {
    /// Numbers that follow each other.
    pub(crate) fn next(&mut self) -> u64 {
        self.counter += 1;
        BEGINNING + self.counter
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
    let asked = Asked {
        method: parts.method.to_string(),
        path: parts.uri.path().to_owned(),
        body: serde_json::from_slice(&body).unwrap_or_default(),
    };
    state.change(|inner| inner.asked.push(asked));
    next.run(Request::from_parts(parts, Body::from(body))).await
}

/// Counts a caller that hangs up: the server drops the handler, and this with it.
struct UnansweredHealth(Arc<Shared>);

impl Drop for UnansweredHealth {
    fn drop(&mut self) {
        self.0.change(|inner| inner.hung_up += 1);
    }
}

async fn health(State(state): State<Arc<Shared>>) -> Response {
    if state.inner().manner.mute_health {
        let _unanswered = UnansweredHealth(state);
        return std::future::pending().await;
    }
    if state.inner().manner.healthy {
        return Json(json!({ "healthy": true, "version": "1.18.33" })).into_response();
    }
    StatusCode::SERVICE_UNAVAILABLE.into_response()
}

async fn create(State(state): State<Arc<Shared>>, Json(body): Json<Value>) -> Json<Value> {
    state.change(|inner| {
        let id = format!("ses_{}", inner.next());
        inner.sessions.insert(id.clone(), Memory::default());
        Json(json!({ "id": id, "title": body["title"], "version": "1.18.33" }))
    })
}

async fn known(State(state): State<Arc<Shared>>, Path(id): Path<String>) -> Response {
    if state.inner().sessions.contains_key(&id) {
        Json(json!({ "id": id })).into_response()
    } else {
        not_found()
    }
}

async fn status(State(state): State<Arc<Shared>>) -> Response {
    if state.inner().manner.mute_history {
        return std::future::pending().await;
    }
    let inner = state.inner();
    let busy = inner.sessions.iter().filter(|(_, memory)| memory.busy);
    Json(busy.map(|(id, _)| (id.clone(), json!({ "type": "busy" }))).collect::<serde_json::Map<_, _>>())
        .into_response()
}

async fn history(State(state): State<Arc<Shared>>, Path(id): Path<String>) -> Response {
    if let Some(size) = state.inner().manner.endless_history {
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
    let taken = state.change(|inner| take(&state, inner, &id, &body));
    match taken {
        Taken::Fine => StatusCode::NO_CONTENT.into_response(),
        Taken::Unknown => not_found(),
        Taken::Refused => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        Taken::Lost => {
            let mut response = Response::new(Body::empty());
            response.extensions_mut().insert(HangUp);
            response
        }
    }
}

enum Taken {
    Fine,
    Unknown,
    Refused,
    Lost,
}

fn take(state: &Arc<Shared>, inner: &mut Inner, session: &str, body: &Value) -> Taken {
    if !inner.sessions.contains_key(session) {
        return Taken::Unknown;
    }
    if inner.manner.refusals > 0 {
        inner.manner.refusals -= 1;
        return Taken::Refused;
    }
    let id = body["messageID"].as_str().unwrap_or_default();
    let known = inner.sessions[session].messages.iter().any(|message| message["info"]["id"] == id);
    // The same id again is the same message: nothing happens twice.
    if !known {
        let turn = Turn::of(Arc::clone(state), inner, session, body);
        if inner.manner.echoes { turn.echo(inner) } else { inner.waiting.push_back(turn) }
    }
    if inner.manner.lost_replies > 0 {
        inner.manner.lost_replies -= 1;
        return Taken::Lost;
    }
    Taken::Fine
}

async fn abort(State(state): State<Arc<Shared>>, Path(id): Path<String>) -> Response {
    let mut changes = state.changes.subscribe();
    // The sender lives in the state, so this wait cannot fail.
    let _ = changes.wait_for(|_| state.inner().manner.abort != Abort::Late).await;
    state.change(|inner| {
        if inner.manner.abort == Abort::Honest {
            turn::abort(inner, &id);
        }
    });
    Json(true).into_response()
}

async fn events(State(state): State<Arc<Shared>>) -> Response {
    let (tell, heard) = mpsc::unbounded_channel();
    let hello =
        Bytes::from_static(b"data: {\"id\":\"evt_0\",\"type\":\"server.connected\",\"properties\":{}}\n\n");
    let _ = tell.send(Ok(hello));
    state.change(|inner| {
        if !inner.manner.drops_listeners {
            inner.listeners.push(tell);
        }
    });
    let body = stream::unfold(heard, |mut heard| async move { Some((heard.recv().await?, heard)) });
    ([("content-type", "text/event-stream")], Body::from_stream(body)).into_response()
}

fn not_found() -> Response {
    (StatusCode::NOT_FOUND, Json(json!({ "name": "NotFoundError", "data": { "message": "not found" } })))
        .into_response()
}
