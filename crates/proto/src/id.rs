//! One type per kind of id, so that a user id can never be passed where a session id is expected.
//!
//! New ids need randomness, which this crate does not have: use the `clock` crate.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{KnownFormat, ObjectBuilder, Schema, SchemaFormat, Type};
use utoipa::{PartialSchema, ToSchema};
use uuid::Uuid;

/// The text is not an id, that is, not a hyphenated UUID. The error does not repeat the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a valid {kind} id: expected a UUID such as 0190f5d2-7c3e-7a11-8000-5b1f6c2d9e40")]
pub struct InvalidId {
    /// The expected kind of id, such as "session".
    pub kind: &'static str,
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident = $kind:literal;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Uuid);

        impl $name {
            /// The plain UUID.
            pub const fn uuid(self) -> Uuid {
                self.0
            }
        }

        impl From<Uuid> for $name {
            fn from(uuid: Uuid) -> Self {
                Self(uuid)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                parse_hyphenated(text).map(Self).ok_or(InvalidId { kind: $kind })
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0.as_hyphenated(), f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
            }
        }

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                uuid_schema(concat!("The id of one ", $kind, "."))
            }
        }

        impl ToSchema for $name {}
    )+};
}

ids! {
    /// An organization, the tenant that owns everything else.
    OrgId = "organization";
    /// A person with an account.
    UserId = "user";
    /// One agent in one sandbox, from creation to its end.
    SessionId = "session";
    /// A starting point of sessions: repositories, commands and a snapshot.
    ConfigurationId = "configuration";
    /// A repository of an organization.
    RepoId = "repo";
    /// A key with which a program acts for a user.
    ApiKeyId = "API key";
    /// A secret in the vault.
    SecretId = "secret";
    /// A remote MCP server that an organization has connected.
    ConnectorId = "connector";
    /// A database that agents of an organization may query.
    DatabaseId = "database";
    /// A provider account, such as one Linear workspace, connected to an organization.
    IntegrationId = "integration";
    /// One attempt to run an action.
    InvocationId = "invocation";
    /// A rule that starts sessions automatically.
    AutomationId = "automation";
    /// One execution of an automation.
    AutomationRunId = "automation run";
    /// An event source that starts an automation.
    TriggerId = "trigger";
    /// One firing of a trigger.
    TriggerEventId = "trigger event";
    /// A short-lived credential that replaces a token in a URL.
    TicketId = "ticket";
}

/// Accepts only the hyphenated form. The `uuid` crate also parses braced, URN and bare forms, but an id must
/// have one spelling: tokens are computed over the text.
fn parse_hyphenated(text: &str) -> Option<Uuid> {
    const HYPHENATED_LENGTH: usize = 36;
    if text.len() == HYPHENATED_LENGTH { Uuid::try_parse(text).ok() } else { None }
}

fn uuid_schema(description: &str) -> RefOr<Schema> {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::Uuid)))
        .description(Some(description))
        .into()
}
