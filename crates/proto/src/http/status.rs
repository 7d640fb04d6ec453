//! The state of a session, for programs that poll and for clients that connect to its sandbox.

use chrono::serde::ts_milliseconds_option;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use crate::string_enums::string_enums;
use crate::{SessionId, SessionStatus, UserId, iso};

string_enums! {
    /// Whether a session has ended.
    RunState as "run state" {
        /// The session has not ended.
        Running = "running",
        /// The session has ended.
        Terminated = "terminated",
    }
}

/// Result of a check of the sandbox: `true`, `false` or `null` on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Option<bool>", into = "Option<bool>")]
pub enum Liveness {
    Alive,
    Gone,
    /// The check of the sandbox itself failed.
    Unknown,
}

impl From<Option<bool>> for Liveness {
    fn from(alive: Option<bool>) -> Self {
        match alive {
            Some(true) => Self::Alive,
            Some(false) => Self::Gone,
            None => Self::Unknown,
        }
    }
}

impl From<Liveness> for Option<bool> {
    fn from(liveness: Liveness) -> Self {
        match liveness {
            Liveness::Alive => Some(true),
            Liveness::Gone => Some(false),
            Liveness::Unknown => None,
        }
    }
}

/// The people who watch a session: the answer to `GET /proliferate/{id}/presence`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Presence {
    pub users: Vec<PresentUser>,
    /// The number of connections of services and other programs.
    pub programs: u64,
}

/// A user, and the number of their connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PresentUser {
    pub user_id: UserId,
    pub clients: u64,
}

/// The answer to `GET /proliferate/sessions/{id}/status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionStatusReply {
    pub state: RunState,
    pub status: SessionStatus,
    #[serde(default, with = "iso::option", skip_serializing_if = "Option::is_none")]
    pub terminated_at: Option<DateTime<Utc>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<String>,
    /// Whether the sandbox is alive; absent if it was not checked.
    #[serde(default, deserialize_with = "deserialize_present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<bool>)]
    pub sandbox_alive: Option<Liveness>,
}

/// The answer to `GET /proliferate/{id}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionInfo {
    pub session_id: SessionId,
    pub sandbox_id: Option<String>,
    pub status: SessionStatus,
    pub preview_url: Option<String>,
    pub ssh_host: Option<String>,
    pub ssh_port: Option<u16>,
    /// The time at which the sandbox ends, in milliseconds since the Unix epoch.
    #[serde(default, with = "ts_milliseconds_option")]
    #[schema(value_type = Option<i64>)]
    pub expires_at: Option<DateTime<Utc>>,
}

/// Distinguishes `null` from an absent field, which a plain `Option` does not.
fn deserialize_present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Liveness>, D::Error> {
    Liveness::deserialize(deserializer).map(Some)
}
