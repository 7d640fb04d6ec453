//! A fake agent server (the part of the OpenCode HTTP API that a gateway needs) for any number of sandboxes
//! under /s/<key>/..., and a fake MCP server at /mcp. Deltas contain their send time.

mod deltas;
mod mcp;
mod router;
mod state;
mod turn;

use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use crate::Result;
use state::State;

#[derive(clap::Args)]
pub struct Options {
    #[arg(long, default_value = "127.0.0.1:58800")]
    listen: String,
    #[arg(long, default_value_t = 10)]
    heartbeat: u64,
    /// Put deltas into message.part.updated, as OpenCode did before 1.18, instead of message.part.delta
    #[arg(long)]
    old_events: bool,
}

pub async fn serve(options: Options) -> Result<()> {
    let listener = TcpListener::bind(&options.listen).await?;
    let state = Arc::new(State::new(Duration::from_secs(options.heartbeat), !options.old_events));
    eprintln!("fake agent + MCP on http://{}", options.listen);
    loop {
        let (stream, _) = listener.accept().await?;
        let _ = stream.set_nodelay(true);
        let state = state.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| router::handle(state.clone(), request));
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}
