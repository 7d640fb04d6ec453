//! A provider for sandboxes that somebody else runs at a URL: the gateway only connects.

mod tls;

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use url::{Host, Url};

use crate::error::{Capability, SandboxError};
use crate::provider::{
    ByteStream, Capabilities, CleanCopy, EnsureOutcome, ExpiryOwner, InjectedConnection, Isolation, LeftOut,
    Provider, SandboxInfo, SandboxState,
};
use crate::spec::{SandboxId, SnapshotId, Spec};
use tls::Tls;

const ID_PLACEHOLDER: &str = "{sessionId}";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Plain HTTP over a network exposes every secret, so it must be allowed explicitly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlainHttp {
    LoopbackOnly,
    Anywhere,
}

pub struct AttachProvider {
    template: String,
    /// The TLS configuration, for an https URL.
    tls: Option<Tls>,
    connected_ids: Mutex<BTreeSet<SandboxId>>,
}

impl AttachProvider {
    /// Accepts a URL with `{sessionId}` in its path, or without it for a single sandbox.
    pub fn new(template: &str, plain: PlainHttp) -> Result<Self, SandboxError> {
        let url = Url::parse(&template.replace(ID_PLACEHOLDER, "x"))
            .map_err(|_| SandboxError::BadSpec("the attach URL is not a valid URL"))?;
        let loopback = match url.host() {
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
            Some(Host::Domain(name)) => name == "localhost",
            None => return Err(SandboxError::BadSpec("the attach URL has no host")),
        };
        // A sandbox id in the host would let the id choose where we connect to.
        let elsewhere = Url::parse(&template.replace(ID_PLACEHOLDER, "y")).ok();
        if elsewhere.as_ref().map(Url::authority) != Some(url.authority()) {
            return Err(SandboxError::BadSpec("`{sessionId}` must be in the path of the attach URL"));
        }
        let tls = match url.scheme() {
            "https" => Some(Tls::new()?),
            "http" if loopback || plain == PlainHttp::Anywhere => None,
            "http" => {
                return Err(SandboxError::BadSpec(
                    "plain http is only accepted for loopback unless it is allowed explicitly",
                ));
            }
            _ => return Err(SandboxError::BadSpec("the attach URL must use http or https")),
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err(SandboxError::BadSpec("the attach URL must not contain credentials"));
        }
        Ok(Self { template: template.into(), tls, connected_ids: Mutex::default() })
    }

    /// The URL of the sandbox with this id.
    pub fn url(&self, id: &SandboxId) -> Result<Url, SandboxError> {
        Url::parse(&self.template.replace(ID_PLACEHOLDER, id.as_str()))
            .map_err(|_| SandboxError::BadSpec("the attach URL is not a valid URL"))
    }

    fn connected_ids(&self) -> parking_lot::MutexGuard<'_, BTreeSet<SandboxId>> {
        self.connected_ids.lock()
    }
}

#[async_trait]
impl Provider for AttachProvider {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            memory_pause: false,
            durable_snapshot: false,
            fork: false,
            injected_ports: false,
            owns_processes: false,
            expiry: ExpiryOwner::Nobody,
            isolation: Isolation::Remote,
        }
    }

    async fn ensure(&self, spec: &Spec) -> Result<EnsureOutcome, SandboxError> {
        if spec.snapshot.is_some() {
            return Err(SandboxError::Unsupported(Capability::Fork));
        }
        if !spec.injected.is_empty() {
            return Err(SandboxError::Unsupported(Capability::InjectedPorts));
        }
        let recovered = !self.connected_ids().insert(spec.id.clone());
        Ok(EnsureOutcome { id: spec.id.clone(), recovered, made_files: false })
    }

    async fn snapshot(&self, _: &SandboxId, _: &LeftOut, _: CleanCopy) -> Result<SnapshotId, SandboxError> {
        Err(SandboxError::Unsupported(Capability::DurableSnapshot))
    }

    async fn remove_snapshot(&self, _: &SnapshotId) -> Result<(), SandboxError> {
        Err(SandboxError::Unsupported(Capability::DurableSnapshot))
    }

    async fn pause(&self, _: &SandboxId) -> Result<(), SandboxError> {
        Err(SandboxError::Unsupported(Capability::MemoryPause))
    }

    async fn resume(&self, _: &SandboxId) -> Result<(), SandboxError> {
        Err(SandboxError::Unsupported(Capability::MemoryPause))
    }

    /// Its processes belong to somebody else.
    async fn halt(&self, _: &SandboxId) -> Result<(), SandboxError> {
        Ok(())
    }

    async fn terminate(&self, id: &SandboxId) -> Result<(), SandboxError> {
        self.connected_ids().remove(id);
        Ok(())
    }

    /// The state is unknown, because nobody reports it.
    async fn list(&self) -> Result<Vec<SandboxInfo>, SandboxError> {
        let listed = |id: &SandboxId| SandboxInfo { id: id.clone(), state: SandboxState::Unknown };
        Ok(self.connected_ids().iter().map(listed).collect())
    }

    /// Connects to the URL's host and port; the port inside the sandbox has no meaning here.
    async fn dial(&self, id: &SandboxId, _: u16) -> Result<Box<dyn ByteStream>, SandboxError> {
        if !self.connected_ids().contains(id) {
            return Err(SandboxError::NotFound(id.clone()));
        }
        let url = self.url(id)?;
        let port = url.port_or_known_default().unwrap_or_default();
        let refused = |kind| SandboxError::Refused { port, kind };
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let connecting = async {
            let stream = TcpStream::connect((host.as_str(), port)).await;
            let stream = stream.map_err(|error| refused(error.kind()))?;
            Ok(match &self.tls {
                None => Box::new(stream) as Box<dyn ByteStream>,
                Some(tls) => Box::new(tls.handshake(&host, port, stream).await?),
            })
        };
        timeout(CONNECT_TIMEOUT, connecting).await.unwrap_or_else(|_| Err(refused(io::ErrorKind::TimedOut)))
    }

    async fn listeners(&self, _: &SandboxId) -> Result<mpsc::Receiver<InjectedConnection>, SandboxError> {
        Err(SandboxError::Unsupported(Capability::InjectedPorts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_safe_urls_are_accepted() {
        let new = |url, plain| AttachProvider::new(url, plain).map(drop);
        for good in ["http://127.0.0.1:1/s/{sessionId}", "http://[::1]/x", "https://host/s/{sessionId}"] {
            assert!(new(good, PlainHttp::LoopbackOnly).is_ok(), "{good}");
        }
        for bad in ["", "ftp://localhost/", "http://host/", "https://{sessionId}.host/", "https://u:p@host/"]
        {
            assert!(matches!(new(bad, PlainHttp::LoopbackOnly), Err(SandboxError::BadSpec(_))), "{bad}");
        }
        assert!(new("http://host/", PlainHttp::Anywhere).is_ok());
    }
}
