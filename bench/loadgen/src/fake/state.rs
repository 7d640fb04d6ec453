//! The state of the fake agent: sandboxes, their sessions, and the listeners to their events.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc;

#[derive(Default)]
pub struct Sandbox {
    pub sessions: Vec<String>,
    pub listeners: Vec<mpsc::Sender<Bytes>>,
    /// Counts prompts and aborts: a turn that finds it changed was superseded.
    pub generation: u64,
}

pub struct State {
    pub heartbeat: Duration,
    /// Whether text is sent as `message.part.delta` (OpenCode since 1.18) or inside `message.part.updated`.
    pub delta_events: bool,
    sandboxes: Mutex<HashMap<String, Sandbox>>,
    ids: AtomicU64,
    pub emitted: AtomicU64,
    pub streams_open: AtomicU64,
}

impl State {
    pub fn new(heartbeat: Duration, delta_events: bool) -> Self {
        Self {
            heartbeat,
            delta_events,
            sandboxes: Mutex::default(),
            ids: AtomicU64::new(0),
            emitted: AtomicU64::new(0),
            streams_open: AtomicU64::new(0),
        }
    }

    pub fn id(&self, prefix: &str) -> String {
        format!("{prefix}_{:012x}", self.ids.fetch_add(1, Ordering::Relaxed) + 1)
    }

    pub fn sandboxes(&self) -> MutexGuard<'_, HashMap<String, Sandbox>> {
        self.sandboxes.lock().expect("no holder of this lock panics")
    }

    /// Calls `work` with a sandbox, which is created if necessary.
    pub fn with_sandbox<T>(&self, key: &str, work: impl FnOnce(&mut Sandbox) -> T) -> T {
        work(self.sandboxes().entry(key.to_owned()).or_default())
    }

    pub fn listeners(&self, key: &str) -> Vec<mpsc::Sender<Bytes>> {
        self.with_sandbox(key, |sandbox| {
            sandbox.listeners.retain(|listener| !listener.is_closed());
            sandbox.listeners.clone()
        })
    }

    pub async fn publish(&self, key: &str, kind: &str, properties: Value) {
        let chunk = event(kind, &properties);
        for listener in self.listeners(key) {
            let _ = listener.send(chunk.clone()).await;
        }
    }
}

/// Formats one server-sent event.
pub fn event(kind: &str, properties: &Value) -> Bytes {
    Bytes::from(format!("data: {}\n\n", json!({"type": kind, "properties": properties})))
}
