//! Address classification: a hand-written table, and a second implementation from the registries' prefixes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use egress::AddressClass::{
    Benchmarking, Broadcast, Documentation, LinkLocal, Loopback, Metadata, Multicast, Private, Public,
    Reserved, Shared, SiteLocal, Tunnelled, UniqueLocal, Unspecified,
};
use egress::{AddressClass, classify};
use proptest::prelude::*;

const CLASSIFIED_ADDRESSES: &[(&str, AddressClass)] = &[
    ("1.1.1.1", Public),
    ("8.8.8.8", Public),
    ("9.255.255.255", Public),
    ("11.0.0.0", Public),
    ("93.184.216.34", Public),
    ("100.63.255.255", Public),
    ("100.128.0.0", Public),
    ("126.255.255.255", Public),
    ("128.0.0.0", Public),
    ("168.63.129.15", Public),
    ("169.253.255.255", Public),
    ("169.255.0.0", Public),
    ("172.15.255.255", Public),
    ("172.32.0.0", Public),
    ("192.0.1.0", Public),
    ("192.167.255.255", Public),
    ("192.169.0.0", Public),
    ("198.17.255.255", Public),
    ("198.20.0.0", Public),
    ("223.255.255.255", Public),
    ("0.0.0.0", Unspecified),
    ("0.0.0.1", Reserved),
    ("0.255.255.255", Reserved),
    ("10.0.0.0", Private),
    ("10.255.255.255", Private),
    ("172.16.0.1", Private),
    ("172.31.255.255", Private),
    ("192.168.0.1", Private),
    ("100.64.0.1", Shared),
    ("100.127.255.255", Shared),
    ("127.0.0.1", Loopback),
    ("127.255.255.254", Loopback),
    ("169.254.0.1", LinkLocal),
    ("169.254.255.255", LinkLocal),
    ("169.254.169.254", Metadata),
    ("169.254.170.2", Metadata),
    ("100.100.100.200", Metadata),
    ("168.63.129.16", Metadata),
    ("192.0.0.192", Metadata),
    ("192.0.0.1", Reserved),
    ("192.0.2.1", Documentation),
    ("198.51.100.7", Documentation),
    ("203.0.113.255", Documentation),
    ("192.88.99.1", Reserved),
    ("198.18.0.1", Benchmarking),
    ("198.19.255.255", Benchmarking),
    ("224.0.0.1", Multicast),
    ("239.255.255.255", Multicast),
    ("240.0.0.1", Reserved),
    ("255.255.255.254", Reserved),
    ("255.255.255.255", Broadcast),
    ("2606:4700::1111", Public),
    ("2a00:1450:4001::8a", Public),
    ("2001:200::1", Public),
    ("3ffe::1", Public),
    ("::", Unspecified),
    ("::1", Loopback),
    ("::2", Reserved),
    ("::7f00:1", Loopback),
    ("::808:808", Tunnelled),
    ("::ffff:127.0.0.1", Loopback),
    ("::ffff:10.0.0.1", Private),
    ("::ffff:169.254.169.254", Metadata),
    ("::ffff:8.8.8.8", Public),
    ("::ffff:0:10.0.0.1", Private),
    ("::ffff:0:8.8.8.8", Tunnelled),
    ("64:ff9b::a00:1", Private),
    ("64:ff9b::a9fe:a9fe", Metadata),
    ("64:ff9b::808:808", Public),
    ("64:ff9b:1::a00:1", Reserved),
    ("64:ff9b:0:0:0:1:808:808", Reserved),
    ("2002:7f00:1::", Loopback),
    ("2002:a9fe:a9fe::1", Metadata),
    ("2002:808:808::1", Tunnelled),
    // Teredo with a server at 10.0.0.1, with a client at 127.0.0.1, and with public addresses only.
    ("2001:0:a00:1::", Private),
    ("2001:0:808:808:0:0:80ff:fffe", Loopback),
    ("2001:0:808:808:0:0:f7f7:f7f7", Tunnelled),
    ("2001:2::1", Benchmarking),
    ("2001:10::1", Reserved),
    ("2001:1ff:ffff::1", Reserved),
    ("2001:db8::1", Documentation),
    ("3fff:fff::1", Documentation),
    ("100::1", Reserved),
    ("1fff:ffff::1", Reserved),
    ("4000::1", Reserved),
    ("5f00::1", Reserved),
    ("fc00::1", UniqueLocal),
    ("fdff:ffff::1", UniqueLocal),
    ("fd00:ec2::254", Metadata),
    ("fd20:ce::254", Metadata),
    ("fe80::1", LinkLocal),
    ("febf::1", LinkLocal),
    ("fec0::1", SiteLocal),
    ("feff::1", SiteLocal),
    ("ff02::1", Multicast),
    ("fe00::1", Reserved),
];

#[test]
fn table_of_addresses_is_classified() {
    assert!(CLASSIFIED_ADDRESSES.len() >= 60);
    for (address, class) in CLASSIFIED_ADDRESSES {
        assert_eq!(classify(address.parse().unwrap()), *class, "{address}");
    }
}

/// Ranges that the registries list as not globally reachable, and cloud metadata addresses.
const REFUSED_V4: &[&str] = &[
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "168.63.129.16/32",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
];
const REFUSED_V6: &[&str] =
    &["::/3", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "4000::/2", "8000::/1"];
/// Networks whose last 32 bits are an IPv4 address that decides.
const IPV4_CARRYING_PREFIXES: &[&str] = &["::ffff:0:0/96", "64:ff9b::/96"];

fn within(address: IpAddr, network: &str) -> bool {
    let (base, length) = network.split_once('/').unwrap();
    let length: u32 = length.parse().unwrap();
    match (address, base.parse().unwrap()) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros() >= length,
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros() >= length,
        _ => false,
    }
}

fn public_by_prefix(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => !REFUSED_V4.iter().any(|network| within(address, network)),
        IpAddr::V6(v6) if IPV4_CARRYING_PREFIXES.iter().any(|network| within(address, network)) => {
            let [.., a, b, c, d] = v6.octets();
            public_by_prefix(Ipv4Addr::new(a, b, c, d).into())
        }
        IpAddr::V6(_) => !REFUSED_V6.iter().any(|network| within(address, network)),
    }
}

/// Random addresses, often next to the edge of a relevant network.
fn addresses() -> impl Strategy<Value = IpAddr> {
    let networks: Vec<&str> = [REFUSED_V4, REFUSED_V6, IPV4_CARRYING_PREFIXES].concat();
    let near_edge = (prop::sample::select(networks), any::<u128>(), -2_i8..=2, any::<bool>()).prop_map(edge);
    let carried =
        (prop::sample::select(IPV4_CARRYING_PREFIXES.to_vec()), any::<u32>()).prop_map(|(carrier, low)| {
            let base: Ipv6Addr = carrier.split_once('/').unwrap().0.parse().unwrap();
            IpAddr::V6((base.to_bits() | u128::from(low)).into())
        });
    prop_oneof![
        any::<u32>().prop_map(|bits| IpAddr::V4(bits.into())),
        any::<u128>().prop_map(|bits| IpAddr::V6(bits.into())),
        near_edge,
        carried,
    ]
}

fn edge((network, inner, step, last): (&str, u128, i8, bool)) -> IpAddr {
    let (base, length) = network.split_once('/').unwrap();
    let length: u32 = length.parse().unwrap();
    let fill = if last { u128::MAX } else { inner & u128::from(u8::MAX) };
    match base.parse().unwrap() {
        IpAddr::V4(base) => {
            let host = u32::MAX.checked_shr(length).unwrap_or(0);
            #[expect(clippy::cast_possible_truncation, reason = "only the low bits are wanted")]
            let bits = base.to_bits() | (fill as u32 & host);
            IpAddr::V4(bits.wrapping_add_signed(step.into()).into())
        }
        IpAddr::V6(base) => {
            let bits = base.to_bits() | (fill & u128::MAX.checked_shr(length).unwrap_or(0));
            IpAddr::V6(bits.wrapping_add_signed(step.into()).into())
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn both_implementations_agree(address in addresses()) {
        prop_assert_eq!(classify(address) == Public, public_by_prefix(address), "{}", address);
    }
}
