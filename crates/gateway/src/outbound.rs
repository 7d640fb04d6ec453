//! Going out on somebody's behalf: to the public internet, whatever a name resolves to, or to hosts that the operator
//! named. Made when first needed: a client keeps megabytes of certificates, and many gateways never go out.

use std::sync::OnceLock;
use std::time::Duration;

use egress::{AddressClass, classify};
use reqwest::Client;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;

/// To begin a connection, and between two pieces of an answer.
const CONNECTING: Duration = Duration::from_secs(10);
const SILENT: Duration = Duration::from_mins(2);

/// The two ways out.
#[derive(Default)]
pub struct Outbound {
    public: OnceLock<Client>,
    named: OnceLock<Client>,
}

impl Outbound {
    /// Reaches the public internet only.
    pub(crate) fn public(&self) -> reqwest::Result<&Client> {
        made(&self.public, || builder().dns_resolver(PublicOnly).build())
    }

    /// For hosts that the operator has named.
    pub(crate) fn named(&self) -> reqwest::Result<&Client> {
        made(&self.named, || builder().build())
    }
}

/// Of two that are made at a time, the first is kept.
fn made(cell: &OnceLock<Client>, make: impl Fn() -> reqwest::Result<Client>) -> reqwest::Result<&Client> {
    match cell.get() {
        Some(client) => Ok(client),
        None => make().map(|client| cell.get_or_init(|| client)),
    }
}

/// A redirect would carry a credential to wherever it points, and past the check of the address.
fn builder() -> reqwest::ClientBuilder {
    Client::builder().no_proxy().redirect(Policy::none()).connect_timeout(CONNECTING).read_timeout(SILENT)
}

/// Resolves once and passes on public addresses only: what was checked is what is connected to.
struct PublicOnly;

impl Resolve for PublicOnly {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let public: Vec<_> =
                found.filter(|address| classify(address.ip()) == AddressClass::Public).collect();
            if public.is_empty() {
                return Err("this name leads to no public address".into());
            }
            Ok(Box::new(public.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_name_that_leads_to_a_private_address_resolves_to_nothing() {
        let found = PublicOnly.resolve("localhost".parse().unwrap()).await;
        assert!(found.is_err());
    }
}
