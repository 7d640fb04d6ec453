//! A load generator for session gateways. It uses only the public HTTP and WebSocket protocol, so it works
//! with any implementation.

mod args;
mod ceiling;
mod clock;
mod closed_loop;
mod cold;
mod context;
mod fake;
mod hold;
mod http;
mod invoke;
mod latency;
mod process;
mod requests;
mod slow;
mod sockets;
mod stream;
mod table;
mod tokens;
mod usage;

use std::sync::Arc;

use args::{Cli, Command};
use clap::Parser;
use context::Context;

type Error = Box<dyn std::error::Error + Send + Sync>;
type Result<T> = std::result::Result<T, Error>;

async fn run(context: Arc<Context>, command: Command) -> Result<()> {
    match command {
        Command::Fake(options) => fake::serve(options).await,
        Command::Ceiling(options) => ceiling::serve(options, &context.common).await,
        Command::Table(options) => table::print(&options),
        Command::Tokens(options) => {
            tokens::print(&context, &options.session);
            Ok(())
        }
        Command::Cold(options) => cold::run(&context, &options).await,
        Command::Stream(options) => stream::run(&context, &options).await,
        Command::Tools(options) => requests::tools(&context, &options).await,
        Command::Available(options) => requests::available(&context, &options).await,
        Command::Invoke(options) => invoke::run(&context, &options).await,
        Command::Create(options) => requests::create(&context, &options).await,
        Command::Hold(options) => hold::run(&context, &options).await,
        Command::Slow(options) => slow::run(&context, &options).await,
        Command::Get(options) => requests::get(&context, &options).await,
    }
}

fn main() -> std::process::ExitCode {
    let Cli { common, command } = Cli::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(common.threads.max(1))
        .enable_all()
        .build()
        .expect("a runtime needs threads and epoll");
    match runtime.block_on(run(Arc::new(Context::new(common)), command)) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}
