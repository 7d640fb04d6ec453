//! The HTTP routes of the fake agent.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures_util::StreamExt;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::{Method, Request, Response};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::mcp;
use super::state::{State, event};
use super::turn::Turn;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Maximum number of chunks queued for one listener.
const QUEUE: usize = 256;

pub async fn handle(state: Arc<State>, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let path = request.uri().path().to_owned();
    let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (get, post) = (request.method() == Method::GET, request.method() == Method::POST);
    Ok(match segments.as_slice() {
        ["health"] => reply(200, &json!({"ok": true})),
        ["stats"] => reply(200, &stats(&state)),
        ["mcp"] if post => match mcp::answer(&json_body(request).await) {
            Some(answer) => reply(200, &answer),
            None => empty(202),
        },
        ["mcp"] => empty(405),
        ["s", key, "event"] if get => events(state, key),
        ["s", key, "session"] if post => {
            let id = state.id("ses");
            state.with_sandbox(key, |sandbox| sandbox.sessions.push(id.clone()));
            reply(200, &session(&id))
        }
        ["s", key, "session"] if get => {
            let sandboxes = state.sandboxes();
            let ids = sandboxes.get(*key).map(|sandbox| sandbox.sessions.as_slice()).unwrap_or_default();
            reply(200, &ids.iter().map(|id| session(id)).collect())
        }
        ["s", _, "session", _, "message"] if get => reply(200, &json!([])),
        ["s", key, "session", session, "prompt_async"] if post => {
            prompt(state, key, session, &json_body(request).await);
            empty(204)
        }
        ["s", key, "session", _, "abort"] if post => {
            if let Some(sandbox) = state.sandboxes().get_mut(*key) {
                sandbox.generation += 1;
            }
            reply(200, &json!(true))
        }
        ["s", _, "session", "status"] if get => reply(200, &json!({})),
        ["s", _, "global", "health"] if get => reply(200, &json!({"healthy": true, "version": "1.18.33"})),
        ["s", _, "experimental", "tool", "ids"] if get => reply(200, &json!([])),
        ["s", _, "session", session] if get => reply(200, &json!({"id": session})),
        _ => reply(404, &json!({"error": "not found", "path": path})),
    })
}

fn stats(state: &State) -> Value {
    json!({"emitted": state.emitted.load(Ordering::Relaxed),
        "sse_open": state.streams_open.load(Ordering::Relaxed), "sandboxes": state.sandboxes().len()})
}

fn session(id: &str) -> Value {
    json!({"id": id, "title": "fake", "time": {"created": 1, "updated": 1}})
}

/// An event stream with heartbeats, until the listener disconnects.
fn events(state: Arc<State>, key: &str) -> Response<Body> {
    let (sender, receiver) = mpsc::channel::<Bytes>(QUEUE);
    let _ = sender.try_send(event("server.connected", &json!({})));
    state.with_sandbox(key, |sandbox| sandbox.listeners.push(sender.clone()));
    state.streams_open.fetch_add(1, Ordering::Relaxed);
    tokio::spawn(async move {
        let beat = event("server.heartbeat", &json!({}));
        loop {
            tokio::select! {
                () = sender.closed() => break,
                () = tokio::time::sleep(state.heartbeat) => { let _ = sender.send(beat.clone()).await; }
            }
        }
        state.streams_open.fetch_sub(1, Ordering::Relaxed);
    });
    let chunks = futures_util::stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|chunk| (chunk, receiver))
    });
    let frames = chunks.map(|chunk| Ok::<_, Infallible>(Frame::data(chunk)));
    Response::builder()
        .header("content-type", "text/event-stream")
        .header("cache-control", "no-cache")
        .body(BodyExt::boxed_unsync(StreamBody::new(frames)))
        .expect("the headers are valid")
}

fn prompt(state: Arc<State>, key: &str, session: &str, body: &Value) {
    let parts = body["parts"].as_array().into_iter().flatten();
    let text = parts.filter_map(|part| part["text"].as_str()).next().unwrap_or("").to_owned();
    let message_id = body["messageID"].as_str().map(str::to_owned);
    let generation = state.with_sandbox(key, |sandbox| {
        sandbox.generation += 1;
        sandbox.generation
    });
    tokio::spawn(Turn::new(state, key.to_owned(), session.to_owned(), generation, message_id, text).run());
}

async fn json_body(request: Request<Incoming>) -> Value {
    let bytes = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    serde_json::from_slice(&bytes).unwrap_or(Value::Null)
}

fn reply(code: u16, body: &Value) -> Response<Body> {
    Response::builder()
        .status(code)
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body.to_string())).boxed_unsync())
        .expect("the status and the header are valid")
}

fn empty(code: u16) -> Response<Body> {
    Response::builder().status(code).body(Full::default().boxed_unsync()).expect("the status is valid")
}
