//! A server that answers every request as a test says, byte for byte.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use url::Url;

/// One request, as the server got it.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Request {
    pub(crate) fn message(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_default()
    }

    pub(crate) fn method(&self) -> String {
        self.message()["method"].as_str().unwrap_or_default().to_owned()
    }

    pub(crate) fn has(&self, header: &str) -> bool {
        self.head.to_ascii_lowercase().contains(&header.to_ascii_lowercase())
    }
}

type Script = Arc<dyn Fn(&Request) -> String + Send + Sync>;

pub(crate) struct Scripted {
    pub(crate) url: Url,
    pub(crate) seen: Arc<Mutex<Vec<Request>>>,
}

impl Scripted {
    pub(crate) async fn start(script: impl Fn(&Request) -> String + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap()).parse().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (script, log): (Script, _) = (Arc::new(script), seen.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream, script.clone(), log.clone()));
            }
        });
        Self { url, seen }
    }

    pub(crate) fn methods(&self) -> Vec<String> {
        self.seen.lock().iter().map(Request::method).filter(|method| !method.is_empty()).collect()
    }
}

async fn answer(mut stream: TcpStream, script: Script, log: Arc<Mutex<Vec<Request>>>) {
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    let request = loop {
        let Ok(count @ 1..) = stream.read(&mut chunk).await else { return };
        bytes.extend_from_slice(&chunk[..count]);
        if let Some(request) = complete(&String::from_utf8_lossy(&bytes)) {
            break request;
        }
    };
    log.lock().push(request.clone());
    let response = script(&request);
    let _ = stream.write_all(response.as_bytes()).await;
    if response.contains("\r\nx-endless: 1") {
        while stream.write_all(b": still here\n").await.is_ok() {}
    }
}

fn complete(text: &str) -> Option<Request> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let length =
        |line: &str| line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse::<usize>().ok();
    let length = head.lines().find_map(length).unwrap_or(0);
    (body.len() >= length).then(|| Request { head: head.to_owned(), body: body.to_owned() })
}

pub(crate) fn http(status: u16, headers: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\nconnection: close\r\n{headers}\r\n{body}")
}

pub(crate) fn json_body(headers: &str, body: &Value) -> String {
    http(200, &format!("content-type: application/json\r\n{headers}"), &body.to_string())
}

/// The answers of an ordinary server of the protocol with sessions, with one tool named `act`.
pub(crate) fn ordinary(request: &Request) -> String {
    let message = request.message();
    let result = |result: Value| json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
    match request.method().as_str() {
        "initialize" => {
            let server = json!({"name": "scripted", "version": "1"});
            let version = "2025-11-25";
            let hello =
                json!({"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server});
            json_body("mcp-session-id: s1\r\n", &result(hello))
        }
        "tools/list" => json_body("", &result(json!({"tools": [act()]}))),
        "tools/call" => json_body("", &result(json!({"content": [{"type": "text", "text": "done"}]}))),
        "server/discover" => http(400, "", "no session"),
        _ => http(202, "", ""),
    }
}

pub(crate) fn act() -> Value {
    json!({"name": "act", "description": "Acts", "inputSchema": {"type": "object"}})
}
