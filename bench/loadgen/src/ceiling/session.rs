//! Sessions: created by a request and live while at least one socket is open; all sockets get the same bytes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Empty;
use hyper::Request;
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::json;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::task::AbortHandle;

use super::database::Row;
use super::event;
use super::router::{Reply, error, reply};
use super::{App, LOCK};
use crate::Result;
use crate::clock::now_ns;

/// A socket with a full queue that has accepted no byte for this long is dropped.
const SLOW_LIMIT: Duration = Duration::from_secs(1);

pub struct Session {
    pub id: String,
    pub org: String,
    pub config: String,
    pub live: tokio::sync::Mutex<Option<Live>>,
    pub clients: Mutex<Vec<Client>>,
    /// Answers to tool calls, by tool and call id.
    pub answers: Mutex<HashMap<String, Bytes>>,
}

/// The agent's session and the task that reads its events; exists while at least one socket is open.
pub struct Live {
    pub agent_session: String,
    pub pump: AbortHandle,
}

pub struct Client {
    pub id: u64,
    pub sender: mpsc::Sender<Bytes>,
    pub task: Option<AbortHandle>,
    /// When the socket last accepted bytes.
    pub last_write_at: Arc<AtomicU64>,
}

impl Session {
    fn new(id: String, org: String, config: String) -> Self {
        let (live, clients, answers) = Default::default();
        Self { id, org, config, live, clients, answers }
    }

    /// Sends the same bytes to every socket. A socket with a full queue slows the stream down while it still
    /// accepts bytes; after SLOW_LIMIT without progress it is dropped.
    pub async fn broadcast(&self, blob: Bytes) {
        let mut full = Vec::new();
        for client in self.clients.lock().expect(LOCK).iter() {
            if let Err(TrySendError::Full(_)) = client.sender.try_send(blob.clone()) {
                full.push((client.id, client.sender.clone(), client.last_write_at.clone()));
            }
        }
        for (id, sender, last_write_at) in full {
            loop {
                let idle =
                    Duration::from_nanos(now_ns().saturating_sub(last_write_at.load(Ordering::Relaxed)));
                let Some(left) = SLOW_LIMIT.checked_sub(idle) else {
                    break self.drop_client(id);
                };
                if tokio::time::timeout(left, sender.send(blob.clone())).await.is_ok() {
                    break;
                }
            }
        }
    }

    /// Lets `broadcast` abort the socket's task.
    pub fn set_task(&self, id: u64, task: AbortHandle) {
        let mut clients = self.clients.lock().expect(LOCK);
        if let Some(client) = clients.iter_mut().find(|client| client.id == id) {
            client.task = Some(task);
        }
    }

    fn drop_client(&self, id: u64) {
        let mut clients = self.clients.lock().expect(LOCK);
        let position = clients.iter().position(|client| client.id == id);
        if let Some(task) = position.and_then(|position| clients.swap_remove(position).task) {
            task.abort();
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NewSession {
    organization_id: Option<String>,
    configuration_id: String,
    session_type: String,
}

impl App {
    pub async fn create_session(&self, token: &str, body: &[u8]) -> Reply {
        let Some(claims) = self.keys.jwt(token) else {
            return error(401, "Invalid token");
        };
        let Ok(new) = serde_json::from_slice::<NewSession>(body) else {
            return error(400, "Invalid body");
        };
        let Some(org) = claims.org.or(new.organization_id) else {
            return error(401, "Organization required");
        };
        let (id, config) = (uuid::Uuid::new_v4().to_string(), new.configuration_id);
        let row =
            Row::Session { id: id.clone(), org: org.clone(), config: config.clone(), kind: new.session_type };
        if !self.database.put(row).await {
            return error(500, "Internal server error");
        }
        let answer = json!({"sessionId": id, "configurationId": config, "status": "pending",
            "gatewayUrl": self.gateway_url, "hasSnapshot": false, "isNewConfiguration": false});
        let session = Arc::new(Session::new(id.clone(), org, config));
        self.sessions.write().expect(LOCK).insert(id, session);
        reply(201, &answer)
    }

    /// Creates the agent's session and subscribes to its events.
    pub async fn go_live(&self, session: &Arc<Session>) -> Result<Live> {
        let opened = self.call_agent(&format!("/s/{}/session", session.id), json!({})).await?;
        let stream = TcpStream::connect(&self.agent_addr).await?;
        stream.set_nodelay(true)?;
        let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let request = Request::get(format!("/s/{}/event", session.id))
            .header("host", &self.agent_addr)
            .header("accept", "text/event-stream")
            .body(Empty::<Bytes>::new())?;
        let answer = sender.send_request(request).await?;
        let pump = tokio::spawn(event::pump(session.clone(), answer.into_body())).abort_handle();
        let agent_session = opened["id"].as_str().ok_or("agent: no session id")?.to_owned();
        Ok(Live { agent_session, pump })
    }
}
