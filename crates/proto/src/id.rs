//! One type per kind of id, so that a user can never be passed where a session is meant.
//!
//! Making new ids needs randomness, which this crate does not know: take them from the `clock` crate.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{KnownFormat, ObjectBuilder, Schema, SchemaFormat, Type};
use utoipa::{PartialSchema, ToSchema};
use uuid::Uuid;

/// The text is not an id: it is not the hyphenated form of a UUID. The text itself is not repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a valid {kind} id: expected a UUID such as 0190f5d2-7c3e-7a11-8000-5b1f6c2d9e40")]
pub struct InvalidId {
    /// Which kind of id was expected, as in "session".
    pub kind: &'static str,
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident = $kind:literal;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Uuid);

        impl $name {
            /// The bare UUID, for places that know only those.
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
    /// An organisation, the tenant that everything belongs to.
    OrgId = "organization";
    /// A person with an account.
    UserId = "user";
    /// One agent in one sandbox, from creation to its end.
    SessionId = "session";
    /// What a session starts from: repositories, commands and a snapshot.
    ConfigurationId = "configuration";
    /// A repository of an organisation.
    RepoId = "repo";
    /// A key that lets a program act for a user.
    ApiKeyId = "API key";
    /// A value in the vault.
    SecretId = "secret";
    /// A remote MCP server that an organisation has connected.
    ConnectorId = "connector";
    /// A provider account, such as one Linear workspace, connected to an organisation.
    IntegrationId = "integration";
    /// One attempt to run an action.
    InvocationId = "invocation";
    /// A standing order to start sessions by itself.
    AutomationId = "automation";
    /// One execution of an automation.
    AutomationRunId = "automation run";
    /// What starts an automation.
    TriggerId = "trigger";
    /// One firing of a trigger.
    TriggerEventId = "trigger event";
    /// A short-lived pass that stands in for a token in a URL.
    TicketId = "ticket";
}

/// The `uuid` crate also reads braced, URN and bare forms; one id must have one spelling, or tokens that
/// are computed over the text would differ.
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
