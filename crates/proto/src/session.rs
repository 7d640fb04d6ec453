//! A session: one agent in one sandbox. Its statuses, its enums and its representation in the API.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::string_enums::string_enums;
use crate::{AutomationId, ConfigurationId, OrgId, RepoId, SessionId, UserId, iso};

string_enums! {
    /// The status of a session as the database stores it. The WebSocket uses different ones:
    /// [`WireStatus`](crate::socket::WireStatus).
    SessionStatus as "session status" {
        /// The session is created but not yet started.
        Pending = "pending",
        /// The session's sandbox is being created.
        Starting = "starting",
        /// The session's sandbox is running.
        Running = "running",
        /// The session has no running sandbox, but can be resumed.
        Paused = "paused",
        /// The session has ended.
        Stopped = "stopped",
        /// The session is suspended because of billing.
        Suspended = "suspended",
        /// The session failed and cannot continue.
        Failed = "failed",
    }

    /// The purpose of a session.
    SessionType as "session type" {
        /// A session for working on code.
        Coding = "coding",
        /// Preparing a configuration for other sessions.
        Setup = "setup",
        /// Working on a directory of a user's own machine.
        Cli = "cli",
    }

    /// The kind of client that created a session.
    ClientType as "client type" {
        /// Created in the web UI.
        Web = "web",
        /// Created from a Slack thread.
        Slack = "slack",
        /// Created on the command line.
        Cli = "cli",
        /// Created by an automation.
        Automation = "automation",
    }

    /// The purpose of a session's agent. It decides the agent's prompt, tools and policy role; see [`AgentMode::of`].
    AgentMode as "agent mode" {
        /// The agent prepares a configuration for other sessions.
        Setup = "setup",
        /// The agent works on repositories with somebody.
        Coding = "coding",
        /// The agent works for an automation and reports when it is done.
        Automation = "automation",
        /// The agent works in an empty workspace.
        Scratch = "scratch",
    }

    /// The source of a session's files.
    Origin as "origin" {
        /// The files come from repositories.
        Web = "web",
        /// The files come from a local directory.
        Cli = "cli",
    }

    /// Why a session is paused or was stopped.
    PauseReason as "pause reason" {
        /// The session was not used for a while.
        Inactivity = "inactivity",
        /// The session's sandbox disappeared or lost its owner.
        Orphaned = "orphaned",
        /// A user paused or stopped the session.
        Manual = "manual",
        /// Saving the session's state failed repeatedly.
        SnapshotFailed = "snapshot_failed",
        /// The organization has no credits left.
        CreditLimit = "credit_limit",
        /// A payment failed.
        PaymentFailed = "payment_failed",
        /// The overage cap is reached.
        OverageCap = "overage_cap",
        /// The account is suspended.
        Suspended = "suspended",
        /// The session's automation run is complete.
        AutomationCompleted = "automation_completed",
    }

    /// The outcome of a session.
    Outcome as "outcome" {
        /// A user ended the session.
        Completed = "completed",
        /// The session's automation run succeeded.
        Succeeded = "succeeded",
        /// The session failed.
        Failed = "failed",
        /// The session's automation run needs a human.
        NeedsHuman = "needs_human",
    }

    /// The state of a title that does not exist yet.
    TitleStatus as "title status" {
        /// The title is being generated.
        Generating = "generating",
    }

    /// The source of a session's title. A title is replaced only by one from a later source in this list.
    TitleSource as "title source" {
        /// The first sentence of the first prompt.
        Prompt = "prompt",
        /// The model made it.
        Model = "model",
        /// A person or an automation chose it.
        Person = "person",
    }

    /// Whether creating a session waits for its sandbox.
    SandboxMode as "sandbox mode" {
        /// The response is sent when the sandbox is running.
        Immediate = "immediate",
        /// The sandbox is created later.
        Deferred = "deferred",
    }

    /// The status that is shown to people.
    DisplayStatus as "display status" {
        /// The session is working or about to start.
        Active = "active",
        /// The session is paused until somebody uses it.
        Idle = "idle",
        /// The session lost its sandbox and is being restored.
        Recovering = "recovering",
        /// Billing prevents the session from continuing.
        Blocked = "blocked",
        /// Somebody paused the session.
        Paused = "paused",
        /// The session ended successfully.
        Completed = "completed",
        /// The session failed.
        Failed = "failed",
    }
}

impl AgentMode {
    /// The mode of a session's agent, by what the session is for. A session that merely mentions an
    /// automation is not the automation's own.
    pub const fn of(
        session_type: SessionType,
        client_type: Option<ClientType>,
        has_configuration: bool,
    ) -> Self {
        match (session_type, client_type) {
            (SessionType::Setup, _) => Self::Setup,
            (_, Some(ClientType::Automation)) => Self::Automation,
            _ if has_configuration => Self::Coding,
            _ => Self::Scratch,
        }
    }
}

impl PauseReason {
    /// Whether the session can only continue after a billing change.
    pub const fn is_billing(self) -> bool {
        matches!(self, Self::CreditLimit | Self::PaymentFailed | Self::OverageCap | Self::Suspended)
    }
}

impl DisplayStatus {
    /// The display status for a status and its reason.
    pub const fn of(status: SessionStatus, reason: Option<PauseReason>) -> Self {
        match (status, reason) {
            (SessionStatus::Pending | SessionStatus::Starting | SessionStatus::Running, _) => Self::Active,
            (SessionStatus::Paused, Some(PauseReason::Inactivity)) => Self::Idle,
            (SessionStatus::Paused, Some(PauseReason::Orphaned)) => Self::Recovering,
            (SessionStatus::Paused, Some(reason)) if reason.is_billing() => Self::Blocked,
            (SessionStatus::Paused, _) => Self::Paused,
            (SessionStatus::Stopped, Some(PauseReason::SnapshotFailed)) | (SessionStatus::Failed, _) => {
                Self::Failed
            }
            (SessionStatus::Stopped, _) => Self::Completed,
            (SessionStatus::Suspended, _) => Self::Blocked,
        }
    }
}

/// Counters of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionMetrics {
    pub tool_calls: u64,
    pub messages_exchanged: u64,
    pub active_seconds: u64,
}

/// The automation that created a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AutomationRef {
    pub id: AutomationId,
    pub name: String,
}

/// The repository that is shown next to a session's title.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RepoRef {
    pub id: RepoId,
    pub github_repo_name: String,
    pub github_url: String,
    pub default_branch: String,
}

/// A session as the API returns it. Unknown values are `null`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Session {
    pub id: SessionId,
    pub repo_id: Option<RepoId>,
    pub organization_id: OrgId,
    pub created_by: Option<UserId>,
    pub session_type: SessionType,
    pub status: SessionStatus,
    pub sandbox_id: Option<String>,
    pub snapshot_id: Option<String>,
    pub configuration_id: Option<ConfigurationId>,
    pub configuration_name: Option<String>,
    pub branch_name: Option<String>,
    pub parent_session_id: Option<SessionId>,
    pub title: Option<String>,
    pub title_status: Option<TitleStatus>,
    /// The model that somebody has chosen; absent means the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_id: Option<String>,
    #[serde(with = "iso")]
    pub started_at: DateTime<Utc>,
    #[serde(with = "iso")]
    pub last_activity_at: DateTime<Utc>,
    #[serde(default, with = "iso::option")]
    pub ended_at: Option<DateTime<Utc>>,
    #[serde(default, with = "iso::option")]
    pub paused_at: Option<DateTime<Utc>>,
    pub pause_reason: Option<PauseReason>,
    pub prompt_snippet: Option<String>,
    /// The complete first prompt. Present only for a single session, not in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial_prompt: Option<String>,
    pub origin: Origin,
    pub client_type: Option<ClientType>,
    pub automation_id: Option<AutomationId>,
    pub automation: Option<AutomationRef>,
    pub slack_thread_url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repo: Option<RepoRef>,
    pub outcome: Option<Outcome>,
    /// Why it failed or was stopped, as a message for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<String>,
    pub summary: Option<String>,
    pub pr_urls: Vec<String>,
    pub metrics: Option<SessionMetrics>,
    pub latest_task: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_status_matches_the_table() {
        let paused = [
            (None, "paused"),
            (Some(PauseReason::Inactivity), "idle"),
            (Some(PauseReason::Orphaned), "recovering"),
            (Some(PauseReason::Manual), "paused"),
            (Some(PauseReason::SnapshotFailed), "paused"),
            (Some(PauseReason::CreditLimit), "blocked"),
            (Some(PauseReason::PaymentFailed), "blocked"),
            (Some(PauseReason::OverageCap), "blocked"),
            (Some(PauseReason::Suspended), "blocked"),
            (Some(PauseReason::AutomationCompleted), "paused"),
        ];
        assert_eq!(paused.len(), PauseReason::ALL.len() + 1);
        for (reason, shown_when_paused) in paused {
            let stopped = if reason == Some(PauseReason::SnapshotFailed) { "failed" } else { "completed" };
            let table = [
                (SessionStatus::Pending, "active"),
                (SessionStatus::Starting, "active"),
                (SessionStatus::Running, "active"),
                (SessionStatus::Paused, shown_when_paused),
                (SessionStatus::Stopped, stopped),
                (SessionStatus::Suspended, "blocked"),
                (SessionStatus::Failed, "failed"),
            ];
            assert_eq!(table.len(), SessionStatus::ALL.len());
            for (status, shown) in table {
                assert_eq!(DisplayStatus::of(status, reason).as_str(), shown, "{status} {reason:?}");
            }
        }
    }
}
