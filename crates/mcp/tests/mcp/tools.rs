//! Programs from npm that these tests run, and what every test needs to reach a server on this machine.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use mcp::{Auth, Limits, Listing, Reach};
use reqwest::Client;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use url::Url;

/// The folder into which `scripts/need.sh test` installs.
pub(crate) fn folder() -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../.tools/mcp/node_modules");
    assert!(folder.exists(), "run scripts/need.sh test");
    folder
}

/// Reaches every address. The guard against private addresses is the gateway's.
pub(crate) struct Everywhere;

impl Reach for Everywhere {
    fn client(&self, _: &Url) -> Option<Client> {
        let builder = Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none());
        Some(builder.connect_timeout(Duration::from_secs(5)).build().unwrap())
    }
}

pub(crate) async fn list(url: &Url) -> Listing {
    mcp::list_tools(&Everywhere, url, &Auth::None, Limits::default()).await.unwrap()
}

/// The reference server, in a process of its own.
pub(crate) struct Everything {
    pub(crate) url: Url,
    port: u16,
    child: Child,
}

impl Everything {
    pub(crate) async fn start() -> Self {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        Self::start_on(port).await
    }

    pub(crate) async fn start_on(port: u16) -> Self {
        let program = folder().join("@modelcontextprotocol/server-everything/dist/index.js");
        let mut child = Command::new(folder().join(".bin/node"))
            .arg(program)
            .arg("streamableHttp")
            .env("PORT", port.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        while let Some(line) = lines.next_line().await.unwrap() {
            if line.contains("listening on port") {
                let url = format!("http://127.0.0.1:{port}/mcp").parse().unwrap();
                tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
                return Self { url, port, child };
            }
        }
        panic!("the server ended");
    }

    /// Kills the server. Returns its port, on which another one can be started.
    pub(crate) async fn kill(mut self) -> u16 {
        self.child.kill().await.unwrap();
        self.port
    }
}
