//! A TLS proxy in front of a plain service. Its certificate is trusted only by clients that know the test
//! authority. The keys were generated for this purpose and protect nothing.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_util::task::AbortOnDropHandle;

/// A TLS proxy; dropping it stops it.
#[derive(Debug)]
pub struct TlsFront {
    address: SocketAddr,
    _task: AbortOnDropHandle<()>,
}

impl TlsFront {
    /// Terminates TLS for the service at this address.
    pub async fn start(service: SocketAddr) -> io::Result<Self> {
        let certificate = CertificateDer::from_pem_slice(include_bytes!("../fixtures/server.pem"));
        let key = PrivateKeyDer::from_pem_slice(include_bytes!("../fixtures/server.key"));
        let (certificate, key) = (certificate.map_err(io::Error::other)?, key.map_err(io::Error::other)?);
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|config| config.with_no_client_auth().with_single_cert(vec![certificate], key))
            .map_err(io::Error::other)?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let serving = async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(acceptor.clone(), stream, service));
            }
        };
        Ok(Self { address, _task: AbortOnDropHandle::new(tokio::spawn(serving)) })
    }

    /// The base URL, without a trailing slash.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// The certificate of the authority that signed the server's certificate.
    pub fn authority() -> PathBuf {
        fixture("ca.pem")
    }

    /// The certificate of an authority that did not sign it.
    pub fn other_authority() -> PathBuf {
        fixture("stranger.pem")
    }
}

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

async fn serve(acceptor: TlsAcceptor, stream: TcpStream, service: SocketAddr) {
    // Some tests abort the handshake or the connection on purpose.
    let Ok(mut inside) = acceptor.accept(stream).await else { return };
    let Ok(mut plain) = TcpStream::connect(service).await else { return };
    let _ = copy_bidirectional(&mut inside, &mut plain).await;
}
