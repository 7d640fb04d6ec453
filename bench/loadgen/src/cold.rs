//! The command that starts a server repeatedly and measures the time until it is healthy and its idle memory.

use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::net::TcpStream;

use crate::Result;
use crate::clock::{now_ns, secs_since};
use crate::context::Context;
use crate::http::Connection;
use crate::process;

/// Precision of the measurement until the port is open; afterwards the server answers as soon as it can.
const POLL: Duration = Duration::from_micros(500);
/// A server that has not ended this long after SIGTERM is killed.
const STOP_LIMIT_S: f64 = 8.0;

#[derive(clap::Args)]
pub struct Options {
    /// Run this command line with `sh`; the start of the shell is then part of the figure
    #[arg(long, required_unless_present = "program", conflicts_with = "program")]
    exec: Option<String>,
    #[arg(long, default_value_t = 5)]
    runs: usize,
    #[arg(long, default_value_t = 3.0)]
    rest: f64,
    /// Start the rest only when this path answers 200, too
    #[arg(long, default_value = "/health")]
    ready_path: String,
    /// Give up if a path has not answered 200 this many seconds after the start
    #[arg(long, default_value_t = 60.0)]
    limit: f64,
    /// Start this program with its arguments, without a shell
    #[arg(last = true)]
    program: Vec<String>,
}

impl Options {
    fn command(&self) -> Command {
        let shell = self.exec.as_ref().map(|line| ["sh".to_owned(), "-c".to_owned(), format!("exec {line}")]);
        let words = shell.as_ref().map_or(self.program.as_slice(), |words| words);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }
}

pub async fn run(context: &Arc<Context>, options: &Options) -> Result<()> {
    for run in 0..options.runs {
        context.wait_quiet().await;
        run_once(context, options, run).await?;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    Ok(())
}

async fn run_once(context: &Context, options: &Options, run: usize) -> Result<()> {
    let addr = &context.common.addr;
    if TcpStream::connect(addr).await.is_ok() {
        return Err(format!("another program already listens at {addr}").into());
    }
    let machine_before = process::machine_cpu_s();
    let mut server = Server::start(options.command())?;
    let health_s = server.wait_for_200(addr, "/health", options.limit).await?;
    let at_health = process::tree(server.pid());
    let others_s = (process::machine_cpu_s() - machine_before - at_health.cpu_s).max(0.0);
    let ready_path_s = server.wait_for_200(addr, &options.ready_path, options.limit).await?;
    tokio::time::sleep(Duration::from_secs_f64(options.rest)).await;
    let idle = process::tree(server.pid());
    let exit_s = server.stop().await?;
    let result = json!({"run": run, "ready_ms": health_s * 1e3, "ready_path_ms": ready_path_s * 1e3,
        "usage": {"other_cpu_pct": (others_s / health_s * 100.0).round()}, "cpu_s_at_ready": at_health.cpu_s,
        "rss_mib_at_ready": at_health.rss_kib / 1024, "rss_mib_idle": idle.rss_kib / 1024,
        "rss_kib_idle": idle.rss_kib, "exit_ms": exit_s * 1e3});
    context.emit(result, "cold");
    Ok(())
}

/// A process in its own process group, which is killed when this value is dropped or the generator ends.
struct Server {
    child: Child,
    started: u64,
}

impl Server {
    fn start(mut command: Command) -> Result<Self> {
        let started = now_ns();
        // SAFETY: only system calls are made between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        Ok(Self { child: command.spawn()?, started })
    }

    fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    fn signal(&self, signal: i32) {
        // SAFETY: kill touches no memory; the group belongs to a child that is not reaped yet.
        unsafe { libc::kill(-self.pid(), signal) };
    }

    /// Seconds from the start to the first 200 on this path.
    async fn wait_for_200(&mut self, addr: &str, path: &str, limit: f64) -> Result<f64> {
        loop {
            let left = Duration::from_secs_f64((limit - secs_since(self.started)).max(0.0));
            let mut connection = Connection::new(addr);
            let answer = tokio::time::timeout(left, connection.send("GET", path, "", None)).await;
            let took = secs_since(self.started);
            if let Ok(Ok((200, _))) = answer {
                return Ok(took);
            }
            if self.child.try_wait()?.is_some() {
                return Err(format!("the process ended before {path} answered 200").into());
            }
            if took >= limit {
                return Err(format!("{path} did not answer 200 within {limit} s").into());
            }
            // The runtime's timers are too coarse, and nothing else runs on this thread.
            std::thread::sleep(POLL);
        }
    }

    /// Seconds from SIGTERM to the end of the process.
    async fn stop(&mut self) -> Result<f64> {
        self.signal(libc::SIGTERM);
        let signalled_at = now_ns();
        while self.child.try_wait()?.is_none() {
            if secs_since(signalled_at) > STOP_LIMIT_S {
                self.signal(libc::SIGKILL);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(secs_since(signalled_at))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.signal(libc::SIGKILL);
            let _ = self.child.wait();
        }
    }
}
