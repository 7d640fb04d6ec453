//! The stream of changes: `GET /v1/changes`, server-sent events with the names `ready`, `change` and `reload`.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::SessionId;

/// The data of the event `change`: ids of what has changed. The client reads again what it shows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Change {
    pub sessions: Vec<SessionId>,
    pub inbox: Vec<ChangedEntry>,
}

/// An entry of the inbox that appeared, changed or left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChangedEntry {
    #[serde(rename = "type")]
    pub kind: ChangedKind,
    /// The id of the invocation, the question within its session, or the run.
    pub id: String,
    pub session_id: Option<SessionId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangedKind {
    Approval,
    Question,
    Run,
}

/// The organization whose changes are followed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub struct ChangeQuery {
    /// For a service that is bound to no organization.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub organization_id: Option<String>,
}
