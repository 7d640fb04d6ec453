//! `GET /v1/inbox`: what waits for a human.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::socket::{OpenApproval, OpenQuestion};
use crate::{AutomationId, AutomationRef, AutomationRunId, SessionId, UserId, iso};

#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub struct InboxQuery {
    /// The organization; only for services that are bound to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub organization_id: Option<String>,
    /// The maximum number of entries: at most 100, by default 50.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// `next` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// The entries of an organization that wait for a human, the oldest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Inbox {
    pub entries: Vec<InboxEntry>,
    /// The cursor of the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct InboxEntry {
    #[serde(flatten)]
    pub item: InboxItem,
    #[serde(with = "iso")]
    pub since: DateTime<Utc>,
    /// Whether the caller may approve or deny, answer or settle it.
    pub can_decide: bool,
    /// For an approval that the caller may decide: whether approving is allowed too. With the two-person rule, a person
    /// may only deny what was requested on their behalf or what they have approved already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub can_approve: Option<bool>,
    /// Absent if it belongs to no session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<InboxSession>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum InboxItem {
    /// An action waits for approval.
    Approval(OpenApproval),
    /// An agent waits for an answer.
    Question(InboxQuestion),
    /// An automation's run needs a human.
    Run(InboxRun),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct InboxQuestion {
    #[serde(flatten)]
    pub question: OpenQuestion,
    #[serde(with = "iso")]
    pub expires_at: DateTime<Utc>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct InboxRun {
    pub run_id: AutomationRunId,
    pub automation_id: AutomationId,
    pub automation_name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assigned_to: Option<UserId>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct InboxSession {
    pub id: SessionId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_by: Option<UserId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub automation: Option<AutomationRef>,
}
