//! A scripted gateway: each connection gets the next list of frames.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use client::{Client, Event, Stream, Watch};
use proto::SessionId;
use serde_json::{Value, json};

/// How the gateway treats one connection.
#[derive(Clone)]
pub(crate) enum Behavior {
    /// Sends these frames, then drops the connection.
    Break(Vec<Value>),
    /// Sends these frames, then closes the connection with a code.
    Close(Vec<Value>, u16),
    /// Sends these frames, then keeps the connection open.
    Stay(Vec<Value>),
    /// Rejects the connection with this status and body.
    Refuse(u16, Value),
}

#[derive(Clone, Default)]
struct Script {
    behaviors: Arc<Mutex<VecDeque<Behavior>>>,
    /// The requests: method, path with query, token and body.
    requests: Arc<Mutex<Vec<String>>>,
}

pub(crate) struct Gateway {
    pub(crate) client: Client,
    script: Script,
}

pub(crate) fn session() -> SessionId {
    "0190f5d2-7c3e-7a11-8000-5b1f6c2d9e40".parse().unwrap()
}

impl Gateway {
    pub(crate) async fn start(behaviors: Vec<Behavior>) -> Self {
        let script = Script { behaviors: Arc::new(Mutex::new(behaviors.into())), ..Script::default() };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().fallback(answer).with_state(script.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        let url = format!("http://{address}/some/prefix/").parse().unwrap();
        Self { client: Client::new(url, &"secret-token".into()).unwrap(), script }
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        self.script.requests.lock().unwrap().clone()
    }

    pub(crate) async fn watch(&self) -> Stream {
        self.client.connect(session(), Watch::default()).await.unwrap()
    }
}

async fn answer(State(script): State<Script>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let upgrades = parts.headers.contains_key(header::UPGRADE);
    let token = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or("-");
    let key = parts.headers.get("idempotency-key").and_then(|value| value.to_str().ok()).unwrap_or("-");
    let line = format!("{} {} {token} {key}", parts.method, parts.uri);
    let behavior = script
        .behaviors
        .lock()
        .unwrap()
        .pop_front()
        .unwrap_or_else(|| panic!("the script has no entry left for {line}"));
    if let Behavior::Refuse(status, body) = behavior {
        script.requests.lock().unwrap().push(line);
        return (StatusCode::from_u16(status).unwrap(), axum::Json(body)).into_response();
    }
    if !upgrades {
        let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
        script.requests.lock().unwrap().push(format!("{line} {}", String::from_utf8(body.to_vec()).unwrap()));
        let Behavior::Break(mut bodies) = behavior else { panic!("the script has no body for {line}") };
        return axum::Json(bodies.remove(0)).into_response();
    }
    script.requests.lock().unwrap().push(line);
    let mut parts = parts;
    let upgrade =
        <WebSocketUpgrade as axum::extract::FromRequestParts<()>>::from_request_parts(&mut parts, &());
    upgrade.await.unwrap().on_upgrade(|socket| play(socket, behavior))
}

async fn play(mut socket: WebSocket, behavior: Behavior) {
    let (Behavior::Break(frames) | Behavior::Close(frames, _) | Behavior::Stay(frames)) = &behavior else {
        return;
    };
    for frame in frames {
        socket.send(Message::Text(frame.to_string().into())).await.unwrap();
    }
    match behavior {
        Behavior::Close(_, code) => {
            let _ =
                socket.send(Message::Close(Some(CloseFrame { code, reason: "slow consumer".into() }))).await;
        }
        Behavior::Stay(_) => while socket.recv().await.is_some() {},
        Behavior::Break(_) | Behavior::Refuse(..) => {}
    }
}

pub(crate) fn status_frame() -> Value {
    json!({"type": "status", "payload": {"status": "resuming"}})
}

pub(crate) fn init(seq: i64) -> Value {
    json!({"type": "init", "payload": {"messages": []}, "seq": seq})
}

pub(crate) fn queue(seq: i64) -> Value {
    json!({"type": "queue", "payload": {"length": seq}, "seq": seq})
}

pub(crate) fn gap(from: i64, to: i64) -> Value {
    json!({"type": "gap", "payload": {"from": from, "to": to}})
}

/// The events of a stream in short form: a frame's type and sequence number, or a change of the connection.
pub(crate) async fn collect_events(stream: &mut Stream, until: &str) -> Vec<String> {
    let mut all = Vec::new();
    while all.last().is_none_or(|last| last != until) {
        let event = stream.next().await.unwrap_or_else(|| panic!("the stream ended after {all:?}"));
        all.push(match event.unwrap_or_else(|error| panic!("{error} after {all:?}")) {
            Event::Frame(frame) => {
                let value = serde_json::to_value(&*frame).unwrap();
                let seq = frame.seq.map(|seq| format!(" {seq}")).unwrap_or_default();
                format!("{}{seq}", value["type"].as_str().unwrap())
            }
            Event::Unknown(text) => format!("unknown {}", text.len()),
            Event::Disconnected { attempt, pause, .. } => format!("lost {attempt} {}", pause.as_secs()),
            Event::Reconnected => "back".to_owned(),
        });
    }
    all
}
