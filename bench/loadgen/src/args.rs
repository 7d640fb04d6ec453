//! The command line: the common options and the list of commands. Each command defines its own options.

use clap::{Args, Parser, Subcommand};

use crate::{ceiling, cold, fake, hold, invoke, requests, slow, stream, table, tokens};

#[derive(Parser)]
pub struct Cli {
    #[command(flatten)]
    pub common: Common,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Args)]
pub struct Common {
    /// Address of the gateway, host:port
    #[arg(long, global = true, env = "LG_ADDR", default_value = "127.0.0.1:58787")]
    pub addr: String,
    #[arg(
        long,
        global = true,
        env = "LG_JWT_SECRET",
        default_value = "loadgen-user-jwt-secret-0123456789abcdef"
    )]
    pub jwt_secret: String,
    #[arg(
        long,
        global = true,
        env = "LG_SERVICE_SECRET",
        default_value = "loadgen-service-secret-0123456789abcdef"
    )]
    pub service_secret: String,
    #[arg(long, global = true, env = "LG_ORG", default_value = "00000000-0000-4000-8000-0000000000aa")]
    pub org: String,
    #[arg(long, global = true, env = "LG_USER", default_value = "00000000-0000-4000-8000-0000000000bb")]
    pub user: String,
    /// Number of seeded configurations 00000000-0000-4000-8000-<12 hex digits of 1..=N>
    #[arg(long, global = true, env = "LG_CONFIGS", default_value_t = 64)]
    pub configs: usize,
    #[arg(long, global = true, env = "LG_CONNECTOR", default_value = "00000000-0000-4000-8000-0000000000cc")]
    pub connector: String,
    /// Report CPU and RSS of these process trees: name=pid,...
    #[arg(long, global = true, env = "LG_PIDS", default_value = "")]
    pub pids: String,
    /// Copy this text to the result line
    #[arg(long, global = true, env = "LG_TAG", default_value = "")]
    pub tag: String,
    /// Before each run, wait (60 s at most) until unrelated processes use less than this percentage of one
    /// core; 0 = do not wait
    #[arg(long, global = true, env = "LG_QUIET", default_value_t = 0.0)]
    pub quiet: f64,
    #[arg(long, global = true, env = "LG_QUIET_MAX", default_value_t = 60)]
    pub quiet_max: u64,
    /// Number of runtime threads of this process
    #[arg(long, global = true, env = "LG_THREADS", default_value_t = 1)]
    pub threads: usize,
}

#[derive(Subcommand)]
pub enum Command {
    /// Serve the fake agent (/s/<key>/...) and the fake MCP server (/mcp)
    Fake(fake::Options),
    /// Serve the same wire protocol with the minimum of work, as a baseline
    Ceiling(ceiling::Options),
    /// Read result lines and print one table: each tag's median [min-max] and ratio to the tag `ceiling`
    Table(table::Options),
    /// Print tokens for manual tests
    Tokens(tokens::Options),
    /// Start a command, measure the time until GET /health is 200 and the RSS after a rest, then kill it
    Cold(cold::Options),
    /// Stream deltas through N sessions x K clients; rate 0 = as fast as the gateway reads
    Stream(stream::Options),
    /// Measure tool calls: POST tools/save_service_commands
    Tools(requests::ToolsOptions),
    /// Measure the list of actions: GET actions/available
    Available(requests::AvailableOptions),
    /// Measure action invocations: POST actions/invoke (read_thing = allow, write_thing = pending,
    /// danger_thing = deny)
    Invoke(invoke::Options),
    /// Measure creating sessions: POST /proliferate/sessions, deferred
    Create(requests::CreateOptions),
    /// Open N sessions with one WebSocket each, hold them, report RSS of --pids
    Hold(hold::Options),
    /// Stop reading on `stalled` sockets of a session and measure how memory and one normal reader are
    /// affected
    Slow(slow::Options),
    /// Send GET requests without authentication to any path (e.g. /health)
    Get(requests::GetOptions),
}
