//! Why an operation with an MCP server failed, worded by us, and how its caller should react.

use crate::listing::{MAX_LISTING, MAX_LISTING_NODES};

/// Why an operation failed. Only `Server` and `Tool` contain text of the server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("its address is not public, and CONNECTOR_ALLOWED_HOSTS does not name it")]
    Address,
    #[error("it cannot be reached")]
    Unreachable,
    #[error("it refused the credential (HTTP {0})")]
    Credential(u16),
    #[error("its token endpoint gave no token: {0}")]
    Token(&'static str),
    #[error("it answered with a redirect, which is not followed")]
    Redirect,
    #[error("it answered HTTP {0}")]
    Status(u16),
    #[error("it did not answer in time")]
    Timeout,
    #[error("its answer is larger than {0} bytes")]
    TooLarge(usize),
    #[error(
        "its definitions of tools are too large: more than {} KiB, or more than {MAX_LISTING_NODES} values",
        MAX_LISTING / 1024
    )]
    Listing,
    #[error("the connection broke")]
    Broken,
    #[error("it does not follow the protocol: {0}")]
    Protocol(&'static str),
    #[error("it answered with error {code}: {message}")]
    Server { code: i32, message: String },
}

/// The kind of a problem, for people who set a connector up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Diagnosis {
    Auth,
    Timeout,
    Unreachable,
    Protocol,
    Unknown,
}

impl Problem {
    /// A server's own error, on one line. It is as long as an answer may be: whoever shows it redacts it before it cuts it.
    pub(crate) fn server(code: i32, message: &str) -> Self {
        let line = |c: char| if c.is_control() { ' ' } else { c };
        Self::Server { code, message: message.chars().map(line).collect() }
    }

    pub const fn diagnosis(&self) -> Diagnosis {
        match self {
            Self::Credential(_) | Self::Token(_) => Diagnosis::Auth,
            Self::Timeout => Diagnosis::Timeout,
            Self::Address | Self::Unreachable | Self::Broken => Diagnosis::Unreachable,
            Self::Redirect | Self::TooLarge(_) | Self::Listing | Self::Protocol(_) | Self::Server { .. } => {
                Diagnosis::Protocol
            }
            Self::Status(_) => Diagnosis::Unknown,
        }
    }
}

impl Diagnosis {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auth => "auth",
            Self::Timeout => "timeout",
            Self::Unreachable => "unreachable",
            Self::Protocol => "protocol",
            Self::Unknown => "unknown",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_servers_message_is_one_line() {
        let Problem::Server { message, .. } = Problem::server(-32000, &"\u{1b}[31m\r\nä".repeat(100)) else {
            panic!()
        };
        assert_eq!(message.chars().count(), 800);
        assert!(!message.contains(char::is_control));
    }
}
