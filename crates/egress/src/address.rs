//! Classifies addresses that are not part of the public internet. The proxy checks the addresses a name resolves
//! to, so this check keeps a sandbox away from the host, its network and the cloud's metadata service.

use std::collections::HashSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The purpose of an address, after the IANA registries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AddressClass {
    Public,
    Unspecified,
    Loopback,
    Private,
    /// Carrier-grade NAT (RFC 6598); many clouds also use it internally.
    Shared,
    LinkLocal,
    /// The metadata service of a cloud, which hands out credentials to any caller.
    Metadata,
    Multicast,
    Broadcast,
    Documentation,
    Benchmarking,
    Reserved,
    UniqueLocal,
    SiteLocal,
    /// IPv6 tunnelled in IPv4 by a mechanism that no public service uses any more.
    Tunnelled,
    /// An address of the gateway's own machine, where services hidden by a firewall may answer.
    Own,
}

/// Decides which addresses count as public.
#[derive(Debug, Clone, Default)]
pub struct AddressPolicy {
    stand_ins: HashSet<IpAddr>,
}

impl AddressPolicy {
    /// The policy for production: only the public internet counts as public.
    pub fn strict() -> Self {
        Self::default()
    }

    /// For tests, in which loopback addresses stand in for public hosts.
    #[must_use]
    pub fn with_stand_in(mut self, address: impl Into<IpAddr>) -> Self {
        self.stand_ins.insert(address.into());
        self
    }

    /// Classifies the address; the stand-ins of tests are public.
    pub fn classify(&self, address: IpAddr) -> AddressClass {
        if self.is_stand_in(address) { AddressClass::Public } else { classify(address) }
    }

    pub(crate) fn is_stand_in(&self, address: IpAddr) -> bool {
        self.stand_ins.contains(&address)
    }
}

/// Classifies the address, including IPv6 addresses that embed an IPv4 address.
pub fn classify(address: IpAddr) -> AddressClass {
    match address {
        IpAddr::V4(address) => classify_v4(address),
        IpAddr::V6(address) => classify_v6(address),
    }
}

/// Azure uses an ordinary public address and Oracle a reserved one, so ranges alone do not cover them.
const METADATA_V4: [Ipv4Addr; 8] = [
    Ipv4Addr::new(169, 254, 169, 254),
    Ipv4Addr::new(169, 254, 169, 253),
    Ipv4Addr::new(169, 254, 169, 123),
    Ipv4Addr::new(169, 254, 170, 2),
    Ipv4Addr::new(169, 254, 170, 23),
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(168, 63, 129, 16),
    Ipv4Addr::new(192, 0, 0, 192),
];

const METADATA_V6: [Ipv6Addr; 4] = [
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23),
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42),
];

fn classify_v4(address: Ipv4Addr) -> AddressClass {
    use AddressClass as Class;
    if METADATA_V4.contains(&address) {
        return Class::Metadata;
    }
    match address.octets() {
        [0, 0, 0, 0] => Class::Unspecified,
        [127, ..] => Class::Loopback,
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => Class::Private,
        [100, 64..=127, ..] => Class::Shared,
        [169, 254, ..] => Class::LinkLocal,
        [224..=239, ..] => Class::Multicast,
        [255, 255, 255, 255] => Class::Broadcast,
        [192, 0, 2, _] | [198, 51, 100, _] | [203, 0, 113, _] => Class::Documentation,
        [198, 18..=19, ..] => Class::Benchmarking,
        // "This network", protocol assignments, 6to4 relay anycast, and unallocated ranges.
        [0 | 240..=255, ..] | [192, 0, 0, _] | [192, 88, 99, _] => Class::Reserved,
        _ => Class::Public,
    }
}

/// Only `2000::/3` was ever allocated, so everything else is refused without a list.
fn classify_v6(address: Ipv6Addr) -> AddressClass {
    use AddressClass as Class;
    if METADATA_V6.contains(&address) {
        return Class::Metadata;
    }
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => Class::Unspecified,
        [0, 0, 0, 0, 0, 0, 0, 1] => Class::Loopback,
        // IPv4-mapped addresses, and the NAT64 prefix through which IPv6-only hosts reach IPv4.
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            classify_v4(ipv4_from(high, low))
        }
        // IPv4-compatible, IPv4-translated, 6to4.
        [0, 0, 0, 0, 0 | 0xffff, 0, high, low] | [0x2002, high, low, ..] => {
            classify_embedded(ipv4_from(high, low))
        }
        // Teredo: the server's address in the clear, the client's with inverted bits.
        [0x2001, 0, server_high, server_low, _, _, high, low] => {
            match classify_embedded(ipv4_from(server_high, server_low)) {
                Class::Tunnelled => classify_embedded(ipv4_from(!high, !low)),
                found => found,
            }
        }
        [0x2001, 2, 0, ..] => Class::Benchmarking,
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => Class::Documentation,
        [0x2001, 0..=0x1ff, ..] => Class::Reserved,
        [0x2000..=0x3fff, ..] => Class::Public,
        [0xfe80..=0xfebf, ..] => Class::LinkLocal,
        [0xfec0..=0xfeff, ..] => Class::SiteLocal,
        [0xfc00..=0xfdff, ..] => Class::UniqueLocal,
        [0xff00..=0xffff, ..] => Class::Multicast,
        _ => Class::Reserved,
    }
}

fn ipv4_from(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low))
}

/// The class of the embedded address if that is not public; otherwise the tunnel itself is the reason to refuse.
fn classify_embedded(address: Ipv4Addr) -> AddressClass {
    match classify_v4(address) {
        AddressClass::Public => AddressClass::Tunnelled,
        found => found,
    }
}

impl fmt::Display for AddressClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Public => "public",
            Self::Unspecified => "unspecified",
            Self::Loopback => "loopback",
            Self::Private => "private",
            Self::Shared => "carrier-shared",
            Self::LinkLocal => "link-local",
            Self::Metadata => "cloud metadata",
            Self::Multicast => "multicast",
            Self::Broadcast => "broadcast",
            Self::Documentation => "documentation",
            Self::Benchmarking => "benchmarking",
            Self::Reserved => "reserved",
            Self::UniqueLocal => "unique-local",
            Self::SiteLocal => "site-local",
            Self::Tunnelled => "tunnelled",
            Self::Own => "gateway's own",
        })
    }
}
