//! The reference server of the Model Context Protocol, which `scripts/need.sh test` installs.

use std::io;
use std::path::PathBuf;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

/// `@modelcontextprotocol/server-everything` in a process of its own; dropping it kills the process.
#[derive(Debug)]
pub struct McpEverything {
    port: u16,
    child: Child,
}

impl McpEverything {
    /// The directory of the npm packages, with Node 22 in `.bin/node`.
    pub fn packages() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../.tools/mcp/node_modules")
    }

    /// Starts a server on a free port, with these variables in its environment.
    pub async fn start(environment: &[(&str, &str)]) -> io::Result<Self> {
        let free = std::net::TcpListener::bind("127.0.0.1:0")?;
        let port = free.local_addr()?.port();
        drop(free);
        Self::start_on(port, environment).await
    }

    pub async fn start_on(port: u16, environment: &[(&str, &str)]) -> io::Result<Self> {
        let program = Self::packages().join("@modelcontextprotocol/server-everything/dist/index.js");
        let mut child = Command::new(Self::packages().join(".bin/node"))
            .arg(program)
            .arg("streamableHttp")
            .env("PORT", port.to_string())
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let stderr = child.stderr.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let mut lines = BufReader::new(stderr).lines();
        while let Some(line) = lines.next_line().await? {
            if line.contains("listening on port") {
                // The server must not block on a full pipe.
                tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
                return Ok(Self { port, child });
            }
        }
        Err(io::ErrorKind::UnexpectedEof.into())
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.address())
    }

    /// Kills the server. Returns its port, on which another one can be started.
    pub async fn kill(mut self) -> io::Result<u16> {
        self.child.kill().await?;
        Ok(self.port)
    }
}
