//! Stands in for a vendor's API: records every request exactly as it arrived, and gives the answers that a test queued.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Method, Uri};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::serve::{HangUp, Server};

/// A request as it arrived.
#[derive(Clone, Debug, PartialEq)]
pub struct VendorRequest {
    pub method: String,
    /// Path and query, as sent.
    pub path: String,
    pub headers: HeaderMap,
    /// The JSON of the body; null if it has none.
    pub body: Value,
}

/// An answer of the vendor.
#[derive(Clone, Debug)]
pub struct VendorAnswer {
    pub status: u16,
    pub headers: Vec<(&'static str, &'static str)>,
    pub body: Value,
    /// Close the connection after the request has arrived, without an answer.
    pub hang_up: bool,
}

impl VendorAnswer {
    pub fn json(status: u16, body: Value) -> Self {
        Self { status, headers: Vec::new(), body, hang_up: false }
    }
}

/// The vendor's server. Without a queued answer it says `200 {}`.
#[derive(Debug)]
pub struct Vendor {
    server: Server,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    requests: Mutex<Vec<VendorRequest>>,
    answers: Mutex<VecDeque<VendorAnswer>>,
}

impl Vendor {
    pub async fn start() -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let router = Router::new().fallback(record).with_state(shared.clone());
        Ok(Self { server: Server::start(router).await?, shared })
    }

    pub fn url(&self) -> String {
        self.server.url()
    }

    /// Queues the answers to the next requests.
    pub fn answer(&self, answers: impl IntoIterator<Item = VendorAnswer>) {
        self.shared.answers.lock().extend(answers);
    }

    /// Returns the requests that arrived since the last call.
    pub fn take(&self) -> Vec<VendorRequest> {
        std::mem::take(&mut *self.shared.requests.lock())
    }
}

async fn record(
    State(shared): State<Arc<Shared>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    shared.requests.lock().push(VendorRequest { method: method.to_string(), path, headers, body });
    let answer = shared.answers.lock().pop_front().unwrap_or_else(|| VendorAnswer::json(200, json!({})));
    let mut response = Response::builder().status(answer.status);
    for (name, value) in answer.headers {
        response = response.header(name, value);
    }
    let response = response.body(Body::from(answer.body.to_string()));
    let mut response = response.unwrap_or_else(|error| error.to_string().into_response());
    if answer.hang_up {
        response.extensions_mut().insert(HangUp);
    }
    response
}
