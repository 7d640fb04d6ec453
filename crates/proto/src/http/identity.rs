//! Login, members, API keys, tickets, secrets, and the readiness of the gateway.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::string_enums::string_enums;
use crate::{ApiKeyId, ConfigurationId, RepoId, Role, SessionId, TicketId, UserId, iso};

/// The state of one dependency of the gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Check {
    pub name: String,
    pub ok: bool,
    /// A description of the dependency. The cause of a failure is only in the log.
    pub detail: String,
}

/// The answer to `GET /ready`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Readiness {
    pub ready: bool,
    pub checks: Vec<Check>,
}

impl Readiness {
    /// Ready if all checks pass.
    pub fn from_checks(checks: Vec<Check>) -> Self {
        Self { ready: checks.iter().all(|check| check.ok), checks }
    }
}

/// The code from a one-time login link.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct LoginRequest {
    pub code: String,
}

/// A member of the caller's organization.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemberEntry {
    pub user_id: UserId,
    pub email: String,
    pub name: String,
    pub role: Role,
    #[serde(with = "iso")]
    pub created_at: DateTime<Utc>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemberList {
    pub members: Vec<MemberEntry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AddMember {
    #[schema(min_length = 3, max_length = 320)]
    pub email: String,
    /// The name of the member; defaults to the email address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 320)]
    pub name: Option<String>,
    pub role: Role,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetRole {
    pub role: Role,
}

/// Strict, because a misspelled scope would make a key that can do everything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateKey {
    #[schema(min_length = 1, max_length = 100)]
    pub name: String,
    #[serde(default = "full")]
    pub scope: KeyScope,
}

fn full() -> KeyScope {
    KeyScope::Full
}

/// A new API key. The key is shown only once.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct NewKey {
    pub id: ApiKeyId,
    pub key: String,
}

/// An API key in a list; `hint` is how the key begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApiKeyEntry {
    pub id: ApiKeyId,
    pub user_id: UserId,
    pub name: String,
    pub scope: KeyScope,
    pub hint: String,
    #[serde(with = "iso")]
    pub created_at: DateTime<Utc>,
    #[serde(with = "iso::option")]
    pub revoked_at: Option<DateTime<Utc>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApiKeyList {
    pub keys: Vec<ApiKeyEntry>,
}

string_enums! {
    /// What an API key opens.
    KeyScope as "key scope" {
        /// Everything that its owner may do.
        Full = "full",
        /// `POST /mcp`, where it calls actions as an agent does, and nothing else.
        Mcp = "mcp",
    }

    /// The access that a ticket gives.
    TicketKind as "ticket kind" {
        /// The session's WebSocket, once, within a minute.
        Socket = "socket",
        /// The session's proxied ports, for an hour.
        Proxy = "proxy",
    }

    /// The sessions that may use a secret.
    SecretScope as "secret scope" {
        /// Every session of the organization may use it.
        Org = "org",
        /// Sessions on one repository may use it.
        Repo = "repo",
        /// Sessions of one configuration may use it.
        Configuration = "configuration",
        /// One session may use it.
        Session = "session",
    }

    /// The purpose of a secret, which never changes.
    SecretPurpose as "secret purpose" {
        /// A credential that the gateway uses. No sandbox gets it.
        Platform = "platform",
        /// A variable for sandboxes whose environment files name it.
        Env = "env",
        /// The content of a file for sandboxes.
        File = "file",
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CreateTicket {
    pub session_id: SessionId,
    pub kind: TicketKind,
}

/// A new ticket. It is shown only once.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NewTicketReply {
    pub id: TicketId,
    pub ticket: String,
    #[serde(with = "iso")]
    pub expires_at: DateTime<Utc>,
}

/// The owner of a secret: a repository, a configuration or, if both are absent, the organization.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub struct SecretOwner {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repo_id: Option<RepoId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configuration_id: Option<ConfigurationId>,
}

/// A secret value. It has no `Debug` implementation on purpose, so that it cannot be logged.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct SetSecret {
    #[schema(max_length = 65_536)]
    pub value: String,
    #[serde(default = "platform")]
    pub purpose: SecretPurpose,
    #[serde(flatten)]
    pub owner: SecretOwner,
}

fn platform() -> SecretPurpose {
    SecretPurpose::Platform
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SetSecretReply {
    /// `false` if an existing value was replaced.
    pub created: bool,
}

/// A secret without its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretItem {
    pub name: String,
    pub purpose: SecretPurpose,
    pub scope: SecretScope,
    #[serde(flatten)]
    pub owner: SecretOwner,
    #[serde(with = "iso")]
    pub created_at: DateTime<Utc>,
    #[serde(with = "iso")]
    pub updated_at: DateTime<Utc>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SecretList {
    pub secrets: Vec<SecretItem>,
}
