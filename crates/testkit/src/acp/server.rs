//! Replays the recording to every connection: the recorded answer to each recorded request.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

/// Lines that the client sent start with `>>> `, all others are the agent's.
pub(super) const RECORDING: &str = include_str!("../../fixtures/60_acp_stdio.jsonl");
/// JSON-RPC's code for a method that does not exist.
const METHOD_NOT_FOUND: i32 = -32601;

/// A running agent. Dropping it closes its connections.
#[derive(Debug)]
pub struct AcpServer {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<Value>>>,
    _task: AbortOnDropHandle<()>,
}

impl AcpServer {
    pub async fn start() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let requests = Arc::default();
        let task = AbortOnDropHandle::new(tokio::spawn(accept(listener, Arc::clone(&requests))));
        Ok(Self { address, requests, _task: task })
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<Value> {
        self.requests.lock().clone()
    }

    /// The methods that the recorded client called, in order.
    pub fn recorded_methods() -> Vec<Value> {
        exchanges().into_iter().map(|(request, _)| request["method"].clone()).collect()
    }
}

async fn accept(listener: TcpListener, requests: Arc<Mutex<Vec<Value>>>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.spawn(serve(stream, Arc::clone(&requests)));
    }
}

async fn serve(stream: TcpStream, requests: Arc<Mutex<Vec<Value>>>) -> io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut lines = BufReader::new(reader).lines();
    while let Some(line) = lines.next_line().await? {
        let request: Value = serde_json::from_str(&line)?;
        requests.lock().push(request.clone());
        for answer in answers(&request) {
            writer.write_all(format!("{answer}\n").as_bytes()).await?;
        }
    }
    Ok(())
}

/// The recorded lines after the first request with this method, with the id of this request.
fn answers(request: &Value) -> Vec<Value> {
    let recorded = exchanges().into_iter().find(|(recorded, _)| recorded["method"] == request["method"]);
    let Some((recorded, mut answers)) = recorded else {
        let error = json!({ "code": METHOD_NOT_FOUND, "message": "the recording has no such request" });
        return vec![json!({ "jsonrpc": "2.0", "id": request["id"], "error": error })];
    };
    for answer in answers.iter_mut().filter(|answer| answer["id"] == recorded["id"]) {
        answer["id"] = request["id"].clone();
    }
    answers
}

/// The recorded requests, each with the lines that the agent sent before the next one.
fn exchanges() -> Vec<(Value, Vec<Value>)> {
    let mut exchanges: Vec<(Value, Vec<Value>)> = Vec::new();
    for line in RECORDING.lines() {
        let parse = |text: &str| serde_json::from_str(text).unwrap_or_default();
        match (line.strip_prefix(">>> "), exchanges.last_mut()) {
            (Some(request), _) => exchanges.push((parse(request), Vec::new())),
            (None, Some((_, answers))) => answers.push(parse(line)),
            (None, None) => {}
        }
    }
    exchanges
}
