//! The vocabulary of integrations: the vendors that can be connected, and whether a connection is in use.

use crate::string_enums::string_enums;

string_enums! {
    /// A vendor whose API has actions.
    IntegrationProvider as "provider" {
        Linear = "linear",
        Sentry = "sentry",
        Slack = "slack",
        Github = "github",
    }

    /// Whether an integration can be used.
    IntegrationStatus as "integration status" {
        /// Sessions that are connected to it can use its actions.
        Active = "active",
        /// The actions of the integration cannot be used.
        Disabled = "disabled",
    }
}
