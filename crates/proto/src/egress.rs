//! The vocabulary of network access: what sandboxes may reach, and how an attempt to reach something ended.

use crate::words::words;

words! {
    /// How much sandboxes of an organisation may reach where no rule speaks.
    EgressMode as "egress mode" {
        /// All public hosts.
        Open = "open",
        /// Only hosts on the allow list.
        AllowList = "allow_list",
        /// Nothing.
        Offline = "offline",
    }

    /// How a sandbox asked.
    EgressKind as "egress kind" {
        /// A tunnel, in which the gateway sees nothing.
        Connect = "connect",
        /// A plain HTTP request.
        Http = "http",
        /// The request could not be read.
        Unknown = "unknown",
    }

    /// How an attempt ended.
    EgressOutcome as "egress outcome" {
        Complete = "complete",
        /// A rule or an address check said no.
        Refused = "refused",
        /// It was allowed and did not come to its end.
        Failed = "failed",
        /// The sandbox was stopped in the middle.
        Cancelled = "cancelled",
    }
}
