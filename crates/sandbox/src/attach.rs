//! Something that somebody else runs at a URL: the gateway only connects.

mod tls;

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use url::{Host, Url};

use crate::error::{Capability, SandboxError};
use crate::provider::{
    ByteStream, Capabilities, Ensured, ExpiryOwner, Injected, Isolation, Listed, Provider, SandboxState,
};
use crate::spec::{SandboxId, SnapshotId, Spec};
use tls::Tls;

const PLACE: &str = "{sessionId}";
const CONNECT: Duration = Duration::from_secs(10);

/// Plain HTTP over a network shows every secret to whoever listens, so it has to be allowed by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlainHttp {
    LoopbackOnly,
    Anywhere,
}

pub struct AttachProvider {
    template: String,
    /// For an https URL.
    tls: Option<Tls>,
    known: Mutex<BTreeSet<SandboxId>>,
}

impl AttachProvider {
    /// Takes a URL with `{sessionId}` in its path, or without for a single one.
    pub fn new(template: &str, plain: PlainHttp) -> Result<Self, SandboxError> {
        let url = Url::parse(&template.replace(PLACE, "x"))
            .map_err(|_| SandboxError::BadSpec("the attach URL is no URL"))?;
        let loopback = match url.host() {
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
            Some(Host::Domain(name)) => name == "localhost",
            None => return Err(SandboxError::BadSpec("the attach URL has no host")),
        };
        // An id in the host would let an id choose where we connect to.
        let elsewhere = Url::parse(&template.replace(PLACE, "y")).ok();
        if elsewhere.as_ref().map(Url::authority) != Some(url.authority()) {
            return Err(SandboxError::BadSpec("`{sessionId}` belongs into the path of the attach URL"));
        }
        let tls = match url.scheme() {
            "https" => Some(Tls::new()?),
            "http" if loopback || plain == PlainHttp::Anywhere => None,
            "http" => {
                return Err(SandboxError::BadSpec("plain http goes to loopback only unless it is allowed"));
            }
            _ => return Err(SandboxError::BadSpec("the attach URL is http or https")),
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err(SandboxError::BadSpec("the attach URL carries no credentials"));
        }
        Ok(Self { template: template.into(), tls, known: Mutex::default() })
    }

    /// Where the one for this id is.
    pub fn url(&self, id: &SandboxId) -> Result<Url, SandboxError> {
        Url::parse(&self.template.replace(PLACE, id.as_str()))
            .map_err(|_| SandboxError::BadSpec("the attach URL is no URL"))
    }

    fn known(&self) -> std::sync::MutexGuard<'_, BTreeSet<SandboxId>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
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

    async fn ensure(&self, spec: &Spec) -> Result<Ensured, SandboxError> {
        if spec.snapshot.is_some() {
            return Err(SandboxError::Unsupported(Capability::Fork));
        }
        if !spec.injected.is_empty() {
            return Err(SandboxError::Unsupported(Capability::InjectedPorts));
        }
        let recovered = !self.known().insert(spec.id.clone());
        Ok(Ensured { id: spec.id.clone(), recovered, made_files: false })
    }

    async fn snapshot(&self, _: &SandboxId, _: &[PathBuf]) -> Result<SnapshotId, SandboxError> {
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

    /// Its processes are somebody else's.
    async fn halt(&self, _: &SandboxId) -> Result<(), SandboxError> {
        Ok(())
    }

    async fn terminate(&self, id: &SandboxId) -> Result<(), SandboxError> {
        self.known().remove(id);
        Ok(())
    }

    /// Nobody tells us how they are, so the state is unknown.
    async fn list(&self) -> Result<Vec<Listed>, SandboxError> {
        let listed = |id: &SandboxId| Listed { id: id.clone(), state: SandboxState::Unknown };
        Ok(self.known().iter().map(listed).collect())
    }

    /// Connects to the URL's host and port; a port inside has no meaning here.
    async fn dial(&self, id: &SandboxId, _: u16) -> Result<Box<dyn ByteStream>, SandboxError> {
        if !self.known().contains(id) {
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
                Some(tls) => Box::new(tls.speak(&host, port, stream).await?),
            })
        };
        timeout(CONNECT, connecting).await.unwrap_or_else(|_| Err(refused(io::ErrorKind::TimedOut)))
    }

    async fn listeners(&self, _: &SandboxId) -> Result<mpsc::Receiver<Injected>, SandboxError> {
        Err(SandboxError::Unsupported(Capability::InjectedPorts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_safe_urls_are_taken() {
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
