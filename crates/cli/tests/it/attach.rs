//! Agents that somebody else runs, reached over TLS: the certificate must be trusted by the machine's authorities.

use std::net::SocketAddr;
use std::path::Path;

use serde_json::json;
use testkit::{FakeAgent, TlsFront};
use tokio::runtime::Runtime;

use crate::harness::Machine;
use crate::live::{Real, tokens};

/// A fake agent behind a TLS proxy.
struct Behind {
    front: TlsFront,
    _agent: FakeAgent,
    _threads: Runtime,
}

impl Behind {
    fn start() -> Self {
        let threads =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let agent = threads.block_on(FakeAgent::start()).unwrap();
        agent.behave(|manner| manner.echoes = true);
        let address: SocketAddr =
            agent.url().trim_start_matches("http://").trim_end_matches('/').parse().unwrap();
        let front = threads.block_on(TlsFront::start(address)).unwrap();
        Self { front, _agent: agent, _threads: threads }
    }

    fn serve(&self, authority: &Path) -> Real {
        let url = format!("{}/", self.front.url());
        Real::serving(&[
            ("SANDBOX_PROVIDER", "attach"),
            ("SANDBOX_ATTACH_URL", url.as_str()),
            ("SSL_CERT_FILE", authority.to_str().unwrap()),
        ])
    }
}

#[test]
fn an_agent_behind_tls_is_connected_to_if_its_authority_is_trusted() {
    let behind = Behind::start();
    let mut real = behind.serve(&TlsFront::authority());
    real.new_session(&json!({}));
    let mut socket = real.watch("");
    socket.prompt("hello");
    assert_eq!(tokens(&socket.until_type("turn_complete")), "echo: hello");
}

#[test]
fn an_agent_without_a_trusted_certificate_gets_no_request() {
    let behind = Behind::start();
    let mut real = behind.serve(&TlsFront::other_authority());
    real.new_session(&json!({}));
    let mut socket = real.watch("");
    let last = socket.until_type("error").pop().unwrap();
    let reason = last["payload"]["message"].as_str().unwrap();
    assert!(reason.contains("not trusted") && reason.contains("SSL_CERT_FILE"), "{reason}");
}

#[test]
fn https_without_any_authority_is_refused_at_the_start() {
    let machine = Machine::new();
    let none = machine.file("none.pem");
    std::fs::write(&none, "").unwrap();
    let machine = machine
        .with("SANDBOX_PROVIDER", "attach")
        .with("SANDBOX_ATTACH_URL", "https://agents.example/{sessionId}")
        .with("SSL_CERT_FILE", none.to_str().unwrap());
    let ended = machine.run(&["serve", "--listen", "127.0.0.1:0"]);
    assert!(ended.code != 0 && ended.err.contains("ca-certificates"), "{}: {}", ended.code, ended.err);
}
