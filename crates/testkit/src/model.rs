//! Serves the scripted model on a port and records every request.

use std::io;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use model::{CONVERSATION_HEADER, Call, Frame, MAX_BODY, Model, Reply, Script};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;

use crate::serve::Server;

#[derive(Debug)]
pub struct ScriptedModel {
    server: Server,
    state: Arc<Shared>,
}

/// One request as the model received it.
#[derive(Debug, Clone)]
pub struct ModelRequest {
    pub method: String,
    /// The path, including the query.
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl ModelRequest {
    /// The body as JSON, or `null` if it is not JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

#[derive(Debug)]
struct Shared {
    model: Mutex<Arc<Model>>,
    requests: Mutex<Vec<ModelRequest>>,
    count: watch::Sender<usize>,
}

impl ScriptedModel {
    pub async fn start(script: Script) -> io::Result<Self> {
        let state = Arc::new(Shared {
            model: Mutex::new(Arc::new(Model::new(script))),
            requests: Mutex::default(),
            count: watch::Sender::new(0),
        });
        let router = Router::new().fallback(answer).with_state(Arc::clone(&state));
        Ok(Self { server: Server::start(router).await?, state })
    }

    /// The base URL without `/v1`, such as `http://127.0.0.1:41234`.
    pub fn url(&self) -> String {
        self.server.url()
    }

    /// Replaces the script, for answers that contain what is known only now.
    pub fn set_script(&self, script: Script) {
        *self.state.model.lock() = Arc::new(Model::new(script));
    }

    /// All requests so far, oldest first.
    pub fn requests(&self) -> Vec<ModelRequest> {
        self.state.requests.lock().clone()
    }

    /// Waits until at least `count` requests were received. Use it with a timeout.
    pub async fn wait_for_requests(&self, count: usize) {
        // The sender lives in `self.state`, so this wait cannot fail.
        let _ = self.state.count.subscribe().wait_for(|seen| *seen >= count).await;
    }
}

async fn answer(State(state): State<Arc<Shared>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    // Reads one byte more than allowed, so that the model itself can reject a body that is too long.
    let Ok(body) = to_bytes(body, MAX_BODY + 1).await else {
        return plain(StatusCode::PAYLOAD_TOO_LARGE);
    };
    record(&state, &parts, &body);
    let path = parts.uri.path();
    let conversation =
        parts.headers.get(CONVERSATION_HEADER).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let call = Call { method: parts.method.as_str(), path, conversation, body: &body };
    let model = Arc::clone(&state.model.lock());
    let reply = model.answer(&call);
    tokio::time::sleep(reply.delay).await;
    serve(reply)
}

fn record(state: &Shared, parts: &Parts, body: &Bytes) {
    let recorded = ModelRequest {
        method: parts.method.to_string(),
        path: parts.uri.to_string(),
        headers: parts.headers.clone(),
        body: body.clone(),
    };
    let mut requests = state.requests.lock();
    requests.push(recorded);
    state.count.send_replace(requests.len());
}

fn serve(reply: Reply) -> Response {
    let mut response = Response::builder().status(reply.status);
    for (name, value) in reply.headers {
        response = response.header(name, value);
    }
    let frames = stream::unfold(reply.frames.into_iter(), |mut frames| async move {
        Some((send(frames.next()?).await, frames))
    });
    response.body(Body::from_stream(frames)).unwrap_or_else(|_| plain(StatusCode::INTERNAL_SERVER_ERROR))
}

async fn send(frame: Frame) -> io::Result<Vec<u8>> {
    match frame {
        Frame::Send { delay, bytes } => {
            tokio::time::sleep(delay).await;
            Ok(bytes)
        }
        Frame::Cut => {
            // The server flushes its buffer when the body is pending for a moment.
            tokio::task::yield_now().await;
            Err(io::ErrorKind::ConnectionAborted.into())
        }
    }
}

fn plain(status: StatusCode) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}
