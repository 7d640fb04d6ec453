//! WebSockets to sessions: opening them until the session is running, and parsing the timestamps in their
//! frames.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async_with_config};

use crate::Result;
use crate::clock::now_ns;
use crate::context::{Context, OPENERS};
use crate::latency::Latency;

pub type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

pub struct OpenSocket {
    pub socket: Socket,
    /// The first socket of each session sends the prompt.
    pub first: bool,
}

/// Connects and reads until both `init` and status=running have arrived.
pub async fn open(context: &Context, session: &str, timeout: Duration) -> Result<Socket> {
    let url = format!("ws://{}/proliferate/{session}?token={}", context.common.addr, context.user_token);
    tokio::time::timeout(timeout, connect_until_running(&url)).await?
}

async fn connect_until_running(url: &str) -> Result<Socket> {
    let (mut socket, _) = connect_async_with_config(url, None, true).await?;
    let (mut init, mut running) = (false, false);
    while !(init && running) {
        let Message::Text(text) = socket.next().await.ok_or("ws closed during init")?? else { continue };
        let message: Value = serde_json::from_str(&text)?;
        match message["type"].as_str() {
            Some("init") => init = true,
            Some("status") if message["payload"]["status"] == "running" => running = true,
            Some("error") => return Err(format!("ws error: {text}").into()),
            _ => {}
        }
    }
    Ok(socket)
}

/// Opens `clients` sockets for each session; returns them with their opening times.
pub async fn open_all(
    context: &Arc<Context>,
    sessions: Vec<String>,
    clients: usize,
) -> Result<(Vec<OpenSocket>, Latency)> {
    let next = Arc::new(AtomicUsize::new(0));
    let total = sessions.len() * clients;
    let sessions = Arc::new(sessions);
    let workers: Vec<_> = (0..total.min(OPENERS))
        .map(|_| tokio::spawn(open_some(context.clone(), next.clone(), sessions.clone(), clients)))
        .collect();
    let (mut all, mut latency) = (Vec::new(), Latency::new());
    for worker in workers {
        let (opened, took) = worker.await??;
        all.extend(opened);
        latency.add(&took);
    }
    Ok((all, latency))
}

/// One worker's share of all sockets.
async fn open_some(
    context: Arc<Context>,
    next: Arc<AtomicUsize>,
    sessions: Arc<Vec<String>>,
    clients: usize,
) -> Result<(Vec<OpenSocket>, Latency)> {
    let (mut opened, mut latency) = (Vec::new(), Latency::new());
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let Some(session) = sessions.get(number / clients) else {
            return Ok((opened, latency));
        };
        let started_at = now_ns();
        let socket = open(&context, session, Duration::from_secs(60)).await?;
        latency.record_ns(now_ns() - started_at);
        opened.push(OpenSocket { socket, first: number.is_multiple_of(clients) });
    }
}

/// Extracts `@T<seq>:<ns>;` from a frame without parsing JSON.
pub fn stamp(frame: &[u8]) -> Option<(u64, u64)> {
    let mut at = frame.windows(2).position(|pair| pair == b"@T")? + 2;
    let mut number_until = |end: u8| -> Option<u64> {
        let mut value = 0;
        while at < frame.len() && frame[at] != end {
            let digit = frame[at].wrapping_sub(b'0');
            if digit > 9 {
                return None;
            }
            value = value * 10 + u64::from(digit);
            at += 1;
        }
        at += 1;
        Some(value)
    };
    Some((number_until(b':')?, number_until(b';')?))
}

#[cfg(test)]
mod tests {
    use super::stamp;

    #[test]
    fn stamp_is_parsed_only_if_present() {
        assert_eq!(
            stamp(br#"{"type":"token","payload":{"token":"@T17:123456789;xxx"}}"#),
            Some((17, 123_456_789))
        );
        assert_eq!(stamp(br#"{"type":"message_complete"}"#), None);
        assert_eq!(stamp(b"@T1a:2;"), None);
    }
}
