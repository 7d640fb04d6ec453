//! Connections on behalf of callers. Of the two HTTP clients, one reaches only public addresses, whatever a name resolves
//! to, and one is for hosts that the operator has listed. They are created on first use, because a client holds megabytes
//! of certificates and many gateways never need one.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use egress::{AddressClass, classify};
use futures_util::{Stream, StreamExt as _, stream};
use reqwest::Client;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;
use tokio::time::timeout;
use url::{Host, Url};

/// The connect timeout.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The timeout until a response starts, and between two chunks of it. Callers enforce it themselves: a timeout of the
/// HTTP client would also count the time for sending, and a large push takes longer.
pub(crate) const SILENCE_TIMEOUT: Duration = Duration::from_mins(2);

/// The maximum number of addresses of one host that are tried.
const MAX_ADDRESSES: usize = 4;

/// The two HTTP clients.
#[derive(Default)]
pub(crate) struct Outbound {
    public: OnceLock<Client>,
    named: OnceLock<Client>,
}

impl Outbound {
    /// The client that reaches only public addresses.
    pub(crate) fn public(&self) -> reqwest::Result<&Client> {
        get_or_create(&self.public, || builder().dns_resolver(PublicOnly).build())
    }

    /// The client that may connect to this URL. Private addresses are allowed only if the operator has listed their
    /// `host:port`.
    pub(crate) fn client_for(&self, allowed: &[String], url: &Url) -> Option<reqwest::Result<&Client>> {
        if is_allowed(allowed, url) {
            return Some(self.named());
        }
        let literal = match url.host()? {
            Host::Domain(_) => None,
            Host::Ipv4(address) => Some(IpAddr::from(address)),
            Host::Ipv6(address) => Some(IpAddr::from(address)),
        };
        let public = literal.is_none_or(|address| classify(address) == AddressClass::Public);
        public.then(|| self.public())
    }

    /// The client for hosts that the operator has listed.
    pub(crate) fn named(&self) -> reqwest::Result<&Client> {
        get_or_create(&self.named, || builder().build())
    }
}

/// Parses the name or the address of a host; of an address in one of its many spellings, the usual one.
pub(crate) fn parse_host(text: &str) -> Option<Host> {
    Host::parse(text).ok().filter(|host| host.to_string().len() <= 253)
}

/// Whether the operator has listed this host and port.
pub(crate) fn is_listed(allowed: &[String], host: &Host, port: u16) -> bool {
    allowed.contains(&format!("{host}:{port}"))
}

/// The addresses of a host that the gateway may connect to, for protocols other than HTTP: the public ones, or all if the
/// operator has listed the host. Connect to these, not to the name.
pub(crate) async fn addresses(
    allowed: &[String],
    host: &Host,
    port: u16,
) -> Result<Vec<SocketAddr>, &'static str> {
    let found = match host {
        Host::Ipv4(address) => vec![SocketAddr::from((*address, port))],
        Host::Ipv6(address) => vec![SocketAddr::from((*address, port))],
        Host::Domain(name) => {
            let found = timeout(CONNECT_TIMEOUT, tokio::net::lookup_host((name.as_str(), port))).await;
            found.ok().and_then(Result::ok).ok_or("the name of its host cannot be resolved")?.collect()
        }
    };
    let listed = is_listed(allowed, host, port);
    let usable = |address: &SocketAddr| listed || classify(address.ip()) == AddressClass::Public;
    let usable: Vec<_> = found.into_iter().filter(usable).take(MAX_ADDRESSES).collect();
    if usable.is_empty() {
        return Err("its address is private: name its host and port in CONNECTOR_ALLOWED_HOSTS");
    }
    Ok(usable)
}

/// Whether the operator has listed the host and port of this URL.
pub(crate) fn is_allowed(allowed: &[String], url: &Url) -> bool {
    let place = url.host_str().zip(url.port_or_known_default());
    place.is_some_and(|(host, port)| allowed.contains(&format!("{host}:{port}")))
}

/// Returns the client, and creates it on first use. If two threads create it at once, the first one wins.
fn get_or_create(
    cell: &OnceLock<Client>,
    make: impl Fn() -> reqwest::Result<Client>,
) -> reqwest::Result<&Client> {
    match cell.get() {
        Some(client) => Ok(client),
        None => make().map(|client| cell.get_or_init(|| client)),
    }
}

/// Redirects are not followed: one would send a credential to wherever it points, and bypass the address check.
fn builder() -> reqwest::ClientBuilder {
    Client::builder().no_proxy().redirect(Policy::none()).connect_timeout(CONNECT_TIMEOUT)
}

/// The chunks of a response. A response that stalls for too long ends with an error.
pub(crate) fn lively(
    pieces: impl Stream<Item = reqwest::Result<Bytes>> + Send + 'static,
) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    stream::unfold(Some(Box::pin(pieces)), |pieces| async {
        let mut pieces = pieces?;
        match timeout(SILENCE_TIMEOUT, pieces.next()).await {
            Ok(piece) => Some((piece?.map_err(|_| io::ErrorKind::ConnectionReset.into()), Some(pieces))),
            Err(_) => Some((Err(io::ErrorKind::TimedOut.into()), None)),
        }
    })
}

/// A DNS resolver that returns only public addresses. The client connects to exactly the addresses that were checked.
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
    async fn a_stalled_response_is_an_error() {
        let one = || stream::iter([Ok(Bytes::from("x"))]);
        let ended: Vec<_> = lively(one()).collect().await;
        assert!(matches!(ended.as_slice(), [Ok(_)]));
        let silent: Vec<_> = lively(one().chain(stream::pending())).collect().await;
        assert!(matches!(silent.as_slice(), [Ok(_), Err(error)] if error.kind() == io::ErrorKind::TimedOut));
    }

    #[test]
    fn only_public_and_listed_private_addresses_are_connected_to() {
        let allowed = ["127.0.0.1:9000".to_owned(), "tools.internal:80".to_owned()];
        let outbound = Outbound::default();
        let way = |url: &str| outbound.client_for(&allowed, &Url::parse(url).unwrap()).is_some();
        assert!(
            way("http://127.0.0.1:9000/x") && way("http://tools.internal/x") && way("https://example.com/")
        );
        for refused in [
            "http://127.0.0.1:9001/",
            "http://[::1]/",
            "http://[::ffff:127.0.0.1]/",
            "http://0x7f.1/",
            "http://2130706433/",
            "http://169.254.169.254/latest/meta-data",
            "http://10.0.0.1/",
        ] {
            assert!(!way(refused), "{refused}");
        }
    }

    #[tokio::test]
    async fn connections_of_other_protocols_have_the_same_guard() {
        let allowed = ["127.0.0.1:5432".to_owned(), "localhost:5432".to_owned(), "[::1]:5432".to_owned()];
        let found = async |host: &str, port| addresses(&allowed, &parse_host(host).unwrap(), port).await;
        for listed in ["127.0.0.1", "0x7f.1", "localhost", "[::1]"] {
            assert!(found(listed, 5432).await.is_ok(), "{listed}");
            assert!(found(listed, 5433).await.is_err(), "{listed}");
        }
        for private in ["10.0.0.1", "169.254.169.254", "[::ffff:10.0.0.1]", "2130706434"] {
            assert!(found(private, 5432).await.is_err(), "{private}");
        }
        assert!(found("8.8.8.8", 5432).await.is_ok());
        for wrong in ["", "a b", "a/b", "a:1", "::1"] {
            assert!(parse_host(wrong).is_none(), "{wrong}");
        }
    }

    #[tokio::test]
    async fn a_name_that_leads_to_a_private_address_resolves_to_nothing() {
        let found = PublicOnly.resolve("localhost".parse().unwrap()).await;
        assert!(found.is_err());
    }
}
