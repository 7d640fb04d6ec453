//! Connects to an allowed target: resolve once, check every address, connect only to a checked one. There is no
//! second lookup, so DNS rebinding (a name that changes its address in between) gains nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::address::{AddressClass, AddressPolicy};
use crate::host::{Host, Target};
use crate::limits::Limits;
use crate::record::Failure;
use crate::resolve::Resolve;
use crate::rules::{AllowReason, Denial, Rules};

/// At most this many addresses of a name are tried.
const MAX_ADDRESSES: usize = 8;

/// Resolves and connects to targets.
#[derive(Clone)]
pub(crate) struct Dialer {
    pub(crate) resolver: Arc<dyn Resolve>,
    pub(crate) addresses: AddressPolicy,
    pub(crate) limits: Limits,
}

#[derive(Debug)]
pub(crate) enum DialError {
    Denied(Denial),
    /// One of the resolved addresses is not allowed for sandboxes.
    Address(IpAddr, AddressClass),
    Failed(Failure),
}

impl Dialer {
    pub(crate) async fn dial(
        &self,
        rules: &Rules,
        target: &Target,
        grounds: &AllowReason,
    ) -> Result<(TcpStream, SocketAddr), DialError> {
        let addresses = self.lookup(&target.host).await?;
        // One bad address refuses the name: a name with public and private addresses is an attack or a mistake.
        for address in &addresses {
            self.check(rules, target, grounds, *address)?;
        }
        let connecting = self.connect(&addresses, target.port);
        timeout(self.limits.connect, connecting).await.map_err(|_| DialError::Failed(Failure::TimedOut))?
    }

    async fn lookup(&self, host: &Host) -> Result<Vec<IpAddr>, DialError> {
        let name = match host {
            Host::Address(address) => return Ok(vec![*address]),
            Host::Name(name) => name,
        };
        let lookup = timeout(self.limits.lookup, self.resolver.lookup(name));
        let addresses = match lookup.await {
            Ok(Ok(addresses)) if !addresses.is_empty() => addresses,
            Ok(_) => return Err(DialError::Failed(Failure::NotFound)),
            Err(_) => return Err(DialError::Failed(Failure::TimedOut)),
        };
        Ok(addresses.into_iter().map(|address| address.to_canonical()).collect())
    }

    /// Checks whether the sandbox may connect to this address on behalf of the target.
    pub(crate) fn check(
        &self,
        rules: &Rules,
        target: &Target,
        grounds: &AllowReason,
        address: IpAddr,
    ) -> Result<(), DialError> {
        if let Some(rule) = rules.denies_address(address, target.port) {
            return Err(DialError::Denied(Denial::Denied(target.clone(), rule.clone())));
        }
        let mut class = self.addresses.classify(address);
        if class == AddressClass::Public && !self.addresses.is_stand_in(address) && is_own(address) {
            class = AddressClass::Own;
        }
        if grounds.reach(class) { Ok(()) } else { Err(DialError::Address(address, class)) }
    }

    /// Tries the addresses in order, each with an equal share of the time.
    async fn connect(&self, addresses: &[IpAddr], port: u16) -> Result<(TcpStream, SocketAddr), DialError> {
        let tried = addresses.len().min(MAX_ADDRESSES);
        let share = self.limits.connect / u32::try_from(tried).unwrap_or(1).max(1);
        let mut last = Failure::Unreachable;
        for address in &addresses[..tried] {
            let address = SocketAddr::new(*address, port);
            match timeout(share, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    // Without TCP_NODELAY, small writes of an interactive tunnel would be delayed.
                    let _ = stream.set_nodelay(true);
                    return Ok((stream, address));
                }
                Ok(Err(_)) => last = Failure::Unreachable,
                Err(_) => last = Failure::TimedOut,
            }
        }
        Err(DialError::Failed(last))
    }
}

/// Whether the address belongs to this machine. Only a local address can be bound. On hosts that allow binding any
/// address (`ip_nonlocal_bind`) we consult the routing table instead, which knows the primary addresses: it selects
/// our own address as the source for itself. Neither method sends a packet.
fn is_own(address: IpAddr) -> bool {
    let (any, unassigned): (IpAddr, IpAddr) = match address {
        IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(192, 0, 2, 1).into()),
        IpAddr::V6(_) => {
            (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into())
        }
    };
    let bound = |address: IpAddr| UdpSocket::bind((address, 0));
    if bound(unassigned).is_err() {
        return bound(address).is_ok();
    }
    let source = bound(any).and_then(|socket| {
        socket.connect((address, 9))?;
        socket.local_addr()
    });
    source.is_ok_and(|source| source.ip() == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_own_recognises_local_addresses() {
        assert!(is_own(Ipv4Addr::LOCALHOST.into()));
        assert!(is_own(Ipv4Addr::new(127, 9, 9, 9).into()));
        assert!(!is_own(Ipv4Addr::new(192, 0, 2, 1).into()));
    }
}
