//! State changes by the owner of a session. Every call is fenced: a former owner changes nothing.

use chrono::{DateTime, Utc};
use proto::http::AgentConfig;
use proto::{Outcome, PauseReason, SessionStatus, TitleSource};
use sqlx::types::Json;

use crate::db::write;
use crate::invocation::{UNSTARTED_OF_SESSION, expire_requests};
use crate::owner::{LOCK_OWNED_SESSION, fenced};
use crate::row::storable;
use crate::session::{COUNT_LIVE_SESSIONS, HOLD_LIMIT, admit};
use crate::{Owner, Store, StoreError};

/// How a session ends.
#[derive(Clone, Debug)]
pub struct SessionEnd {
    pub status: SessionStatus,
    /// The reason, for people.
    pub stop_reason: Option<String>,
    /// A session that stopped because its snapshot failed is shown as failed.
    pub pause_reason: Option<PauseReason>,
    pub outcome: Option<Outcome>,
    pub at: DateTime<Utc>,
}

/// Runs one fenced UPDATE of the session, which is on disk before this returns.
macro_rules! set {
    ($store:expr, $owner:expr, $sql:expr $(, $value:expr)*) => {{
        let owner = *$owner;
        write!($store, Disk, tx => {
            fenced!(tx, owner, $sql $(, $value)*);
            Ok(())
        })
    }};
}

impl Store {
    /// Makes a paused or ended session live again, unless its organization has reached its limit.
    pub async fn start_session(&self, owner: &Owner, at: DateTime<Utc>) -> Result<(), StoreError> {
        const SQL: &str = "UPDATE sessions SET status = 'starting', pause_reason = NULL, paused_at = NULL,
            ended_at = NULL, stop_reason = NULL, outcome = NULL, last_activity_at = $3
            WHERE id = $1 AND owner_epoch = $2";
        let owner = *owner;
        write!(self, Disk, tx => {
            admit!(tx, owner.org().uuid(), owner.session().uuid(), at);
            fenced!(tx, owner, SQL, at);
            Ok(())
        })
    }

    /// Records that the session's sandbox runs.
    pub async fn set_running(
        &self,
        owner: &Owner,
        sandbox_id: &str,
        expires_at: Option<DateTime<Utc>>,
    ) -> Result<(), StoreError> {
        const SQL: &str = "UPDATE sessions SET status = 'running', sandbox_id = $3, sandbox_expires_at = $4,
            pause_reason = NULL, paused_at = NULL, ended_at = NULL, stop_reason = NULL, outcome = NULL
            WHERE id = $1 AND owner_epoch = $2";
        let sandbox_id = sandbox_id.to_owned();
        set!(self, owner, SQL, sandbox_id, expires_at)
    }

    /// Begins a new sandbox generation, before a new sandbox starts and when one ends. All earlier tokens become invalid, and
    /// the session has no sandbox until [`Store::set_running`] names one, or only the files of the one named here.
    pub async fn new_sandbox_generation(
        &self,
        owner: &Owner,
        sandbox_id: Option<&str>,
    ) -> Result<i64, StoreError> {
        const SQL: &str = "UPDATE sessions SET sandbox_generation = sandbox_generation + 1, sandbox_id = $3,
            sandbox_expires_at = NULL WHERE id = $1 AND owner_epoch = $2
            RETURNING sandbox_generation";
        let ((session, epoch), sandbox_id) = (owner.key(), sandbox_id.map(str::to_owned));
        write!(self, Disk, tx => {
            let raised = sqlx::query_scalar(SQL).bind(session).bind(epoch).bind(sandbox_id).fetch_optional(&mut *tx).await?;
            raised.ok_or(StoreError::Fenced)
        })
    }

    /// Sets when the session's sandbox expires; `None`: never.
    pub async fn set_sandbox_expiry(
        &self,
        owner: &Owner,
        expires_at: Option<DateTime<Utc>>,
    ) -> Result<(), StoreError> {
        const SQL: &str = "UPDATE sessions SET sandbox_expires_at = $3 WHERE id = $1 AND owner_epoch = $2";
        set!(self, owner, SQL, expires_at)
    }

    /// Records whether files were lost that no prompt has told the agent about.
    pub async fn set_files_lost(&self, owner: &Owner, lost: bool) -> Result<(), StoreError> {
        const SQL: &str = "UPDATE sessions SET files_lost = $3 WHERE id = $1 AND owner_epoch = $2";
        set!(self, owner, SQL, lost)
    }

    /// Changes the status of a session without ending it. A live session has no pause and no end; one that stops being live
    /// has no current task.
    pub async fn set_status(
        &self,
        owner: &Owner,
        status: SessionStatus,
        pause_reason: Option<PauseReason>,
        at: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        const SQL: &str = "UPDATE sessions SET status = $3, pause_reason = $4, paused_at = $5,
            ended_at = CASE WHEN $6 THEN NULL ELSE ended_at END,
            stop_reason = CASE WHEN $6 THEN NULL ELSE stop_reason END,
            outcome = CASE WHEN $6 THEN NULL ELSE outcome END,
            latest_task = CASE WHEN $6 THEN latest_task ELSE NULL END
            WHERE id = $1 AND owner_epoch = $2";
        let live =
            matches!(status, SessionStatus::Pending | SessionStatus::Starting | SessionStatus::Running);
        let sleeps = matches!(status, SessionStatus::Paused | SessionStatus::Suspended);
        let (reason, paused_at) = (pause_reason.map(PauseReason::as_str), sleeps.then_some(at));
        set!(self, owner, SQL, status.as_str(), reason, paused_at, live)
    }

    /// Ends a session, until somebody prompts it again. The outcome of an automation's run is the outcome of its session.
    /// What a stopped session has requested expires with it, so that nobody approves it after a later prompt.
    pub async fn end_session(&self, owner: &Owner, ending: SessionEnd) -> Result<(), StoreError> {
        const SQL: &str =
            "UPDATE sessions SET status = $3, stop_reason = $4, pause_reason = $5,
            outcome = CASE WHEN $6 = 'completed' THEN COALESCE((SELECT CASE r.status WHEN 'timed_out' THEN 'failed'
                WHEN 'cancelled' THEN NULL ELSE r.status END FROM automation_runs r WHERE r.session_id = sessions.id
                AND r.completed_at IS NOT NULL ORDER BY r.completed_at DESC LIMIT 1), $6) ELSE $6 END,
            ended_at = $7, latest_task = NULL WHERE id = $1 AND owner_epoch = $2";
        let (reason, outcome) =
            (ending.pause_reason.map(PauseReason::as_str), ending.outcome.map(Outcome::as_str));
        let (owner, stop_reason) = (*owner, ending.stop_reason.map(storable));
        let (status, at) = (ending.status, ending.at);
        write!(self, Disk, tx => {
            fenced!(tx, owner, SQL, status.as_str(), stop_reason, reason, outcome, at);
            if status == SessionStatus::Stopped {
                expire_requests!(tx, UNSTARTED_OF_SESSION, owner.org().uuid(), owner.session().uuid(), at);
            }
            Ok(())
        })
    }

    /// Sets the id of the agent's own session; `None` if the agent has lost it.
    pub async fn set_agent_session(
        &self,
        owner: &Owner,
        agent_session: Option<&str>,
    ) -> Result<(), StoreError> {
        const SQL: &str = "UPDATE sessions SET agent_session_id = $3 WHERE id = $1 AND owner_epoch = $2";
        let agent_session = agent_session.map(str::to_owned);
        set!(self, owner, SQL, agent_session)
    }

    /// Sets the branch of the session and the commit from which its work began. The first such commit stays.
    pub async fn set_branch(
        &self,
        owner: &Owner,
        branch: &str,
        base_commit: Option<&str>,
    ) -> Result<(), StoreError> {
        const SQL: &str =
            "UPDATE sessions SET branch_name = $3, base_commit_sha = COALESCE(base_commit_sha, $4)
            WHERE id = $1 AND owner_epoch = $2";
        let base_commit = base_commit.map(|commit| storable(commit.to_owned()));
        let branch = storable(branch.to_owned());
        set!(self, owner, SQL, branch, base_commit)
    }

    /// Changes the settings of the session's agent.
    pub async fn set_agent_config(&self, owner: &Owner, config: &AgentConfig) -> Result<(), StoreError> {
        const SQL: &str = "UPDATE sessions SET agent_config = $3 WHERE id = $1 AND owner_epoch = $2";
        let config = Json(config.clone());
        set!(self, owner, SQL, config)
    }

    /// Gives the session a title that no person has chosen. Returns whether it has it now: a person's title stays, and
    /// a model's title replaces only that of a prompt.
    pub async fn set_title(
        &self,
        owner: &Owner,
        title: &str,
        source: TitleSource,
    ) -> Result<bool, StoreError> {
        const SQL: &str = "UPDATE sessions SET title = $2, title_source = $3 WHERE id = $1
            AND (title IS NULL OR (title_source = 'prompt' AND $3 = 'model'))";
        let (owner, title) = (*owner, storable(title.to_owned()));
        write!(self, Disk, tx => {
            fenced!(tx, owner, LOCK_OWNED_SESSION);
            let done = sqlx::query(SQL).bind(owner.session().uuid()).bind(title).bind(source.as_str());
            Ok(done.execute(&mut *tx).await?.rows_affected() == 1)
        })
    }

    /// Marks the initial prompt as sent, before it is sent: of several callers, one gets `true` and sends it.
    pub async fn mark_initial_prompt(&self, owner: &Owner, at: DateTime<Utc>) -> Result<bool, StoreError> {
        const SQL: &str = "UPDATE sessions SET initial_prompt_sent_at = $2
            WHERE id = $1 AND initial_prompt_sent_at IS NULL";
        let owner = *owner;
        write!(self, Disk, tx => {
            fenced!(tx, owner, LOCK_OWNED_SESSION);
            let done = sqlx::query(SQL).bind(owner.session().uuid()).bind(at).execute(&mut *tx).await?;
            Ok(done.rows_affected() == 1)
        })
    }

    /// Removes the mark and queues the prompt again, because it did not reach the agent.
    pub async fn roll_back_initial_prompt(&self, owner: &Owner, prompt: &str) -> Result<(), StoreError> {
        const UNMARK_SENT: &str = "UPDATE sessions SET initial_prompt_sent_at = NULL WHERE id = $1";
        const REQUEUE_PROMPT: &str = "UPDATE prompts SET state = 'queued' WHERE session_id = $1 AND id = $2";
        let (owner, prompt) = (*owner, prompt.to_owned());
        write!(self, Disk, tx => {
            fenced!(tx, owner, LOCK_OWNED_SESSION);
            sqlx::query(UNMARK_SENT).bind(owner.session().uuid()).execute(&mut *tx).await?;
            sqlx::query(REQUEUE_PROMPT).bind(owner.session().uuid()).bind(prompt).execute(&mut *tx).await?;
            Ok(())
        })
    }

    /// Records activity. It does not wait for the disk.
    pub async fn touch(&self, owner: &Owner, at: DateTime<Utc>) -> Result<(), StoreError> {
        const SQL: &str = "UPDATE sessions SET last_activity_at = $3 WHERE id = $1 AND owner_epoch = $2";
        let owner = *owner;
        write!(self, Process, tx => {
            fenced!(tx, owner, SQL, at);
            Ok(())
        })
    }
}
