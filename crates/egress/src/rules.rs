//! Decides what an organization's sandboxes may reach. The decisions are pure, and each names the rule that made
//! it.
//!
//! - Ports 80 and 443 are open by default. Other ports need an allow rule that names them. Port 25 (SMTP between
//!   servers) is never open, because providers shut down machines that send spam.
//! - `example.com` matches that host alone, `*.example.com` all names below it but not itself, `*` every public
//!   host. Addresses are written literally, IPv6 in `[…]`.
//! - An allow rule without a port means 80 and 443; a deny rule without one means all ports. Deny wins.
//! - A deny rule for an address also applies to names that resolve to it. A deny rule for a name does not cover the
//!   name's addresses: to confine a sandbox, use [`Mode::AllowList`] rather than deny rules.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use crate::address::AddressClass;
use crate::host::{Host, Target, TargetError, parse_port, split_port};

const OPEN_PORTS: [u16; 2] = [80, 443];
const BLOCKED_PORT: u16 = 25;

/// The default for targets that no rule matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Every public host.
    Open,
    /// Sandboxes reach only hosts on the allow list.
    AllowList,
    /// Sandboxes reach nothing, whatever the lists say.
    Offline,
}

/// A snapshot of the rules of one sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    mode: Mode,
    allow: Vec<HostRule>,
    deny: Vec<HostRule>,
    private: Vec<Target>,
}

/// One entry of an allow or deny list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostRule {
    hosts: Hosts,
    ports: Option<RangeInclusive<u16>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Hosts {
    Every,
    Subdomains(String),
    One(Host),
}

/// The reason why a target may be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllowReason {
    /// The mode is open and the port is 80 or 443.
    Public,
    /// An entry of the allow list matches.
    Listed(HostRule),
    /// An exception for a host in a private network matches.
    Private(Target),
}

/// Why the rules refuse a target, before it is resolved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Denial {
    #[error("this sandbox is offline: no network access is allowed")]
    Offline,
    #[error("{0} is blocked by the organization's deny rule `{1}`: ask an administrator to change it")]
    Denied(Target, HostRule),
    #[error("{0} is not on the organization's allow list: ask an administrator to add it")]
    NotListed(Target),
    #[error("port {port} of {host} is closed: 80 and 443 are open, other ports need an allow rule such as `{host}:{port}`", host = .0.host, port = .0.port)]
    PortClosed(Target),
    #[error("port {BLOCKED_PORT} (SMTP between servers) is never open: use a mail service with an HTTPS API")]
    PortBlocked,
}

/// Why a list entry is invalid, in words for the person who wrote it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    #[error(
        "`{entry}`: {problem}; write `example.com`, `*.example.com`, `example.com:22` or `example.com:8000-8080`"
    )]
    Entry { entry: String, problem: TargetError },
    #[error("`{0}` includes port {BLOCKED_PORT}, which is never open: remove it")]
    PortBlocked(String),
    #[error("`{entry}`: {problem}; an exception for a private host is written `host:port`")]
    Exception { entry: String, problem: TargetError },
}

impl Rules {
    /// Creates rules with empty lists.
    pub fn new(mode: Mode) -> Self {
        Self { mode, allow: Vec::new(), deny: Vec::new(), private: Vec::new() }
    }

    /// Adds an entry to the allow list.
    pub fn allow(mut self, entry: &str) -> Result<Self, RuleError> {
        let rule = HostRule::parse(entry)?;
        if rule.ports.as_ref().is_some_and(|ports| ports.contains(&BLOCKED_PORT)) {
            return Err(RuleError::PortBlocked(escape_entry(entry)));
        }
        self.allow.push(rule);
        Ok(self)
    }

    /// Adds an entry to the deny list.
    pub fn deny(mut self, entry: &str) -> Result<Self, RuleError> {
        self.deny.push(HostRule::parse(entry)?);
        Ok(self)
    }

    /// Adds an exception, `host:port`. For a name it permits private, carrier-shared and unique-local addresses;
    /// for an address it permits exactly that one. Metadata addresses stay refused.
    pub fn allow_private(mut self, entry: &str) -> Result<Self, RuleError> {
        let exception = Target::parse(entry, None)
            .map_err(|problem| RuleError::Exception { entry: escape_entry(entry), problem })?;
        if exception.port == BLOCKED_PORT {
            return Err(RuleError::PortBlocked(escape_entry(entry)));
        }
        self.private.push(exception);
        Ok(self)
    }

    /// Decides before the target is resolved.
    pub fn decide(&self, target: &Target) -> Result<AllowReason, Denial> {
        if self.mode == Mode::Offline {
            return Err(Denial::Offline);
        }
        if target.port == BLOCKED_PORT {
            return Err(Denial::PortBlocked);
        }
        if let Some(rule) = self.deny.iter().find(|rule| rule.denies(&target.host, target.port)) {
            return Err(Denial::Denied(target.clone(), rule.clone()));
        }
        if let Some(exception) = self.private.iter().find(|exception| *exception == target) {
            return Ok(AllowReason::Private(exception.clone()));
        }
        if let Some(rule) = self.allow.iter().find(|rule| rule.allows(target)) {
            return Ok(AllowReason::Listed(rule.clone()));
        }
        match self.mode {
            Mode::Open if OPEN_PORTS.contains(&target.port) => Ok(AllowReason::Public),
            Mode::Open => Err(Denial::PortClosed(target.clone())),
            Mode::AllowList | Mode::Offline => Err(Denial::NotListed(target.clone())),
        }
    }

    /// The deny rule that matches an address which a name resolved to.
    pub(crate) fn denies_address(&self, address: IpAddr, port: u16) -> Option<&HostRule> {
        let host = Host::Address(address.to_canonical());
        self.deny.iter().find(|rule| matches!(rule.hosts, Hosts::One(_)) && rule.denies(&host, port))
    }
}

impl AllowReason {
    /// Whether these grounds permit an address of this class.
    pub(crate) fn reach(&self, class: AddressClass) -> bool {
        use AddressClass as Class;
        match (self, class) {
            (_, Class::Public) => true,
            (Self::Private(Target { host: Host::Name(_), .. }), class) => {
                matches!(class, Class::Private | Class::Shared | Class::UniqueLocal)
            }
            (Self::Private(Target { host: Host::Address(_), .. }), class) => class != Class::Metadata,
            (Self::Public | Self::Listed(_), _) => false,
        }
    }
}

impl HostRule {
    /// Parses `host`, `*.host` or `*`, with an optional `:port` or `:first-last`.
    pub fn parse(entry: &str) -> Result<Self, RuleError> {
        let wrong = |problem| RuleError::Entry { entry: escape_entry(entry), problem };
        let (host, ports) = split_port(entry);
        let ports = ports.map(parse_ports).transpose().map_err(wrong)?;
        let hosts = match host.strip_prefix("*.") {
            _ if host == "*" => Hosts::Every,
            None => Hosts::One(Host::parse(host).map_err(wrong)?),
            Some(parent) => match Host::parse(parent).map_err(wrong)? {
                Host::Name(name) => Hosts::Subdomains(name),
                Host::Address(_) => return Err(wrong(TargetError::Host)),
            },
        };
        Ok(Self { hosts, ports })
    }

    fn allows(&self, target: &Target) -> bool {
        let port = match &self.ports {
            Some(ports) => ports.contains(&target.port),
            None => OPEN_PORTS.contains(&target.port),
        };
        port && self.hosts.contain(&target.host)
    }

    fn denies(&self, host: &Host, port: u16) -> bool {
        self.ports.as_ref().is_none_or(|ports| ports.contains(&port)) && self.hosts.contain(host)
    }
}

impl Hosts {
    fn contain(&self, host: &Host) -> bool {
        match (self, host) {
            (Self::Every, _) => true,
            (Self::One(own), host) => own == host,
            (Self::Subdomains(parent), Host::Name(name)) => {
                name.strip_suffix(parent.as_str()).is_some_and(|rest| rest.ends_with('.'))
            }
            (Self::Subdomains(_), Host::Address(_)) => false,
        }
    }
}

fn parse_ports(text: &str) -> Result<RangeInclusive<u16>, TargetError> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let ports = parse_port(first)?..=parse_port(last)?;
    if ports.is_empty() { Err(TargetError::Port) } else { Ok(ports) }
}

/// Makes the entry safe to show in a message: no control characters, limited length.
fn escape_entry(entry: &str) -> String {
    entry.chars().filter(|letter| !letter.is_control()).take(100).collect()
}

impl fmt::Display for HostRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.hosts {
            Hosts::Every => f.write_str("*")?,
            Hosts::Subdomains(parent) => write!(f, "*.{parent}")?,
            Hosts::One(host) => host.fmt(f)?,
        }
        match &self.ports {
            None => Ok(()),
            Some(ports) if ports.start() == ports.end() => write!(f, ":{}", ports.start()),
            Some(ports) => write!(f, ":{}-{}", ports.start(), ports.end()),
        }
    }
}

impl fmt::Display for AllowReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Public => f.write_str("public hosts are allowed"),
            Self::Listed(rule) => write!(f, "allow rule `{rule}`"),
            Self::Private(target) => write!(f, "private exception `{target}`"),
        }
    }
}
