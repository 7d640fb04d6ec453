//! What an organisation lets its sandboxes reach: pure decisions, each with the rule that made it.
//!
//! - Ports 80 and 443 are open by default. Any other is open only where an allow rule names it; 25 (mail between
//!   servers) never is, because a gateway that sends spam is shut off by its provider.
//! - `example.com` is that host alone, `*.example.com` all below it and not itself, `*` every public host.
//!   An address is written as it is; `[…]` around IPv6.
//! - An allow rule without a port means 80 and 443, a deny rule without one means all. Deny wins.
//! - A deny rule for an address also holds for names that resolve to it. A deny rule for a name cannot know
//!   the name's addresses: what must be kept in is kept by [`Mode::AllowList`], not by denying.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use crate::address::AddressClass;
use crate::host::{Host, Target, TargetError, parse_port, split_port};

const OPEN_PORTS: [u16; 2] = [80, 443];
const NEVER: u16 = 25;

/// How much is allowed where no rule speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Every public host.
    Open,
    /// What the allow list names.
    AllowList,
    /// Nothing, whatever the lists say.
    Offline,
}

/// The rules of one sandbox at one moment.
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
    Below(String),
    One(Host),
}

/// Why something may be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Grounds {
    /// The mode is open and the port is 80 or 443.
    Public,
    /// This entry of the allow list.
    Listed(HostRule),
    /// This exception for a host of a private network.
    Private(Target),
}

/// Why a target is refused by the rules alone, before it is resolved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Denial {
    #[error("this sandbox is offline: no network access is allowed")]
    Offline,
    #[error("{0} is refused by the organisation's deny rule `{1}`: an administrator can change it")]
    Denied(Target, HostRule),
    #[error("{0} is not on the organisation's allow list: ask an administrator to add it")]
    NotListed(Target),
    #[error("port {port} of {host} is closed: 80 and 443 are open, any other needs an allow rule such as `{host}:{port}`", host = .0.host, port = .0.port)]
    PortClosed(Target),
    #[error("port {NEVER} (mail between servers) is never open: use a mail service with an HTTPS interface")]
    PortNever,
}

/// Why an entry of a list was refused, in words for the person who wrote it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    #[error(
        "`{entry}`: {problem}; write `example.com`, `*.example.com`, `example.com:22` or `example.com:8000-8080`"
    )]
    Entry { entry: String, problem: TargetError },
    #[error("`{0}` opens port {NEVER}, which is never open: leave it out")]
    PortNever(String),
    #[error("`{entry}`: {problem}; an exception for a private host is written `host:port`")]
    Exception { entry: String, problem: TargetError },
}

impl Rules {
    /// No entries in any list.
    pub fn new(mode: Mode) -> Self {
        Self { mode, allow: Vec::new(), deny: Vec::new(), private: Vec::new() }
    }

    /// Adds an entry to the allow list.
    pub fn allow(mut self, entry: &str) -> Result<Self, RuleError> {
        let rule = HostRule::parse(entry)?;
        if rule.ports.as_ref().is_some_and(|ports| ports.contains(&NEVER)) {
            return Err(RuleError::PortNever(shown(entry)));
        }
        self.allow.push(rule);
        Ok(self)
    }

    /// Adds an entry to the deny list.
    pub fn deny(mut self, entry: &str) -> Result<Self, RuleError> {
        self.deny.push(HostRule::parse(entry)?);
        Ok(self)
    }

    /// Adds an exception, `host:port`. As a name it lifts the check for private, carrier-shared and
    /// unique-local addresses; as an address it lifts the check for exactly that one. Metadata stays refused.
    pub fn allow_private(mut self, entry: &str) -> Result<Self, RuleError> {
        let exception = Target::parse(entry, None)
            .map_err(|problem| RuleError::Exception { entry: shown(entry), problem })?;
        if exception.port == NEVER {
            return Err(RuleError::PortNever(shown(entry)));
        }
        self.private.push(exception);
        Ok(self)
    }

    /// Decides before anything is resolved.
    pub fn decide(&self, target: &Target) -> Result<Grounds, Denial> {
        if self.mode == Mode::Offline {
            return Err(Denial::Offline);
        }
        if target.port == NEVER {
            return Err(Denial::PortNever);
        }
        if let Some(rule) = self.deny.iter().find(|rule| rule.denies(&target.host, target.port)) {
            return Err(Denial::Denied(target.clone(), rule.clone()));
        }
        if let Some(exception) = self.private.iter().find(|exception| *exception == target) {
            return Ok(Grounds::Private(exception.clone()));
        }
        if let Some(rule) = self.allow.iter().find(|rule| rule.allows(target)) {
            return Ok(Grounds::Listed(rule.clone()));
        }
        match self.mode {
            Mode::Open if OPEN_PORTS.contains(&target.port) => Ok(Grounds::Public),
            Mode::Open => Err(Denial::PortClosed(target.clone())),
            Mode::AllowList | Mode::Offline => Err(Denial::NotListed(target.clone())),
        }
    }

    /// The deny rule that names an address which a name resolved to.
    pub(crate) fn denies_address(&self, address: IpAddr, port: u16) -> Option<&HostRule> {
        let host = Host::Address(address.to_canonical());
        self.deny.iter().find(|rule| matches!(rule.hosts, Hosts::One(_)) && rule.denies(&host, port))
    }
}

impl Grounds {
    /// Whether these grounds reach an address of this class.
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
    /// Reads `host`, `*.host` or `*`, with an optional `:port` or `:first-last`.
    pub fn parse(entry: &str) -> Result<Self, RuleError> {
        let wrong = |problem| RuleError::Entry { entry: shown(entry), problem };
        let (host, ports) = split_port(entry);
        let ports = ports.map(parse_ports).transpose().map_err(wrong)?;
        let hosts = match host.strip_prefix("*.") {
            _ if host == "*" => Hosts::Every,
            None => Hosts::One(Host::parse(host).map_err(wrong)?),
            Some(parent) => match Host::parse(parent).map_err(wrong)? {
                Host::Name(name) => Hosts::Below(name),
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
            (Self::Below(parent), Host::Name(name)) => {
                name.strip_suffix(parent.as_str()).is_some_and(|rest| rest.ends_with('.'))
            }
            (Self::Below(_), Host::Address(_)) => false,
        }
    }
}

fn parse_ports(text: &str) -> Result<RangeInclusive<u16>, TargetError> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let ports = parse_port(first)?..=parse_port(last)?;
    if ports.is_empty() { Err(TargetError::Port) } else { Ok(ports) }
}

/// The entry as it may be shown in a message: no control characters, and not without end.
fn shown(entry: &str) -> String {
    entry.chars().filter(|letter| !letter.is_control()).take(100).collect()
}

impl fmt::Display for HostRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.hosts {
            Hosts::Every => f.write_str("*")?,
            Hosts::Below(parent) => write!(f, "*.{parent}")?,
            Hosts::One(host) => host.fmt(f)?,
        }
        match &self.ports {
            None => Ok(()),
            Some(ports) if ports.start() == ports.end() => write!(f, ":{}", ports.start()),
            Some(ports) => write!(f, ":{}-{}", ports.start(), ports.end()),
        }
    }
}

impl fmt::Display for Grounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Public => f.write_str("public hosts are allowed"),
            Self::Listed(rule) => write!(f, "allow rule `{rule}`"),
            Self::Private(target) => write!(f, "private exception `{target}`"),
        }
    }
}
