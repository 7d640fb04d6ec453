//! Counts effects from outside: what arrives here has happened, whatever the caller believes.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use axum::{Json, Router};
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::serve::{HangUp, Server};

/// Maximum length of a key, and of the body of one effect.
const MAX_KEY: usize = 512;
const MAX_BODY: usize = 1024 * 1024;
/// More effects than any test needs; stops a runaway loop.
const MAX_EFFECTS: usize = 2_000_000;

/// An HTTP service that only counts calls: `POST /effects/{key}` is one effect.
#[derive(Debug)]
pub struct EffectRecorder {
    server: Server,
    state: Arc<Shared>,
}

/// One effect. Effects are stored in the order of arrival.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Effect {
    pub key: String,
    /// From the header `x-epoch`: the epoch of session ownership in which the caller acted.
    pub epoch: Option<u64>,
    pub body: Value,
}

/// How a call is answered. The effect is counted first in every case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    pub status: u16,
    pub delay: Duration,
    /// Close the connection instead of answering: the effect has happened, but the caller cannot know.
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
    held: watch::Sender<bool>,
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
        let state = Arc::new(Shared {
            ledger: Mutex::default(),
            total: watch::Sender::new(0),
            held: watch::Sender::new(false),
        });
        let router = Router::new()
            .route("/effects/{key}", any(effect))
            .route("/effects", get(list))
            .layer(DefaultBodyLimit::max(MAX_BODY))
            .with_state(Arc::clone(&state));
        Ok(Self { server: Server::start(router).await?, state })
    }

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

    /// The keys whose effect happened more than once, with their counts. Empty means exactly-once.
    pub fn repeated(&self) -> Vec<(String, usize)> {
        let ledger = self.state.ledger();
        ledger
            .counts
            .iter()
            .filter(|(_, count)| **count > 1)
            .map(|(key, count)| (key.clone(), *count))
            .collect()
    }

    /// Uses `plan` for the next call that has no plan yet; several plans are queued.
    pub fn plan_next(&self, plan: Plan) {
        self.state.ledger().next.push_back(plan);
    }

    /// Uses `plan` for every call without a plan from [`EffectRecorder::plan_next`].
    pub fn plan_always(&self, plan: Plan) {
        self.state.ledger().default = plan;
    }

    /// Answers no call until [`EffectRecorder::release`]. Their effects are counted as they arrive.
    pub fn hold(&self) {
        self.state.held.send_replace(true);
    }

    pub fn release(&self) {
        self.state.held.send_replace(false);
    }

    /// Waits until at least `total` effects have happened, over all keys. Use it with a timeout.
    pub async fn wait_for_effects(&self, total: usize) {
        // The sender lives in `self.state`, so this wait cannot fail.
        let _ = self.state.total.subscribe().wait_for(|seen| *seen >= total).await;
    }
}

impl Shared {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock()
    }

    /// Counts the effect and returns its plan; `None` if it was rejected.
    fn record(&self, effect: Effect) -> Option<(usize, Plan)> {
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
    let Some((count, plan)) = state.record(Effect { key: key.clone(), epoch, body }) else {
        return StatusCode::INSUFFICIENT_STORAGE.into_response();
    };
    tokio::time::sleep(plan.delay).await;
    // The sender lives in `state`, so this wait cannot fail.
    let _ = state.held.subscribe().wait_for(|held| !held).await;
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
