//! TLS to a sandbox that somebody else runs. It trusts the certificate authorities of this machine, or those in the
//! file that `SSL_CERT_FILE` names.

use std::io;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::aws_lc_rs::default_provider;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::error::SandboxError;

pub(super) struct Tls {
    connector: TlsConnector,
}

impl Tls {
    pub(super) fn new() -> Result<Self, SandboxError> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            return Err(SandboxError::NoAuthorities);
        }
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| SandboxError::Tls(error.to_string()))?;
        let mut config = config.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { connector: Arc::new(config).into() })
    }

    pub(super) async fn handshake(
        &self,
        host: &str,
        port: u16,
        stream: TcpStream,
    ) -> Result<TlsStream<TcpStream>, SandboxError> {
        let name = ServerName::try_from(host.to_owned()).map_err(|_| {
            SandboxError::BadSpec("the host of the attach URL is not a valid TLS server name")
        })?;
        self.connector.connect(name, stream).await.map_err(|error| match error.kind() {
            // A bad certificate, or a server without TLS. Other errors may be temporary.
            io::ErrorKind::InvalidData => SandboxError::Tls(error.to_string()),
            kind => SandboxError::Refused { port, kind },
        })
    }
}
