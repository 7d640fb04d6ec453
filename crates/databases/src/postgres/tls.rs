//! The TLS of connections to PostgreSQL: which authorities a server's certificate may come from.

use std::fmt;
use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::aws_lc_rs::default_provider;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::Problem;

/// Trusts the certificates of some authorities. Cheap to clone.
#[derive(Clone)]
pub struct Tls(pub(super) TlsConnector);

impl Tls {
    /// Trusts the authorities of this machine, or those in the file that `SSL_CERT_FILE` names. It reads and parses some
    /// hundred certificates, so it blocks, and the result is to be kept.
    pub fn of_this_machine() -> Result<Self, Problem> {
        Self::trusting(rustls_native_certs::load_native_certs().certs)
    }

    /// Trusts these authorities.
    pub fn trusting(authorities: impl IntoIterator<Item = CertificateDer<'static>>) -> Result<Self, Problem> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(authorities);
        if roots.is_empty() {
            return Err(Problem::NoAuthorities);
        }
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|_| Problem::Certificate)?;
        Ok(Self(Arc::new(config.with_root_certificates(roots).with_no_client_auth()).into()))
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls(…)")
    }
}
