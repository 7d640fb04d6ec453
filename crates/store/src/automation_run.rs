//! Runs of automations. Every change takes a step of the state machine, compares the state in SQL, and writes the log, the
//! trigger event and the outbox in the same transaction.

use chrono::{DateTime, Utc};
use proto::{
    AutomationId, AutomationRunId, AutomationRunStatus, OrgId, RunEventKind, SessionId, TriggerEventId,
    TriggerKind, UserId,
};
use sqlx::types::{Json, JsonValue};
use uuid::Uuid;

use crate::automation_machine::{RunStep, event_status, next_status};
use crate::automation_outbox::{ENQUEUE_STEP, OutboxStep};
use crate::db::{read, write};
use crate::row::{from_row, optional_word, storable, word};
use crate::{Store, StoreError};

/// A run.
#[derive(Clone, Debug, PartialEq)]
pub struct AutomationRun {
    pub id: AutomationRunId,
    pub org_id: OrgId,
    pub automation_id: AutomationId,
    pub automation_name: String,
    pub trigger_event_id: TriggerEventId,
    pub trigger: TriggerKind,
    pub rerun_of: Option<AutomationRunId>,
    pub status: AutomationRunStatus,
    pub status_reason: Option<String>,
    pub session_id: Option<SessionId>,
    pub deadline_at: DateTime<Utc>,
    /// The time since which the agent has waited for an answer.
    pub waiting_since: Option<DateTime<Utc>>,
    pub completion_id: Option<String>,
    pub completion: Option<JsonValue>,
    pub assigned_to: Option<UserId>,
    pub assigned_at: Option<DateTime<Utc>>,
    pub queued_at: DateTime<Utc>,
    pub started_at: Option<DateTime<Utc>>,
    pub completed_at: Option<DateTime<Utc>>,
}

from_row!(AutomationRun, row => AutomationRun {
    id: row.try_get::<Uuid, _>("id")?.into(),
    org_id: row.try_get::<Uuid, _>("org_id")?.into(),
    automation_id: row.try_get::<Uuid, _>("automation_id")?.into(),
    automation_name: row.try_get("automation_name")?,
    trigger_event_id: row.try_get::<Uuid, _>("trigger_event_id")?.into(),
    trigger: word(row.try_get("trigger_kind")?)?,
    rerun_of: row.try_get::<Option<Uuid>, _>("rerun_of")?.map(Into::into),
    status: word(row.try_get("status")?)?,
    status_reason: row.try_get("status_reason")?,
    session_id: row.try_get::<Option<Uuid>, _>("session_id")?.map(Into::into),
    deadline_at: row.try_get("deadline_at")?,
    waiting_since: row.try_get("waiting_since")?,
    completion_id: row.try_get("completion_id")?,
    completion: row.try_get::<Option<Json<JsonValue>>, _>("completion")?.map(|json| json.0),
    assigned_to: row.try_get::<Option<Uuid>, _>("assigned_to")?.map(Into::into),
    assigned_at: row.try_get("assigned_at")?,
    queued_at: row.try_get("queued_at")?,
    started_at: row.try_get("started_at")?,
    completed_at: row.try_get("completed_at")?,
});

/// An entry in the log of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AutomationRunEvent {
    pub kind: RunEventKind,
    pub from: Option<AutomationRunStatus>,
    pub to: Option<AutomationRunStatus>,
    pub actor: String,
    pub detail: Option<String>,
    pub at: DateTime<Utc>,
}

from_row!(AutomationRunEvent, row => AutomationRunEvent {
    kind: word(row.try_get("kind")?)?,
    from: optional_word(row.try_get("from_status")?)?,
    to: optional_word(row.try_get("to_status")?)?,
    actor: row.try_get("actor")?,
    detail: row.try_get("detail")?,
    at: row.try_get("created_at")?,
});

/// The filter of a list of runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct AutomationRunFilter {
    pub automation: Option<AutomationId>,
    pub status: Option<AutomationRunStatus>,
    pub limit: u32,
}

/// A step of a run.
#[derive(Clone, Debug)]
pub struct RunAdvance {
    pub org_id: OrgId,
    pub run_id: AutomationRunId,
    pub step: RunStep,
    /// The session of the run, with [`RunStep::SessionCreated`].
    pub session_id: Option<SessionId>,
    /// The text of the entry, for people.
    pub reason: Option<String>,
    /// The actor of the step: a user, or `gateway`.
    pub actor: String,
    /// The id of the outbox row, if the step needs one.
    pub outbox_id: Uuid,
    pub at: DateTime<Utc>,
}

/// The outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advanced {
    To(AutomationRunStatus),
    /// A run in this state cannot take the step; nothing was changed.
    Refused(AutomationRunStatus),
}

/// The SELECT of runs, followed by the rest of a query.
macro_rules! automation_runs {
    ($rest:literal) => {
        concat!(
            "SELECT r.id, r.org_id, r.automation_id, a.name AS automation_name, r.trigger_event_id,
            e.kind AS trigger_kind, r.rerun_of, r.status, r.status_reason, r.session_id, r.deadline_at,
            r.waiting_since, r.completion_id, r.completion, r.assigned_to, r.assigned_at, r.queued_at, r.started_at,
            r.completed_at FROM automation_runs r JOIN automations a ON a.id = r.automation_id
            JOIN trigger_events e ON e.id = r.trigger_event_id ",
            $rest
        )
    };
}

/// Appends to the log of a run. The caller has changed or locked the run before, so that positions have no gaps.
macro_rules! log_event {
    ($connection:expr, ($run:expr, $org:expr), $kind:expr, ($from:expr, $to:expr), $actor:expr, $detail:expr, $at:expr) => {{
        let (from, to): (Option<AutomationRunStatus>, Option<AutomationRunStatus>) = ($from, $to);
        let detail: Option<String> = $detail;
        sqlx::query($crate::automation_run::INSERT_LOG_ENTRY)
            .bind($run)
            .bind($org)
            .bind(RunEventKind::as_str($kind))
            .bind(from.map(AutomationRunStatus::as_str))
            .bind(to.map(AutomationRunStatus::as_str))
            .bind($actor)
            .bind(detail.map(storable))
            .bind($at)
            .execute(&mut *$connection)
            .await?;
    }};
}
pub(crate) use log_event;

pub(crate) const INSERT_LOG_ENTRY: &str =
    "INSERT INTO automation_run_events (run_id, position, org_id, kind, from_status, to_status,
    actor, detail, created_at) SELECT $1, COALESCE(max(position), 0) + 1, $2, $3, $4, $5, $6, $7, $8
    FROM automation_run_events WHERE run_id = $1";

/// The log text for an agent that does not wait for an answer any more.
pub(crate) const WAIT_ENDED: &str = "answered";
/// The log text for a run that ends while its agent waits.
const WAIT_CUT: &str = "the run ended";

/// Locks the run until the end of the transaction.
const LOCK_RUN: &str = "UPDATE automation_runs SET queued_at = queued_at WHERE id = $1 AND org_id = $2
    RETURNING status, session_id, trigger_event_id, waiting_since";
type HeldRun = (String, Option<Uuid>, Uuid, Option<DateTime<Utc>>);
/// The state is compared although the row is locked: no step may ever be taken from another state than the one it was
/// decided for.
const CHANGE_STATUS: &str =
    "UPDATE automation_runs SET status = $3, status_reason = $4, session_id = COALESCE($5, session_id),
    started_at = CASE WHEN $6 THEN $7 ELSE started_at END,
    completed_at = CASE WHEN $8 THEN COALESCE(completed_at, $7) ELSE NULL END,
    waiting_since = CASE WHEN $8 THEN NULL ELSE waiting_since END
    WHERE id = $1 AND status = $2";
const SETTLE_EVENT: &str = "UPDATE trigger_events SET status = $2, error = $3 WHERE id = $1";
const DROP_START: &str = "DELETE FROM automation_outbox WHERE run_id = $1 AND step = 'start_session'";

impl Store {
    /// Takes a step of the state machine.
    pub async fn advance_run(&self, advance: RunAdvance) -> Result<Advanced, StoreError> {
        let RunAdvance { org_id, run_id, step, session_id, reason, actor, outbox_id, at } = advance;
        let (org, run, reason) = (org_id.uuid(), run_id.uuid(), reason.map(storable));
        write!(self, Disk, tx => {
            let held: Option<HeldRun> =
                sqlx::query_as(LOCK_RUN).bind(run).bind(org).fetch_optional(&mut *tx).await?;
            let (status, session, event, waiting_since) = held.ok_or(StoreError::Missing("this run"))?;
            let from: AutomationRunStatus = word(status)?;
            let Some(to) = next_status(from, step) else { return Ok(Advanced::Refused(from)) };
            let started = to == AutomationRunStatus::Running;
            let done = sqlx::query(CHANGE_STATUS)
                .bind(run).bind(from.as_str()).bind(to.as_str()).bind(reason.clone())
                .bind(session_id.map(SessionId::uuid)).bind(started).bind(at).bind(to.has_ended())
                .execute(&mut *tx).await?;
            if done.rows_affected() != 1 {
                return Err(StoreError::Refused("this run was changed meanwhile: try again"));
            }
            if waiting_since.is_some() && to.has_ended() {
                let cut = Some(WAIT_CUT.to_owned());
                log_event!(tx, (run, org), RunEventKind::Waiting, (None, None), "gateway", cut, at);
            }
            let kind = match step {
                RunStep::Resolved(_) => RunEventKind::Resolution,
                RunStep::Completed(_) => RunEventKind::Completion,
                _ => RunEventKind::Transition,
            };
            log_event!(tx, (run, org), kind, (Some(from), Some(to)), actor, reason.clone(), at);
            let error = reason.filter(|_| to.has_ended() && to != AutomationRunStatus::Succeeded);
            sqlx::query(SETTLE_EVENT)
                .bind(event).bind(event_status(to).as_str()).bind(error)
                .execute(&mut *tx).await?;
            if to.has_ended() && !from.has_ended() {
                sqlx::query(DROP_START).bind(run).execute(&mut *tx).await?;
                if session.is_some() {
                    sqlx::query(ENQUEUE_STEP)
                        .bind(outbox_id).bind(org).bind(run).bind(OutboxStep::EndSession.as_str()).bind(at)
                        .execute(&mut *tx).await?;
                }
            }
            Ok(Advanced::To(to))
        })
    }

    pub async fn automation_run(
        &self,
        org: OrgId,
        id: AutomationRunId,
    ) -> Result<Option<AutomationRun>, StoreError> {
        const SQL: &str = automation_runs!("WHERE r.org_id = $1 AND r.id = $2");
        let (org, id) = (org.uuid(), id.uuid());
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(org).bind(id).fetch_optional(pool).await)?)
    }

    /// The runs of an organization, newest first.
    pub async fn automation_runs(
        &self,
        org: OrgId,
        filter: AutomationRunFilter,
    ) -> Result<Vec<AutomationRun>, StoreError> {
        const SQL: &str = automation_runs!(
            "WHERE r.org_id = $1 AND ($2 IS NULL OR r.automation_id = $2) AND ($3 IS NULL OR r.status = $3)
            ORDER BY r.queued_at DESC, r.id DESC LIMIT $4"
        );
        let (org, automation) = (org.uuid(), filter.automation.map(AutomationId::uuid));
        let (status, limit) = (filter.status.map(AutomationRunStatus::as_str), i64::from(filter.limit));
        Ok(read!(self, pool => sqlx::query_as(SQL)
            .bind(org).bind(automation).bind(status).bind(limit).fetch_all(pool).await)?)
    }

    /// The log of a run, oldest first.
    pub async fn automation_run_events(
        &self,
        org: OrgId,
        run: AutomationRunId,
    ) -> Result<Vec<AutomationRunEvent>, StoreError> {
        const SQL: &str =
            "SELECT kind, from_status, to_status, actor, detail, created_at FROM automation_run_events
            WHERE org_id = $1 AND run_id = $2 ORDER BY position";
        let (org, run) = (org.uuid(), run.uuid());
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(org).bind(run).fetch_all(pool).await)?)
    }

    /// Assigns a run to a member, or to nobody.
    pub async fn assign_run(
        &self,
        (org, run): (OrgId, AutomationRunId),
        to: Option<UserId>,
        actor: String,
        at: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        const SQL: &str =
            "UPDATE automation_runs SET assigned_to = $3, assigned_at = $4 WHERE id = $1 AND org_id = $2";
        const COUNT_MEMBERS: &str = "SELECT count(*) FROM members WHERE org_id = $1 AND user_id = $2";
        let (org, run) = (org.uuid(), run.uuid());
        let detail = to.map_or_else(|| "nobody".to_owned(), |user| user.to_string());
        let to = to.map(UserId::uuid);
        write!(self, Disk, tx => {
            if let Some(user) = to {
                let known: i64 = sqlx::query_scalar(COUNT_MEMBERS).bind(org).bind(user).fetch_one(&mut *tx).await?;
                if known == 0 {
                    return Err(StoreError::Missing("this member"));
                }
            }
            let done = sqlx::query(SQL).bind(run).bind(org).bind(to).bind(to.map(|_| at)).execute(&mut *tx).await?;
            if done.rows_affected() == 0 {
                return Err(StoreError::Missing("this run"));
            }
            log_event!(tx, (run, org), RunEventKind::Assignment, (None, None), actor, Some(detail), at);
            Ok(())
        })
    }

    /// Runs whose deadline has passed and which do not wait for an answer.
    pub async fn overdue_runs(
        &self,
        now: DateTime<Utc>,
        limit: i64,
    ) -> Result<Vec<AutomationRun>, StoreError> {
        const SQL: &str = automation_runs!(
            "WHERE r.completed_at IS NULL AND r.waiting_since IS NULL AND r.deadline_at <= $1
            ORDER BY r.deadline_at, r.id LIMIT $2"
        );
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(now).bind(limit).fetch_all(pool).await)?)
    }

    /// Whether the run for which a session was created has ended. A session without a run has none that could.
    pub async fn run_has_ended(&self, org: OrgId, session: SessionId) -> Result<bool, StoreError> {
        const SQL: &str = "SELECT count(*) FROM automation_runs
            WHERE org_id = $1 AND session_id = $2 AND completed_at IS NOT NULL";
        self.has_run(SQL, org, session).await
    }

    /// Whether a session works for a run that has not ended. Anybody can create a session with the client type of
    /// automations, which works for none.
    pub async fn has_open_run(&self, org: OrgId, session: SessionId) -> Result<bool, StoreError> {
        const SQL: &str = "SELECT count(*) FROM automation_runs
            WHERE org_id = $1 AND session_id = $2 AND completed_at IS NULL";
        self.has_run(SQL, org, session).await
    }

    async fn has_run(&self, sql: &'static str, org: OrgId, session: SessionId) -> Result<bool, StoreError> {
        let (org, session) = (org.uuid(), session.uuid());
        let found: i64 =
            read!(self, pool => sqlx::query_scalar(sql).bind(org).bind(session).fetch_one(pool).await)?;
        Ok(found > 0)
    }

    /// Runs that have a session and have not ended whose session was deleted or has ended.
    pub async fn runs_without_session(&self, limit: i64) -> Result<Vec<AutomationRun>, StoreError> {
        const SQL: &str = automation_runs!(
            "LEFT JOIN sessions s ON s.id = r.session_id AND s.org_id = r.org_id
            WHERE r.completed_at IS NULL AND r.session_id IS NOT NULL
            AND (s.id IS NULL OR s.status IN ('stopped', 'failed', 'suspended')) ORDER BY r.queued_at, r.id LIMIT $1"
        );
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(limit).fetch_all(pool).await)?)
    }

    /// Runs whose agent began to wait for an answer, or continued, since that was last recorded.
    pub async fn runs_that_wait_or_go_on(&self, limit: i64) -> Result<Vec<AutomationRun>, StoreError> {
        const SQL: &str = automation_runs!(
            "WHERE r.status = 'running' AND (r.waiting_since IS NULL) = EXISTS (SELECT 1 FROM questions q
                WHERE q.session_id = r.session_id AND q.state = 'open') ORDER BY r.queued_at, r.id LIMIT $1"
        );
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(limit).fetch_all(pool).await)?)
    }

    /// Runs with a question that nobody answered in time.
    pub async fn runs_without_answer(
        &self,
        now: DateTime<Utc>,
        limit: i64,
    ) -> Result<Vec<AutomationRun>, StoreError> {
        const SQL: &str = automation_runs!(
            "WHERE r.status = 'running' AND EXISTS (SELECT 1 FROM questions q WHERE q.session_id = r.session_id
                AND q.state = 'rejected' AND q.answered_by IS NULL AND q.expires_at <= $1)
            ORDER BY r.queued_at, r.id LIMIT $2"
        );
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(now).bind(limit).fetch_all(pool).await)?)
    }

    /// Records that the agent of a run began to wait for an answer, or continued. Waiting time does not count towards the
    /// deadline.
    pub async fn set_run_waiting(
        &self,
        (org, run): (OrgId, AutomationRunId),
        waiting: Option<DateTime<Utc>>,
        deadline_at: DateTime<Utc>,
        at: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        const SQL: &str = "UPDATE automation_runs SET waiting_since = $3, deadline_at = $4
            WHERE id = $1 AND org_id = $2 AND status = 'running' AND (waiting_since IS NULL) = $5";
        let (org, run) = (org.uuid(), run.uuid());
        let detail = if waiting.is_some() { "question" } else { WAIT_ENDED };
        write!(self, Disk, tx => {
            let done = sqlx::query(SQL)
                .bind(run).bind(org).bind(waiting).bind(deadline_at).bind(waiting.is_some())
                .execute(&mut *tx).await?;
            if done.rows_affected() == 0 {
                return Ok(false);
            }
            log_event!(tx, (run, org), RunEventKind::Waiting, (None, None), "gateway", Some(detail.to_owned()), at);
            Ok(true)
        })
    }
}
