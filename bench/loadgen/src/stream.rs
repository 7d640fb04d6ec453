//! The command that streams deltas through sessions and measures their latency.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::Result;
use crate::clock::{self, now_ns, secs_since};
use crate::context::Context;
use crate::latency::Latency;
use crate::sockets::{OpenSocket, open_all, stamp};

#[derive(clap::Args)]
pub struct Options {
    #[arg(long, default_value_t = 1)]
    sessions: usize,
    #[arg(long, default_value_t = 1)]
    clients: usize,
    #[arg(long, default_value_t = 100.0)]
    rate: f64,
    #[arg(long, default_value_t = 10.0)]
    secs: f64,
    #[arg(long, default_value_t = 0)]
    pad: usize,
    /// 0 = part.text stays empty; K = part.text accumulates, with a new part every K deltas
    #[arg(long, default_value_t = 0)]
    cum: usize,
    /// Give up this many seconds after the scheduled end
    #[arg(long, default_value_t = 30.0)]
    grace: f64,
    #[arg(long, default_value_t = 1)]
    repeat: usize,
}

/// The scheduled end, and when a reader gives up.
#[derive(Clone, Copy)]
struct Window {
    end: u64,
    deadline: u64,
}

struct DeliveryStats {
    deltas: u64,
    last: u64,
    in_window: u64,
    mismatches: u64,
    complete: usize,
    latency: Latency,
}

impl DeliveryStats {
    fn new() -> Self {
        Self { deltas: 0, last: 0, in_window: 0, mismatches: 0, complete: 0, latency: Latency::new() }
    }

    fn delta(&mut self, seq: u64, sent_at: u64, end: u64) {
        let now = now_ns();
        self.mismatches += u64::from(seq != self.deltas);
        self.deltas += 1;
        self.last = now;
        self.in_window += u64::from(now <= end);
        self.latency.record_ns(now.saturating_sub(sent_at));
    }

    fn add(&mut self, other: &Self) {
        self.deltas += other.deltas;
        self.last = self.last.max(other.last);
        self.in_window += other.in_window;
        self.mismatches += other.mismatches;
        self.complete += other.complete;
        self.latency.add(&other.latency);
    }
}

pub async fn run(context: &Arc<Context>, options: &Options) -> Result<()> {
    for _ in 0..options.repeat {
        let result = run_once(context, options).await?;
        context.emit(result, "stream");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Ok(())
}

async fn run_once(context: &Arc<Context>, options: &Options) -> Result<Value> {
    let Options { sessions, clients, rate, secs, pad, cum, grace, .. } = *options;
    let ids = context.create_sessions(sessions, "coding").await?;
    let opening = now_ns();
    let (sockets, open) = open_all(context, ids, clients).await?;
    let open_s = secs_since(opening);
    tokio::time::sleep(Duration::from_millis(500)).await;
    context.wait_quiet().await;
    // All sessions start at the same time, late enough for all prompts to arrive.
    let start = now_ns() + 1_000_000_000 + sessions as u64 * 6_000_000;
    let end = start + clock::ns(secs);
    let window = Window { end, deadline: end + clock::ns(grace) };
    let prompt = format!("loadgen rate={rate} secs={secs} pad={pad} cum={cum} start={start}");
    let readers: Vec<_> =
        sockets.into_iter().map(|opened| tokio::spawn(read(opened, prompt.clone(), window))).collect();
    let conns = readers.len();
    clock::sleep_until(start).await;
    let usage = context.begin_usage();
    let mut all = DeliveryStats::new();
    for reader in readers {
        all.add(&reader.await?);
    }
    let usage = usage.report();
    let span = all.last.saturating_sub(start) as f64 / 1e9;
    let sockets = (sessions * clients) as f64;
    let expected = if rate > 0.0 { (rate * secs) as u64 * (sessions * clients) as u64 } else { 0 };
    let in_window_pct = if expected > 0 { all.in_window as f64 * 100.0 / expected as f64 } else { 0.0 };
    Ok(json!({"sessions": sessions, "clients": clients, "rate": rate, "secs": secs, "cum": cum, "pad": pad,
        "conns": conns, "open_s": open_s, "open": open.summary(), "offered_per_s": rate * sockets,
        "expected": expected, "delivered": all.deltas, "delivered_in_window_pct": in_window_pct,
        "delivered_per_s": (all.deltas as f64 / span).round(),
        "drain_s": all.last.saturating_sub(end) as f64 / 1e9, "complete": all.complete,
        "seq_mismatch": all.mismatches, "lat": all.latency.summary(), "usage": usage}))
}

async fn read(opened: OpenSocket, prompt: String, window: Window) -> DeliveryStats {
    let mut socket = opened.socket;
    if opened.first {
        let prompt = json!({"type": "prompt", "content": prompt, "userId": "x"}).to_string();
        // If the prompt cannot be sent, the socket delivers nothing, which the result shows.
        let _ = socket.send(Message::Text(prompt)).await;
    }
    let mut received = DeliveryStats::new();
    // A timeout of zero still returns available messages, so without this check a flood would be read
    // forever.
    while now_ns() < window.deadline {
        let left = window.deadline.saturating_sub(now_ns());
        let next = tokio::time::timeout(Duration::from_nanos(left), socket.next());
        let Ok(Some(Ok(message))) = next.await else { break };
        let Message::Text(text) = message else { continue };
        if let Some((seq, sent_at)) = stamp(text.as_bytes()) {
            received.delta(seq, sent_at, window.end);
        } else if text.contains("\"message_complete\"") {
            received.complete = 1;
            break;
        }
    }
    received
}
