//! Parses where a client wants to connect. The same parsed value is both checked and used: filters are bypassed
//! when a second parser reads `0x7f.1` or `a.com\@b.com` differently.

use std::fmt;
use std::net::IpAddr;

/// The longest name in the DNS.
const MAX_NAME: usize = 253;
/// The longest label of a name.
const MAX_LABEL: usize = 63;

/// A host in normal form: all spellings of the same host compare equal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    /// Lower case, punycode, without a trailing dot.
    Name(String),
    /// Includes spellings such as `0x7f.1`, `2130706433` or `[::ffff:127.0.0.1]`.
    Address(IpAddr),
}

/// A host and a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Target {
    pub host: Host,
    pub port: u16,
}

/// Why a host or port cannot be parsed. The error does not contain the bytes, which are not safe to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum TargetError {
    #[error("the host is not a valid name or address")]
    Host,
    #[error("the port is missing or is not a number from 1 to 65535")]
    Port,
}

impl Host {
    /// Parses a name (in any script), an IPv4 address in any spelling, or an IPv6 address in brackets.
    pub fn parse(text: &str) -> Result<Self, TargetError> {
        match url::Host::parse(text).map_err(|_| TargetError::Host)? {
            url::Host::Ipv4(address) => Ok(Self::Address(address.into())),
            url::Host::Ipv6(address) => Ok(Self::Address(IpAddr::V6(address).to_canonical())),
            url::Host::Domain(name) => {
                let name = name.strip_suffix('.').unwrap_or(&name);
                if is_plain_name(name) { Ok(Self::Name(name.to_owned())) } else { Err(TargetError::Host) }
            }
        }
    }
}

impl Target {
    /// Parses `host:port`, or `host` if there is a default port.
    pub fn parse(text: &str, default_port: Option<u16>) -> Result<Self, TargetError> {
        let (host, port) = split_port(text);
        let port = match port {
            Some(port) => parse_port(port)?,
            None => default_port.ok_or(TargetError::Port)?,
        };
        Ok(Self { host: Host::parse(host)?, port })
    }
}

/// Splits `:port` off; colons within `[::1]` do not count.
pub(crate) fn split_port(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (text, None),
    }
}

/// Accepts only digits: implementations disagree about `+80`, ` 80` and `080`.
pub(crate) fn parse_port(text: &str) -> Result<u16, TargetError> {
    if text.starts_with('0') || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(TargetError::Port);
    }
    text.parse().map_err(|_| TargetError::Port)
}

fn is_plain_name(name: &str) -> bool {
    let plain = |label: &str| {
        let fits = !label.is_empty() && label.len() <= MAX_LABEL;
        fits && label.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_'))
    };
    name.len() <= MAX_NAME && name.split('.').all(plain)
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(IpAddr::V4(address)) => address.fmt(f),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_spellings_of_an_address_are_equal() {
        let spellings = [
            "127.0.0.1",
            "127.0.0.1.",
            "127.1",
            "127.0.1",
            "0x7f.1",
            "0X7F.0.0.1",
            "0x7f000001",
            "2130706433",
            "017700000001",
            "0177.0.0.01",
            "[::ffff:127.0.0.1]",
            "[::FFFF:7f00:1]",
            "%31%32%37.0.0.1",
            "127%2e0.0.1",
            "１２７.０.０.１",
            "127。0。0。1",
            "%EF%BC%91%EF%BC%92%EF%BC%97.1",
            "①②⑦.1",
        ];
        for spelling in spellings {
            assert_eq!(Host::parse(spelling), Ok(Host::Address([127, 0, 0, 1].into())), "{spelling}");
        }
    }

    #[test]
    fn all_spellings_of_a_name_are_equal() {
        for spelling in [
            "example.com",
            "EXAMPLE.com",
            "example.com.",
            "ex%61mple.com",
            "ｅxample.com",
            "exam\u{ad}ple.com",
        ] {
            assert_eq!(Host::parse(spelling), Ok(Host::Name("example.com".into())), "{spelling}");
        }
        for spelling in ["bücher.example", "BÜCHER.example.", "xn--bcher-kva.example", "b%C3%BCcher.example"]
        {
            assert_eq!(Host::parse(spelling), Ok(Host::Name("xn--bcher-kva.example".into())), "{spelling}");
        }
    }

    #[test]
    fn ambiguous_hosts_are_refused() {
        let long_label = format!("{}.com", "a".repeat(64));
        let long_name = ["a"; 200].join(".");
        let refused = [
            "",
            ".",
            "..",
            "example..com",
            "example.com..",
            ".example.com",
            "a b",
            "a\tb",
            "a\0b",
            "a%00b",
            "a%2fb",
            "a/b",
            "a\\b",
            "a@b",
            "a#b",
            "a?b",
            "a:b",
            "a%40b",
            "a%5cb",
            "%2531.com",
            "%",
            "%zz",
            "1.2.3.4.5",
            "256.1.1.1",
            "0x100000000",
            "[::1",
            "::1",
            "[::1%25lo]",
            "[fe80::1%lo]",
            "a!b",
            "a,b",
            "*.com",
            "a\u{200b}b|c",
            &long_label,
            &long_name,
        ];
        for text in refused {
            assert_eq!(Host::parse(text), Err(TargetError::Host), "{text:?}");
        }
    }

    #[test]
    fn ports_are_decimal_digits_only() {
        for text in
            ["a", "a:", "a:0", "a:+80", "a: 80", "a:080", "a:65536", "a:8e1", "a:-1", "[::1]", "a:８０"]
        {
            assert!(Target::parse(text, None).is_err(), "{text}");
        }
        assert_eq!(Target::parse("A.com:65535", None).unwrap().to_string(), "a.com:65535");
        assert_eq!(Target::parse("[2001:DB8::1]:443", None).unwrap().to_string(), "[2001:db8::1]:443");
        assert_eq!(Target::parse("[::1]", Some(80)).unwrap().to_string(), "[::1]:80");
    }
}
