//! Going out on somebody's behalf: to the public internet, whatever a name resolves to, or to hosts that the operator
//! named. Made when first needed: a client keeps megabytes of certificates, and many gateways never go out.

use std::io;
use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use egress::{AddressClass, classify};
use futures_util::{Stream, StreamExt as _, stream};
use reqwest::Client;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;
use tokio::time::timeout;

/// To begin a connection.
const CONNECTING: Duration = Duration::from_secs(10);
/// Until an answer begins, and between two pieces of it. Whoever waits minds it: a client of ours would count what is
/// sent as silence too, and a large push takes longer.
pub(crate) const SILENT: Duration = Duration::from_mins(2);

/// The two ways out.
#[derive(Default)]
pub(crate) struct Outbound {
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
    Client::builder().no_proxy().redirect(Policy::none()).connect_timeout(CONNECTING)
}

/// The pieces of an answer. One that falls silent in the middle has broken off.
pub(crate) fn lively(
    pieces: impl Stream<Item = reqwest::Result<Bytes>> + Send + 'static,
) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    stream::unfold(Some(Box::pin(pieces)), |pieces| async {
        let mut pieces = pieces?;
        match timeout(SILENT, pieces.next()).await {
            Ok(piece) => Some((piece?.map_err(|_| io::ErrorKind::ConnectionReset.into()), Some(pieces))),
            Err(_) => Some((Err(io::ErrorKind::TimedOut.into()), None)),
        }
    })
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

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_falls_silent_has_broken_off() {
        let one = || stream::iter([Ok(Bytes::from("x"))]);
        let ended: Vec<_> = lively(one()).collect().await;
        assert!(matches!(ended.as_slice(), [Ok(_)]));
        let silent: Vec<_> = lively(one().chain(stream::pending())).collect().await;
        assert!(matches!(silent.as_slice(), [Ok(_), Err(error)] if error.kind() == io::ErrorKind::TimedOut));
    }

    #[tokio::test]
    async fn a_name_that_leads_to_a_private_address_resolves_to_nothing() {
        let found = PublicOnly.resolve("localhost".parse().unwrap()).await;
        assert!(found.is_err());
    }
}
