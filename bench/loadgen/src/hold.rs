//! The command that holds many sessions open and reports the memory per session.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use serde_json::{Map, Value, json};

use crate::Result;
use crate::clock::{now_ns, secs_since};
use crate::context::Context;
use crate::sockets::{OpenSocket, open_all};
use crate::usage::Usage;

#[derive(clap::Args)]
pub struct Options {
    #[arg(long, default_value_t = 200)]
    sessions: usize,
    #[arg(long, default_value_t = 1)]
    clients: usize,
    #[arg(long, default_value_t = 15.0)]
    secs: f64,
}

/// RSS in KiB of each watched process at each step.
struct Memory {
    before: Vec<u64>,
    created: Vec<u64>,
    opened: Vec<u64>,
    held: Vec<u64>,
}

pub async fn run(context: &Arc<Context>, options: &Options) -> Result<()> {
    let watched = context.begin_usage();
    let before = watched.rss_kib_now();
    let ids = context.create_sessions(options.sessions, "coding").await?;
    let created = watched.rss_kib_now();
    let opening = now_ns();
    let (sockets, open) = open_all(context, ids, options.clients).await?;
    let open_s = secs_since(opening);
    let opened = watched.rss_kib_now();
    let conns = sockets.len();
    let closed = read_all(sockets);
    let usage = context.begin_usage();
    tokio::time::sleep(Duration::from_secs_f64(options.secs)).await;
    let memory = Memory { before, created, opened, held: watched.rss_kib_now() };
    let result = json!({"sessions": options.sessions, "clients": options.clients, "conns": conns,
        "open_s": open_s, "open": open.summary(), "closed_during_hold": closed.load(Ordering::Relaxed),
        "mem": memory.report(&watched, options.sessions), "hold_usage": usage.report()});
    context.emit(result, "hold");
    Ok(())
}

/// Reads from all sockets, so that none stalls; counts those that are closed.
fn read_all(sockets: Vec<OpenSocket>) -> Arc<AtomicUsize> {
    let closed = Arc::new(AtomicUsize::new(0));
    for OpenSocket { mut socket, .. } in sockets {
        let closed = closed.clone();
        tokio::spawn(async move {
            while let Some(Ok(_)) = socket.next().await {}
            closed.fetch_add(1, Ordering::Relaxed);
        });
    }
    closed
}

impl Memory {
    fn report(&self, watched: &Usage, sessions: usize) -> Map<String, Value> {
        let entry = |i: usize| {
            let per_session = |now: u64| (now as i64 - self.before[i] as i64) / sessions as i64;
            json!({"rss_before_mib": self.before[i] / 1024, "rss_created_mib": self.created[i] / 1024,
                "rss_opened_mib": self.opened[i] / 1024, "rss_held_mib": self.held[i] / 1024,
                "kib_per_session_opened": per_session(self.opened[i]),
                "kib_per_session_held": per_session(self.held[i])})
        };
        watched.watched.iter().enumerate().map(|(i, (name, _))| (name.clone(), entry(i))).collect()
    }
}
