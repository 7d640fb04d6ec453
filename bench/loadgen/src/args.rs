//! The command line: the options that every command takes, and the list of commands. Each command keeps
//! its own options beside its code.

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
    /// Gateway host:port
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
    /// name=pid,... : CPU and RSS of these process trees are reported
    #[arg(long, global = true, env = "LG_PIDS", default_value = "")]
    pub pids: String,
    /// Free text copied to the result line
    #[arg(long, global = true, env = "LG_TAG", default_value = "")]
    pub tag: String,
    /// Before each run wait (60 s at most) until unrelated processes use less than this
    /// percent of one core; 0 = do not wait
    #[arg(long, global = true, env = "LG_QUIET", default_value_t = 0.0)]
    pub quiet: f64,
    #[arg(long, global = true, env = "LG_QUIET_MAX", default_value_t = 60)]
    pub quiet_max: u64,
    /// Runtime threads of this process
    #[arg(long, global = true, env = "LG_THREADS", default_value_t = 1)]
    pub threads: usize,
}

#[derive(Subcommand)]
pub enum Command {
    /// Serve the fake agent (/s/<key>/...) and the fake MCP server (/mcp)
    Fake(fake::Options),
    /// Serve the same wire protocol with the least work honestly needed: the yardstick
    Ceiling(ceiling::Options),
    /// Read result lines and print one table: each tag's median [min-max] and ratio to the tag `ceiling`
    Table(table::Options),
    /// Print tokens for hand tests
    Tokens(tokens::Options),
    /// Start a command, time until GET /health is 200, then RSS after a rest; kill it
    Cold(cold::Options),
    /// Stream deltas through N sessions x K clients. rate 0 = as fast as the gateway reads
    Stream(stream::Options),
    /// POST tools/save_service_commands
    Tools(requests::ToolsOptions),
    /// GET actions/available
    Available(requests::AvailableOptions),
    /// POST actions/invoke (read_thing = allow, write_thing = pending, danger_thing = deny)
    Invoke(invoke::Options),
    /// POST /proliferate/sessions, deferred
    Create(requests::CreateOptions),
    /// Open N sessions with one WS each, hold them, report RSS of --pids
    Hold(hold::Options),
    /// One session, `stalled` sockets that stop reading after init and one that reads:
    /// does the gateway's memory grow, and does the good reader suffer?
    Slow(slow::Options),
    /// Any one HTTP endpoint: GET path without auth (e.g. /health)
    Get(requests::GetOptions),
}
