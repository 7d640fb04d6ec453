//! A session: one agent in one sandbox. Its states, its vocabulary and what the API shows of it.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::words::words;
use crate::{AutomationId, ConfigurationId, OrgId, RepoId, SessionId, UserId, iso};

words! {
    /// Where a session is in its life, as the database has it. The socket speaks of other states:
    /// [`WireStatus`](crate::socket::WireStatus).
    SessionStatus as "session status" {
        /// Made, not yet started.
        Pending = "pending",
        /// Its sandbox is being made.
        Starting = "starting",
        /// Its sandbox is up.
        Running = "running",
        /// Its sandbox is gone or asleep; it can go on.
        Paused = "paused",
        /// It has ended.
        Stopped = "stopped",
        /// Billing has suspended it.
        Suspended = "suspended",
        /// It could not go on.
        Failed = "failed",
    }

    /// What a session is for.
    SessionType as "session type" {
        /// Work on code.
        Coding = "coding",
        /// Prepare a configuration that others start from.
        Setup = "setup",
        /// Work on a directory of somebody's own machine.
        Cli = "cli",
    }

    /// Which kind of client made a session.
    ClientType as "client type" {
        /// The web UI.
        Web = "web",
        /// A Slack thread.
        Slack = "slack",
        /// The command line.
        Cli = "cli",
        /// An automation.
        Automation = "automation",
    }

    /// Where the files of a session come from.
    Origin as "origin" {
        /// From repositories.
        Web = "web",
        /// From a local directory.
        Cli = "cli",
    }

    /// Why a session is paused, or was stopped.
    PauseReason as "pause reason" {
        /// Nobody used it for a while.
        Inactivity = "inactivity",
        /// Its sandbox vanished or lost its owner.
        Orphaned = "orphaned",
        /// Somebody asked for it.
        Manual = "manual",
        /// Its state could not be saved again and again.
        SnapshotFailed = "snapshot_failed",
        /// The credits are used up.
        CreditLimit = "credit_limit",
        /// A payment failed.
        PaymentFailed = "payment_failed",
        /// The cap on overage is reached.
        OverageCap = "overage_cap",
        /// The account is suspended.
        Suspended = "suspended",
        /// Its automation run is complete.
        AutomationCompleted = "automation_completed",
    }

    /// How a session ended.
    Outcome as "outcome" {
        /// Somebody ended it.
        Completed = "completed",
        /// Its run succeeded.
        Succeeded = "succeeded",
        /// It failed.
        Failed = "failed",
        /// Its run needs a human.
        NeedsHuman = "needs_human",
    }

    /// What happens to a title that is not there yet.
    TitleStatus as "title status" {
        /// One is being made.
        Generating = "generating",
    }

    /// Whether creating a session waits for its sandbox.
    SandboxMode as "sandbox mode" {
        /// The reply comes when the sandbox is up.
        Immediate = "immediate",
        /// The sandbox comes later.
        Deferred = "deferred",
    }

    /// What people are shown instead of the status.
    DisplayStatus as "display status" {
        /// It works or is about to.
        Active = "active",
        /// It sleeps until somebody wants it.
        Idle = "idle",
        /// It lost its sandbox and will come back.
        Recovering = "recovering",
        /// Billing holds it.
        Blocked = "blocked",
        /// It was paused on purpose.
        Paused = "paused",
        /// It ended well.
        Completed = "completed",
        /// It ended badly.
        Failed = "failed",
    }
}

impl PauseReason {
    /// Whether only billing can let the session go on.
    pub const fn is_billing(self) -> bool {
        matches!(self, Self::CreditLimit | Self::PaymentFailed | Self::OverageCap | Self::Suspended)
    }
}

impl DisplayStatus {
    /// What to show for a status and its reason.
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

/// What a session has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionMetrics {
    pub tool_calls: u64,
    pub messages_exchanged: u64,
    pub active_seconds: u64,
}

/// The automation that made a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AutomationRef {
    pub id: AutomationId,
    pub name: String,
}

/// The repository that a session shows beside its title.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RepoRef {
    pub id: RepoId,
    pub github_repo_name: String,
    pub github_url: String,
    pub default_branch: String,
}

/// A session as the API shows it. What is not known is `null`.
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
    /// The whole first prompt; only where one session is shown, absent in lists.
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
    /// Why it failed or was stopped, for people.
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
    fn every_status_and_reason_is_shown_as_the_table_says() {
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
