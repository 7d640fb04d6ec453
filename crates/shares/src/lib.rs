//! Fair shares: no caller may take so much of a scarce resource that others get none.
//!
//! There are two kinds of limits. A [`Pool`] bounds what is held at one time (slots, bytes of memory), and a [`Rate`]
//! bounds requests over time. Both count by [`Holder`], so that a request counts for its session and for its
//! organization. A [`Window`] bounds the requests of a single caller in any minute exactly.
//!
//! A pool gives each session a fixed share. An organization (or an unauthenticated address) may hold as much as is
//! still free: one of them alone gets half of the total, `n` greedy ones get `1/(n+1)` each, and some is left for the
//! next one however many are greedy. In networking this is known as dynamic thresholds.

mod pool;
mod rate;
mod window;

use std::cmp::Ordering;
use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use proto::{ApiKeyId, OrgId, SessionId, UserId};

pub use pool::{Held, Pool, PoolLimits};
pub use rate::{Quota, Rate, RateLimits};
pub use window::Window;

/// An entity whose usage is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Holder {
    Session(SessionId),
    User(UserId),
    Key(ApiKeyId),
    Org(OrgId),
    /// Services without an organization. They are the operator's programs, and are counted together.
    Services,
    /// Callers without a valid credential.
    Address(IpAddr),
}

/// The holders whose shares a caller's usage counts against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Party {
    first: Holder,
    second: Option<Holder>,
}

impl Party {
    /// Work for one session, such as all requests of its sandbox.
    pub fn session(session: SessionId, org: OrgId) -> Self {
        Self { first: Holder::Session(session), second: Some(Holder::Org(org)) }
    }

    /// A member of an organization, with a share of its own, so that one member cannot use up what the others have.
    pub fn user(user: UserId, org: OrgId) -> Self {
        Self { first: Holder::User(user), second: Some(Holder::Org(org)) }
    }

    /// A program with an API key, with a share of its own.
    pub fn key(key: ApiKeyId, org: OrgId) -> Self {
        Self { first: Holder::Key(key), second: Some(Holder::Org(org)) }
    }

    pub fn org(org: OrgId) -> Self {
        Self { first: Holder::Org(org), second: None }
    }

    /// A service token without an organization.
    pub fn services() -> Self {
        Self { first: Holder::Services, second: None }
    }

    /// An unauthenticated caller. `None` for a caller inside a sandbox, which has no address. IPv6 addresses count by
    /// /64 prefix, because one client usually has 2^64 of them.
    pub fn address(address: Option<IpAddr>) -> Self {
        let address = match address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)) {
            IpAddr::V6(address) => {
                let prefix = address.to_bits() & (u128::MAX << 64);
                address.to_ipv4_mapped().map_or_else(|| Ipv6Addr::from_bits(prefix).into(), IpAddr::V4)
            }
            address @ IpAddr::V4(_) => address,
        };
        Self { first: Holder::Address(address), second: None }
    }

    fn holders(&self) -> impl Iterator<Item = Holder> {
        [Some(self.first), self.second].into_iter().flatten()
    }
}

/// Keeps the half of the holders with the latest times. Of those with the time in the middle, it does not matter which.
fn keep_later_half<V>(holders: &mut HashMap<Holder, V>, time: impl Fn(&V) -> Duration) {
    let mut times: Vec<Duration> = holders.values().map(&time).collect();
    let kept = times.len().div_ceil(2);
    let (_, &mut middle, later) = times.select_nth_unstable(holders.len() - kept);
    let mut equals = kept - later.iter().filter(|time| **time > middle).count();
    holders.retain(|_, value| match time(value).cmp(&middle) {
        Ordering::Less => false,
        Ordering::Equal if equals == 0 => false,
        Ordering::Equal => {
            equals -= 1;
            true
        }
        Ordering::Greater => true,
    });
}

/// A refusal, because a share is used up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverShare {
    /// The resource that is used up, by [`PoolLimits::name`] or [`RateLimits::name`].
    pub what: &'static str,
    pub whose: ShareOwner,
    /// The time after which a retry makes sense.
    pub retry_after: Duration,
}

/// The owner of the share that is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareOwner {
    Session,
    User,
    Key,
    Org,
    Services,
    Address,
    /// The caller is within its share, but all others together hold the rest.
    Everyone,
}

impl ShareOwner {
    fn label(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::User => "user",
            Self::Key => "key",
            Self::Org => "organization",
            Self::Services => "services",
            Self::Address => "address",
            Self::Everyone => "total",
        }
    }
}

impl From<Holder> for ShareOwner {
    fn from(holder: Holder) -> Self {
        match holder {
            Holder::Session(_) => Self::Session,
            Holder::User(_) => Self::User,
            Holder::Key(_) => Self::Key,
            Holder::Org(_) => Self::Org,
            Holder::Services => Self::Services,
            Holder::Address(_) => Self::Address,
        }
    }
}

impl OverShare {
    fn new(what: &'static str, whose: ShareOwner, retry_after: Duration) -> Self {
        metrics::counter!("proliferate_share_refused_total", "share" => what, "owner" => whose.label())
            .increment(1);
        Self { what, whose, retry_after }
    }

    /// The delay for `Retry-After`, rounded up to whole seconds.
    pub fn retry_after_seconds(&self) -> u64 {
        self.retry_after.as_secs() + u64::from(self.retry_after.subsec_nanos() > 0)
    }
}

impl fmt::Display for OverShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, whose, .. } = self;
        let seconds = self.retry_after_seconds();
        match whose {
            ShareOwner::Session => write!(f, "This session has used its share of {what}")?,
            ShareOwner::User => write!(f, "You have used your share of {what}")?,
            ShareOwner::Key => write!(f, "This API key has used its share of {what}")?,
            ShareOwner::Org => write!(f, "This organization has used its share of {what}")?,
            ShareOwner::Services => write!(f, "Services have used their share of {what}")?,
            ShareOwner::Address => write!(f, "This address has used its share of {what}")?,
            ShareOwner::Everyone => write!(f, "The gateway has no {what} left")?,
        }
        write!(f, "; try again in {seconds} s")
    }
}

impl std::error::Error for OverShare {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_network_is_one_holder_and_a_mapped_address_is_its_ipv4() {
        let party = |text: &str| Party::address(Some(text.parse().unwrap()));
        assert_eq!(party("2001:db8::1"), party("2001:db8::ffff:1"));
        assert_ne!(party("2001:db8::1"), party("2001:db8:0:1::1"));
        assert_eq!(party("::ffff:10.0.0.1"), party("10.0.0.1"));
        assert_ne!(party("10.0.0.1"), Party::address(None));
    }

    #[test]
    fn a_refusal_says_whose_share_is_used_up_and_when_to_come_back() {
        let refusal = OverShare::new("memory", ShareOwner::Session, Duration::from_millis(1500));
        assert_eq!(refusal.to_string(), "This session has used its share of memory; try again in 2 s");
        let refusal = OverShare::new("memory", ShareOwner::Everyone, Duration::from_secs(1));
        assert_eq!(refusal.to_string(), "The gateway has no memory left; try again in 1 s");
    }
}
