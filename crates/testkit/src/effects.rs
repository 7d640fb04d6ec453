//! Counts effects from outside: what a tool call did is what arrived here, whatever its caller believes.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use axum::{Json, Router};
use bytes::Bytes;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::serve::{HangUp, Server};

/// The longest key, and the longest body of one effect.
const MAX_KEY: usize = 512;
const MAX_BODY: usize = 1024 * 1024;
/// More effects than any run makes; a loop gone wild ends here.
const MAX_EFFECTS: usize = 2_000_000;

/// An HTTP service whose only work is to be called: `POST /effects/{key}` is one effect.
#[derive(Debug)]
pub struct EffectRecorder {
    server: Server,
    state: Arc<Shared>,
}

/// One effect, in the order of arrival.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Effect {
    pub key: String,
    /// From the header `x-epoch`: which ownership of the session the caller acted under.
    pub epoch: Option<u64>,
    pub body: Value,
}

/// How a call is answered. The effect is counted first, in every case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    pub status: u16,
    pub delay: Duration,
    /// Close the connection instead of answering: the effect happened and the caller cannot know.
    pub hang_up: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Self { status: 200, delay: Duration::ZERO, hang_up: false }
    }
}

#[derive(Debug)]
struct Shared {
    ledger: Mutex<Ledger>,
    total: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct Ledger {
    order: Vec<Effect>,
    counts: BTreeMap<String, usize>,
    next: VecDeque<Plan>,
    default: Plan,
}

impl EffectRecorder {
    pub async fn start() -> io::Result<Self> {
        let state = Arc::new(Shared { ledger: Mutex::default(), total: watch::Sender::new(0) });
        let router = Router::new()
            .route("/effects/{key}", any(effect))
            .route("/effects", get(list))
            .layer(DefaultBodyLimit::max(MAX_BODY))
            .with_state(Arc::clone(&state));
        Ok(Self { server: Server::start(router).await?, state })
    }

    /// The address, such as `http://127.0.0.1:41234`.
    pub fn url(&self) -> String {
        self.server.url()
    }

    /// How often the effect `key` happened.
    pub fn count(&self, key: &str) -> usize {
        self.state.ledger().counts.get(key).copied().unwrap_or_default()
    }

    /// Every effect, oldest first.
    pub fn all(&self) -> Vec<Effect> {
        self.state.ledger().order.clone()
    }

    /// The keys whose effect happened more than once, with how often: empty is what "exactly once" means.
    pub fn repeated(&self) -> Vec<(String, usize)> {
        let ledger = self.state.ledger();
        ledger
            .counts
            .iter()
            .filter(|(_, count)| **count > 1)
            .map(|(key, count)| (key.clone(), *count))
            .collect()
    }

    /// Answers the next unplanned call by `plan`; several of these queue up.
    pub fn plan_next(&self, plan: Plan) {
        self.state.ledger().next.push_back(plan);
    }

    /// Answers every call by `plan` that [`EffectRecorder::plan_next`] says nothing about.
    pub fn plan_always(&self, plan: Plan) {
        self.state.ledger().default = plan;
    }

    /// Waits until at least `total` effects have happened, over all keys. Give it a timeout.
    pub async fn wait_for_effects(&self, total: usize) {
        // The sender lives in `self.state`, so this wait cannot fail.
        let _ = self.state.total.subscribe().wait_for(|seen| *seen >= total).await;
    }
}

impl Shared {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the effect and says how to answer it; `None` when it was not taken.
    fn take(&self, effect: Effect) -> Option<(usize, Plan)> {
        let mut ledger = self.ledger();
        if ledger.order.len() >= MAX_EFFECTS || effect.key.len() > MAX_KEY {
            return None;
        }
        let count = ledger.counts.entry(effect.key.clone()).or_default();
        *count += 1;
        let count = *count;
        ledger.order.push(effect);
        self.total.send_replace(ledger.order.len());
        let default = ledger.default;
        Some((count, ledger.next.pop_front().unwrap_or(default)))
    }
}

async fn effect(
    State(state): State<Arc<Shared>>,
    Path(key): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let Some(body) = (if body.is_empty() { Some(Value::Null) } else { serde_json::from_slice(&body).ok() })
    else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let epoch = headers.get("x-epoch").and_then(|value| value.to_str().ok()?.parse().ok());
    let Some((count, plan)) = state.take(Effect { key: key.clone(), epoch, body }) else {
        return StatusCode::INSUFFICIENT_STORAGE.into_response();
    };
    tokio::time::sleep(plan.delay).await;
    let status = StatusCode::from_u16(plan.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = (status, Json(json!({ "key": key, "count": count }))).into_response();
    if plan.hang_up {
        response.extensions_mut().insert(HangUp);
    }
    response
}

async fn list(State(state): State<Arc<Shared>>) -> Json<Value> {
    let ledger = state.ledger();
    Json(json!({ "counts": ledger.counts, "order": ledger.order }))
}
