//! The command that stalls readers next to a normal one, to see whether the gateway's memory or the normal
//! reader suffers.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde_json::json;
use tokio_tungstenite::tungstenite::Message;

use crate::Result;
use crate::clock::{self, now_ns};
use crate::context::Context;
use crate::latency::Latency;
use crate::process::tcp_kib;
use crate::sockets::{self, Socket, stamp};

const OPEN_TIMEOUT: Duration = Duration::from_secs(30);
/// How long after the scheduled end the normal reader may still be served.
const GRACE: Duration = Duration::from_secs(10);

#[derive(clap::Args)]
pub struct Options {
    #[arg(long, default_value_t = 1)]
    stalled: usize,
    #[arg(long, default_value_t = 20000.0)]
    rate: f64,
    #[arg(long, default_value_t = 10.0)]
    secs: f64,
    #[arg(long, default_value_t = 64)]
    pad: usize,
    /// Seconds, for all stalled sockets together, to spend on reading what is buffered for them
    #[arg(long, default_value_t = 20.0)]
    later: f64,
}

struct Reader {
    latency: Latency,
    deltas: u64,
    done: bool,
}

#[derive(Default)]
struct BufferedFrames {
    frames: u64,
    bytes: u64,
    closed: usize,
}

pub async fn run(context: &Arc<Context>, options: &Options) -> Result<()> {
    let Options { stalled, rate, secs, pad, later } = *options;
    let session = context.create_sessions(1, "coding").await?.remove(0);
    let mut idle = Vec::new();
    for _ in 0..stalled {
        idle.push(sockets::open(context, &session, OPEN_TIMEOUT).await?);
    }
    let mut socket = sockets::open(context, &session, OPEN_TIMEOUT).await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (usage, kernel) = (context.begin_usage(), tcp_kib());
    let end = now_ns() + clock::ns(secs);
    let prompt = format!("loadgen rate={rate} secs={secs} pad={pad}");
    socket.send(Message::Text(json!({"type": "prompt", "content": prompt}).to_string())).await?;
    let reader = read(&mut socket, end + GRACE.as_nanos() as u64).await;
    let after = usage.report();
    // What the kernel buffers for the stalled sockets, at both ends.
    let kernel = tcp_kib().saturating_sub(kernel);
    let buffered = read_later(&mut idle, later).await;
    let result = json!({"stalled": stalled, "rate": rate, "secs": secs, "pad": pad,
        "reader_got": reader.deltas, "reader_done": reader.done, "lat": reader.latency.summary(),
        "rss_before_mib": usage.rss_mib_at_start(), "usage": after, "kernel_tcp_kib": kernel, "stalled_read_later": buffered.frames,
        "stalled_read_later_mib": buffered.bytes / 1_048_576, "stalled_closed": buffered.closed});
    context.emit(result, "slow");
    Ok(())
}

async fn read(socket: &mut Socket, deadline: u64) -> Reader {
    let mut reader = Reader { latency: Latency::new(), deltas: 0, done: false };
    while now_ns() < deadline {
        let Ok(Some(Ok(message))) = tokio::time::timeout(GRACE, socket.next()).await else { break };
        let Message::Text(text) = message else { continue };
        if let Some((_, sent_at)) = stamp(text.as_bytes()) {
            reader.deltas += 1;
            reader.latency.record_ns(now_ns().saturating_sub(sent_at));
        } else if text.contains("\"message_complete\"") {
            reader.done = true;
            break;
        }
    }
    reader
}

/// Checks whether stalled clients can still be served: reads what is buffered for each, for at most `secs` in
/// total.
async fn read_later(idle: &mut [Socket], secs: f64) -> BufferedFrames {
    let mut buffered = BufferedFrames::default();
    let share = clock::ns(secs / idle.len().max(1) as f64);
    for socket in idle {
        let stop = now_ns() + share;
        while now_ns() < stop {
            let wait = stop.saturating_sub(now_ns()).min(1_000_000_000);
            match tokio::time::timeout(Duration::from_nanos(wait), socket.next()).await {
                Ok(Some(Ok(message))) => {
                    buffered.frames += 1;
                    buffered.bytes += message.len() as u64;
                }
                Ok(_) => {
                    buffered.closed += 1;
                    break;
                }
                Err(_) => break,
            }
        }
    }
    buffered
}
