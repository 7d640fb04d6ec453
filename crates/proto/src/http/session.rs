//! Listing, renaming and stopping sessions, and reading their messages.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::socket::Message;
use crate::{RepoId, Session, SessionId, SessionStatus, UserId};

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct StopQuery {
    /// Stop without a snapshot: changes since the last one are lost.
    #[serde(default)]
    pub discard: bool,
}

/// Selects sessions. The `exclude…` parameters are switched on with `1` or `true`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub struct SessionQuery {
    /// Required if the service token is not bound to an organization.
    pub organization_id: Option<String>,
    pub repo_id: Option<RepoId>,
    pub status: Option<SessionStatus>,
    pub created_by: Option<UserId>,
    pub parent_session_id: Option<SessionId>,
    pub exclude_setup: Option<String>,
    pub exclude_cli: Option<String>,
    pub exclude_automation: Option<String>,
    /// The page size: at most 50, which is also the default.
    #[param(minimum = 1, maximum = 50)]
    pub limit: Option<u32>,
    /// The cursor: `next` of the previous page.
    pub after: Option<String>,
}

/// Sessions: live ones first, then the most recently used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionList {
    pub sessions: Vec<Session>,
    /// The cursor of the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Selects messages of a session.
#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct MessageQuery {
    /// Return messages before the one with this id; without it, the newest.
    pub before: Option<String>,
}

/// Messages of a session in chronological order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MessagePage {
    #[schema(value_type = Vec<Object>)]
    pub messages: Vec<Message>,
    /// The number of messages before these.
    pub earlier: u64,
}

/// The model of a session, from its next prompt on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionModel {
    /// Our id of a model, or a name from the list of the chat endpoint.
    pub model_id: String,
}

/// A new title for a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RenameSession {
    #[schema(min_length = 1, max_length = 200)]
    pub title: String,
}
