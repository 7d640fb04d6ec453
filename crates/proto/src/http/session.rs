//! Listing and naming sessions.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::socket::Message;
use crate::{RepoId, Session, SessionId, SessionStatus, UserId};

/// How a session is to be stopped.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct StopQuery {
    /// Give up files that no snapshot has, instead of saving them first.
    #[serde(default)]
    pub discard: bool,
}

/// Which sessions are wanted. Switches are on with `1` or `true`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub struct SessionQuery {
    /// For services that are bound to no organisation.
    pub organization_id: Option<String>,
    pub repo_id: Option<RepoId>,
    pub status: Option<SessionStatus>,
    pub created_by: Option<UserId>,
    pub parent_session_id: Option<SessionId>,
    pub exclude_setup: Option<String>,
    pub exclude_cli: Option<String>,
    pub exclude_automation: Option<String>,
    /// At most 50, which is also the default.
    #[param(minimum = 1, maximum = 50)]
    pub limit: Option<u32>,
    /// The `next` of the page before.
    pub after: Option<String>,
}

/// Live sessions first, then the latest used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionList {
    pub sessions: Vec<Session>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Which messages of a session are wanted.
#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct MessageQuery {
    /// Those before this one, by its id; absent: the newest.
    pub before: Option<String>,
}

/// Messages of a session in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MessagePage {
    #[schema(value_type = Vec<Object>)]
    pub messages: Vec<Message>,
    /// How many came before these.
    pub earlier: u64,
}

/// A new title.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RenameSession {
    #[schema(min_length = 1, max_length = 200)]
    pub title: String,
}
