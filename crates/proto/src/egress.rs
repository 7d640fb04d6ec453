//! The vocabulary of network access: what sandboxes may reach, and how each attempt ended.

use crate::string_enums::string_enums;

string_enums! {
    /// The hosts that the sandboxes of an organization may reach if no rule applies.
    EgressMode as "egress mode" {
        /// Sandboxes may reach all public hosts.
        Open = "open",
        /// Sandboxes may reach only hosts on the allow list.
        AllowList = "allow_list",
        /// Sandboxes have no network access.
        Offline = "offline",
    }

    /// How a sandbox tried to connect.
    EgressKind as "egress kind" {
        /// A CONNECT tunnel, whose content the gateway cannot see.
        Connect = "connect",
        /// A plain HTTP request.
        Http = "http",
        /// The request could not be parsed.
        Unknown = "unknown",
    }

    /// How an attempt to connect ended.
    EgressOutcome as "egress outcome" {
        Complete = "complete",
        /// A rule or an address check denied the connection.
        Refused = "refused",
        /// The connection was allowed but did not complete.
        Failed = "failed",
        /// The sandbox was stopped while the connection was open.
        Cancelled = "cancelled",
    }
}
