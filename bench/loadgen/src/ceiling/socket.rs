//! One WebSocket of a session, from the upgrade to its end.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::frame::{self, text};
use super::session::{Client, Session};
use super::{App, LOCK};
use crate::Result;
use crate::clock::{now_ns, unix_ms};

/// Maximum number of blobs queued for one socket; a blob contains all frames of one read from the agent.
const QUEUE: usize = 1024;
/// Maximum number of blobs per write.
const MAX_BLOBS_PER_WRITE: usize = 64;

struct Socket {
    app: Arc<App>,
    session: Arc<Session>,
    stream: TcpStream,
    inbox: BytesMut,
    sender: mpsc::Sender<Bytes>,
    last_write_at: Arc<AtomicU64>,
}

/// The connection has ended.
struct ConnectionClosed;

impl App {
    pub async fn serve_socket(self: Arc<Self>, session: Arc<Session>, stream: TcpStream, early: Bytes) {
        let id = self.socket_ids.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = mpsc::channel(QUEUE);
        let last_write_at = Arc::new(AtomicU64::new(now_ns()));
        let client = Client { id, sender: sender.clone(), task: None, last_write_at: last_write_at.clone() };
        if self.join(&session, client).await.is_ok() {
            let inbox = BytesMut::from(&early[..]);
            let socket =
                Socket { app: self.clone(), session: session.clone(), stream, inbox, sender, last_write_at };
            let task = tokio::spawn(socket.run(receiver));
            session.set_task(id, task.abort_handle());
            let _ = task.await; // also ends if broadcast() aborts it
        }
        leave(&session, id).await;
    }

    /// Adds a socket; the first one creates the agent session and subscribes to its events. `init` is sent
    /// first.
    async fn join(&self, session: &Arc<Session>, client: Client) -> Result<()> {
        let mut live = session.live.lock().await;
        if live.is_none() {
            *live = Some(self.go_live(session).await?);
        }
        let _ = client.sender.try_send(text(&status()));
        let _ = client.sender.try_send(text(&init(self, session)));
        session.clients.lock().expect(LOCK).push(client);
        Ok(())
    }
}

async fn leave(session: &Session, id: u64) {
    let mut live = session.live.lock().await;
    let mut clients = session.clients.lock().expect(LOCK);
    clients.retain(|client| client.id != id);
    if clients.is_empty()
        && let Some(live) = live.take()
    {
        live.pump.abort();
    }
}

impl Socket {
    async fn run(mut self, mut receiver: mpsc::Receiver<Bytes>) {
        let mut blobs = Vec::new();
        loop {
            if self.take_frames().await.is_err() {
                return;
            }
            let result = tokio::select! {
                _ = receiver.recv_many(&mut blobs, MAX_BLOBS_PER_WRITE) => self.write(&mut blobs).await,
                readable = self.stream.readable() => readable.map_err(|_| ConnectionClosed).and_then(|()| self.read()),
            };
            if result.is_err() {
                return;
            }
        }
    }

    /// Handles every complete frame that has arrived.
    async fn take_frames(&mut self) -> std::result::Result<(), ConnectionClosed> {
        loop {
            match frame::take(&mut self.inbox) {
                Ok(Some((frame::TEXT, message))) => self.message(&message).await,
                Ok(Some((frame::PING, payload))) => {
                    let mut pong = BytesMut::new();
                    frame::append(&mut pong, frame::PONG, &payload);
                    let _ = self.sender.try_send(pong.freeze());
                }
                Ok(Some((frame::PONG, _))) => {}
                Ok(None) => break,
                Ok(Some(_)) | Err(frame::ProtocolError) => {
                    let _ = self.stream.write_all(&frame::CLOSE).await;
                    return Err(ConnectionClosed);
                }
            }
        }
        if self.inbox.is_empty() {
            self.inbox = BytesMut::new(); // an idle socket holds no buffer
        }
        Ok(())
    }

    async fn write(&mut self, blobs: &mut Vec<Bytes>) -> std::result::Result<(), ConnectionClosed> {
        let mut out = if blobs.len() == 1 { blobs.swap_remove(0) } else { Bytes::from(blobs.concat()) };
        blobs.clear();
        while !out.is_empty() {
            if !matches!(self.stream.write_buf(&mut out).await, Ok(written) if written > 0) {
                return Err(ConnectionClosed);
            }
            self.last_write_at.store(now_ns(), Ordering::Relaxed);
        }
        Ok(())
    }

    fn read(&mut self) -> std::result::Result<(), ConnectionClosed> {
        let mut bytes = [0; 4096];
        match self.stream.try_read(&mut bytes) {
            Ok(length) if length > 0 => self.inbox.extend_from_slice(&bytes[..length]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            _ => return Err(ConnectionClosed),
        }
        Ok(())
    }

    async fn message(&self, message: &[u8]) {
        let Ok(message) = serde_json::from_slice::<Value>(message) else { return };
        match message["type"].as_str() {
            Some("prompt") => self.prompt(message["content"].as_str().unwrap_or("")).await,
            Some("cancel") => {
                let _ = self.call_agent("abort", json!({})).await;
                self.session.broadcast(text(&json!({"type": "message_cancelled", "payload": {}}))).await;
            }
            Some("ping") => self.send(&json!({"type": "pong"})),
            Some("get_status") => self.send(&status()),
            Some("get_messages") => self.send(&init(&self.app, &self.session)),
            _ => {}
        }
    }

    async fn prompt(&self, content: &str) {
        let parts = json!([{"type": "text", "text": content}]);
        let message = json!({"type": "message", "payload": {"id": uuid::Uuid::new_v4().to_string(),
            "role": "user", "content": content, "isComplete": true, "createdAt": unix_ms(), "source": "web",
            "parts": parts}});
        self.session.broadcast(text(&message)).await;
        if let Err(error) = self.call_agent("prompt_async", json!({"parts": parts})).await {
            self.send(&json!({"type": "error", "payload": {"message": error.to_string()}}));
        }
    }

    /// Sends to this socket only.
    fn send(&self, message: &Value) {
        let _ = self.sender.try_send(text(message));
    }

    async fn call_agent(&self, verb: &str, body: Value) -> Result<Value> {
        let live = self.session.live.lock().await;
        let agent_session = live.as_ref().map(|live| live.agent_session.clone()).unwrap_or_default();
        drop(live);
        let path = format!("/s/{}/session/{agent_session}/{verb}", self.session.id);
        self.app.call_agent(&path, body).await
    }
}

fn status() -> Value {
    json!({"type": "status", "payload": {"status": "running"}})
}

fn init(app: &App, session: &Session) -> Value {
    let preview = format!("http://{}/preview/{}", app.agent_addr, session.id);
    json!({"type": "init", "payload": {"messages": [], "config": {"previewTunnelUrl": preview}}})
}
