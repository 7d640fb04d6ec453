//! A bare server that implements the gateway's wire protocol with the minimum of work: check the token,
//! parse, make the row durable, answer; translate each agent event once and send the same bytes to every
//! socket. It has no policy, limits, audit or recovery. It is the baseline that other implementations are
//! compared with, not a gateway.

mod action;
mod database;
mod event;
mod frame;
mod keys;
mod postgres;
mod router;
mod session;
mod socket;
mod sqlite;
mod tool;

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, RwLock};

use bytes::Bytes;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::Result;
use crate::args::Common;
use crate::http::Connection;
use crate::tokens::service_jwt;
use database::Database;
use keys::Keys;
use session::Session;

/// Kernel send buffer of a socket; limits what a stalled reader holds outside this process.
const SEND_BUFFER: u32 = 256 << 10;
const BACKLOG: u32 = 1024;
/// The `expect` message of locks: after a panic elsewhere, every figure would be worthless.
const LOCK: &str = "no holder of this lock panics";

#[derive(clap::Args)]
pub struct Options {
    #[arg(long, default_value = "127.0.0.1:58810")]
    listen: String,
    /// Address of the fake agent and MCP server, host:port
    #[arg(long, default_value = "127.0.0.1:58800")]
    agent: String,
    /// SQLite file (WAL, synchronous=FULL), or postgres://… (fsync and synchronous_commit on)
    #[arg(long, default_value = "ceiling.db")]
    db: String,
}

struct App {
    database: Database,
    keys: Keys,
    sessions: RwLock<HashMap<String, Arc<Session>>>,
    /// Idle keep-alive connections to the agent host.
    idle: Mutex<Vec<Connection>>,
    agent_addr: String,
    service_token: String,
    gateway_url: String,
    integration: String,
    catalogue: Bytes,
    socket_ids: AtomicU64,
}

impl App {
    async fn open(options: &Options, common: &Common) -> Result<Self> {
        let integration = format!("connector:{}", common.connector);
        Ok(Self {
            database: Database::open(&options.db).await?,
            keys: Keys::new(&common.jwt_secret, &common.service_secret),
            sessions: RwLock::default(),
            idle: Mutex::default(),
            agent_addr: options.agent.clone(),
            service_token: service_jwt("ceiling", &common.service_secret),
            gateway_url: format!("http://{}", options.listen),
            catalogue: action::catalogue(&integration),
            integration,
            socket_ids: AtomicU64::new(1),
        })
    }

    fn session(&self, id: &str) -> Option<Arc<Session>> {
        self.sessions.read().expect(LOCK).get(id).cloned()
    }

    /// One call to the agent host over a keep-alive connection.
    async fn call_agent(&self, path: &str, body: Value) -> Result<Value> {
        let idle = self.idle.lock().expect(LOCK).pop();
        let mut connection = idle.unwrap_or_else(|| Connection::new(&self.agent_addr));
        let (code, answer) =
            connection.send("POST", path, &self.service_token, Some(body.to_string())).await?;
        self.idle.lock().expect(LOCK).push(connection);
        match code {
            200 => Ok(serde_json::from_slice(&answer)?),
            204 => Ok(Value::Null),
            code => Err(format!("agent: {code}").into()),
        }
    }
}

pub async fn serve(options: Options, common: &Common) -> Result<()> {
    let app = Arc::new(App::open(&options, common).await?);
    let listener = listen(&options.listen)?;
    eprintln!("ceiling on http://{}", options.listen);
    loop {
        let (stream, _) = listener.accept().await?;
        let _ = stream.set_nodelay(true);
        tokio::spawn(serve_connection(app.clone(), stream));
    }
}

fn listen(address: &str) -> Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.set_send_buffer_size(SEND_BUFFER)?; // inherited by every accepted socket
    socket.bind(address.parse()?)?;
    Ok(socket.listen(BACKLOG)?)
}

async fn serve_connection(app: Arc<App>, stream: TcpStream) {
    let service = service_fn(move |request| {
        let app = app.clone();
        async move { Ok::<_, Infallible>(app.handle(request).await) }
    });
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).with_upgrades().await;
}
