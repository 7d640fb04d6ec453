//! From an allowed target to a connection: resolve once, check every answer, connect only to what was checked.
//! There is no second lookup, so a name that changes its answer in between (DNS rebinding) gains nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::address::{AddressClass, AddressPolicy};
use crate::host::{Host, Target};
use crate::limits::Limits;
use crate::record::Failure;
use crate::resolve::Resolve;
use crate::rules::{Denial, Grounds, Rules};

/// More answers than this are not tried.
const MAX_ADDRESSES: usize = 8;

/// How targets are reached.
#[derive(Clone)]
pub(crate) struct Dialer {
    pub(crate) resolver: Arc<dyn Resolve>,
    pub(crate) addresses: AddressPolicy,
    pub(crate) limits: Limits,
}

#[derive(Debug)]
pub(crate) enum DialError {
    Denied(Denial),
    /// One of the answers is no address for a sandbox.
    Address(IpAddr, AddressClass),
    Failed(Failure),
}

impl Dialer {
    pub(crate) async fn dial(
        &self,
        rules: &Rules,
        target: &Target,
        grounds: &Grounds,
    ) -> Result<(TcpStream, SocketAddr), DialError> {
        let found = self.lookup(&target.host).await?;
        // One bad answer spoils the name: a name that is public and private at once is an attack or a mistake.
        for address in &found {
            self.check(rules, target, grounds, *address)?;
        }
        let connecting = self.connect(&found, target.port);
        timeout(self.limits.connect, connecting).await.map_err(|_| DialError::Failed(Failure::TimedOut))?
    }

    async fn lookup(&self, host: &Host) -> Result<Vec<IpAddr>, DialError> {
        let name = match host {
            Host::Address(address) => return Ok(vec![*address]),
            Host::Name(name) => name,
        };
        let lookup = timeout(self.limits.lookup, self.resolver.lookup(name));
        let found = match lookup.await {
            Ok(Ok(found)) if !found.is_empty() => found,
            Ok(_) => return Err(DialError::Failed(Failure::NotFound)),
            Err(_) => return Err(DialError::Failed(Failure::TimedOut)),
        };
        Ok(found.into_iter().map(|address| address.to_canonical()).collect())
    }

    /// Whether an address may be connected to for a target.
    pub(crate) fn check(
        &self,
        rules: &Rules,
        target: &Target,
        grounds: &Grounds,
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

    /// One after the other, each with its share of the time.
    async fn connect(&self, found: &[IpAddr], port: u16) -> Result<(TcpStream, SocketAddr), DialError> {
        let tried = found.len().min(MAX_ADDRESSES);
        let share = self.limits.connect / u32::try_from(tried).unwrap_or(1).max(1);
        let mut last = Failure::Unreachable;
        for address in &found[..tried] {
            let address = SocketAddr::new(*address, port);
            match timeout(share, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    // Small writes of an interactive tunnel must not wait for each other; without it they do.
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

/// Whether this machine would talk to itself: an address can be bound only where it is at home. On hosts that let
/// any address be bound (`ip_nonlocal_bind`) the routing table is asked instead, which knows the main addresses:
/// it gives our own address as the source towards itself. Neither sends anything.
fn is_own(address: IpAddr) -> bool {
    let (any, nobodys): (IpAddr, IpAddr) = match address {
        IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(192, 0, 2, 1).into()),
        IpAddr::V6(_) => {
            (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into())
        }
    };
    let bound = |address: IpAddr| UdpSocket::bind((address, 0));
    if bound(nobodys).is_err() {
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
    fn the_machine_knows_its_own_addresses() {
        assert!(is_own(Ipv4Addr::LOCALHOST.into()));
        assert!(is_own(Ipv4Addr::new(127, 9, 9, 9).into()));
        assert!(!is_own(Ipv4Addr::new(192, 0, 2, 1).into()));
    }
}
