//! Servers on loopback that send a fixed response and record the requests they receive, byte for byte.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

pub(crate) const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

/// A server that handles one request per connection.
pub(crate) struct Origin {
    pub(crate) address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
    _task: AbortOnDropHandle<()>,
}

impl Origin {
    pub(crate) async fn start(ip: IpAddr, answer: impl Into<Vec<u8>>) -> Self {
        let listener = TcpListener::bind((ip, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let (kept, answer) = (Arc::clone(&requests), Arc::<[u8]>::from(answer.into()));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&answer), Arc::clone(&kept)));
            }
        });
        Self { address, requests, _task: AbortOnDropHandle::new(task) }
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// All requests so far, as received.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

async fn serve(mut stream: TcpStream, answer: Arc<[u8]>, requests: Arc<Mutex<Vec<String>>>) {
    let mut request = Vec::new();
    while !is_complete(&request) {
        let mut buffer = [0; 4096];
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(length) => request.extend_from_slice(&buffer[..length]),
        }
    }
    requests.lock().unwrap().push(String::from_utf8_lossy(&request).into_owned());
    let _ = stream.write_all(&answer).await;
    let _ = stream.shutdown().await;
}

fn is_complete(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    if head.contains("Transfer-Encoding: chunked") {
        return body.ends_with("0\r\n\r\n");
    }
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    body.len() >= length.map_or(0, |length| length.parse().unwrap())
}

/// Echoes what it receives, and closes when the other side does.
pub(crate) async fn echo(ip: IpAddr) -> (SocketAddr, AbortOnDropHandle<()>) {
    let listener = TcpListener::bind((ip, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut reader, mut writer) = stream.split();
                let _ = tokio::io::copy(&mut reader, &mut writer).await;
                let _ = writer.shutdown().await;
            });
        }
    });
    (address, AbortOnDropHandle::new(task))
}
