//! Trigger events: whatever starts a run of an automation, or was skipped. An event, its run and the work that follows are
//! written in one transaction.

use chrono::{DateTime, Utc};
use proto::{
    AutomationId, AutomationRunId, AutomationRunStatus, OrgId, RunEventKind, TriggerEventId,
    TriggerEventStatus, TriggerKind,
};
use uuid::Uuid;

use crate::automation_outbox::{ENQUEUE_STEP, OutboxStep};
use crate::automation_run::log_event;
use crate::db::{read, write};
use crate::row::{from_row, storable, word};
use crate::{Store, StoreError, TokenHash};

/// The most runs of one automation that have not ended; a webhook that fires without end must not fill the database.
pub const MAX_OPEN_RUNS: i64 = 100;

/// An event that may start a run. The caller chooses all ids.
#[derive(Clone, Debug)]
pub struct NewTriggerEvent {
    pub id: TriggerEventId,
    pub org_id: OrgId,
    pub automation_id: AutomationId,
    pub kind: TriggerKind,
    pub event_name: Option<String>,
    /// JSON.
    pub payload: Option<String>,
    /// The firing of the schedule, for cron.
    pub firing: Option<CronFiring>,
    /// Hashes of what identifies the delivery of a webhook. If one was seen before, nothing starts.
    pub deliveries: Vec<TokenHash>,
    pub rerun_of: Option<AutomationRunId>,
    pub run_id: AutomationRunId,
    pub outbox_id: Uuid,
    /// The actor, for the log of the run.
    pub actor: String,
    pub at: DateTime<Utc>,
    pub deadline_at: DateTime<Utc>,
}

/// A firing of a cron line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CronFiring {
    /// The time that the automation had stored as its next one.
    pub due: DateTime<Utc>,
    pub next: Option<DateTime<Utc>>,
    /// How many firings after `due` were missed as well.
    pub missed: i64,
}

/// The outcome of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FiringOutcome {
    /// The run is queued.
    Started,
    /// The event is stored and started nothing: the automation is disabled, or its last firing still runs.
    Skipped,
    /// The delivery was seen before; nothing was stored.
    Duplicate { event: TriggerEventId, run: Option<AutomationRunId> },
    /// The automation has [`MAX_OPEN_RUNS`]; nothing was stored.
    Full,
    /// The firing was handled already; nothing was stored.
    Stale,
}

/// A stored trigger event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TriggerEvent {
    pub id: TriggerEventId,
    pub automation_id: AutomationId,
    pub kind: TriggerKind,
    pub status: TriggerEventStatus,
    pub skip_reason: Option<String>,
    pub error: Option<String>,
    pub event_name: Option<String>,
    pub payload: Option<String>,
    pub run_id: Option<AutomationRunId>,
    pub scheduled_for: Option<DateTime<Utc>>,
    pub missed: i64,
    pub received_at: DateTime<Utc>,
}

from_row!(TriggerEvent, row => TriggerEvent {
    id: row.try_get::<Uuid, _>("id")?.into(),
    automation_id: row.try_get::<Uuid, _>("automation_id")?.into(),
    kind: word(row.try_get("kind")?)?,
    status: word(row.try_get("status")?)?,
    skip_reason: row.try_get("skip_reason")?,
    error: row.try_get("error")?,
    event_name: row.try_get("event_name")?,
    payload: row.try_get("payload")?,
    run_id: row.try_get::<Option<Uuid>, _>("run_id")?.map(Into::into),
    scheduled_for: row.try_get("scheduled_for")?,
    missed: row.try_get("missed")?,
    received_at: row.try_get("received_at")?,
});

/// Locks the automation, so that concurrent events take turns.
const LOCK_AUTOMATION: &str =
    "UPDATE automations SET revision = revision WHERE id = $1 AND org_id = $2 RETURNING enabled";
const READ_DELIVERY: &str = "SELECT d.trigger_event_id, r.id FROM webhook_deliveries d
    LEFT JOIN automation_runs r ON r.trigger_event_id = d.trigger_event_id
    WHERE d.automation_id = $1 AND d.key_hash = $2";
const INSERT_DELIVERY: &str =
    "INSERT INTO webhook_deliveries (automation_id, key_hash, org_id, trigger_event_id, received_at)
    VALUES ($1, $2, $3, $4, $5) ON CONFLICT (automation_id, key_hash) DO NOTHING";
const ADVANCE_CRON: &str = "UPDATE automations SET cron_next_at = $3 WHERE id = $1 AND cron_next_at = $2";
const COUNT_OPEN_RUNS: &str =
    "SELECT count(*) FROM automation_runs WHERE automation_id = $1 AND completed_at IS NULL";
const OPEN_FIRINGS: &str =
    "SELECT count(*) FROM automation_runs r JOIN trigger_events e ON e.id = r.trigger_event_id
    WHERE r.automation_id = $1 AND r.completed_at IS NULL AND e.kind = 'cron'";
const INSERT_EVENT: &str =
    "INSERT INTO trigger_events (id, org_id, automation_id, kind, status, skip_reason, event_name,
    payload, scheduled_for, missed, received_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
const INSERT_RUN: &str =
    "INSERT INTO automation_runs (id, org_id, automation_id, trigger_event_id, rerun_of, status,
    deadline_at, queued_at) VALUES ($1, $2, $3, $4, $5, 'queued', $6, $7)";

impl NewTriggerEvent {
    /// The text that people see in the log of the run.
    fn origin(&self) -> String {
        match (self.rerun_of, self.firing) {
            (Some(run), _) => format!("repeats run {run}"),
            (None, Some(firing)) if firing.missed > 0 => {
                format!(
                    "cron, due at {}; {} later firings were missed",
                    firing.due.to_rfc3339(),
                    firing.missed
                )
            }
            (None, Some(firing)) => format!("cron, due at {}", firing.due.to_rfc3339()),
            (None, None) => self.kind.to_string(),
        }
    }
}

impl Store {
    /// Stores an event, and queues a run unless the event is skipped.
    pub async fn fire(&self, new: NewTriggerEvent) -> Result<FiringOutcome, StoreError> {
        let (id, org, automation, run) =
            (new.id.uuid(), new.org_id.uuid(), new.automation_id.uuid(), new.run_id.uuid());
        let origin = new.origin();
        write!(self, Disk, tx => {
            let enabled: Option<bool> =
                sqlx::query_scalar(LOCK_AUTOMATION).bind(automation).bind(org).fetch_optional(&mut *tx).await?;
            let enabled = enabled.ok_or(StoreError::Missing("this automation"))?;
            for key in &new.deliveries {
                let seen: Option<(Uuid, Option<Uuid>)> =
                    sqlx::query_as(READ_DELIVERY).bind(automation).bind(key.as_slice()).fetch_optional(&mut *tx).await?;
                if let Some((event, run)) = seen {
                    return Ok(FiringOutcome::Duplicate { event: event.into(), run: run.map(Into::into) });
                }
            }
            if let Some(firing) = new.firing {
                let advanced = sqlx::query(ADVANCE_CRON)
                    .bind(automation).bind(firing.due).bind(firing.next).execute(&mut *tx).await?;
                if advanced.rows_affected() == 0 {
                    return Ok(FiringOutcome::Stale);
                }
            }
            let firings: i64 =
                sqlx::query_scalar(OPEN_FIRINGS).bind(automation).fetch_one(&mut *tx).await?;
            let open: i64 = sqlx::query_scalar(COUNT_OPEN_RUNS).bind(automation).fetch_one(&mut *tx).await?;
            let (is_firing, is_full) = (new.firing.is_some(), open >= MAX_OPEN_RUNS);
            let skip = match new.kind {
                _ if is_firing && firings > 0 => Some("the run of an earlier firing has not ended"),
                _ if is_firing && is_full => Some("too many runs have not ended"),
                TriggerKind::Manual if !enabled => {
                    return Err(StoreError::Refused("this automation is disabled: enable it first"));
                }
                _ if !enabled => Some("the automation is disabled"),
                _ if is_full => return Ok(FiringOutcome::Full),
                _ => None,
            };
            let status =
                if skip.is_some() { TriggerEventStatus::Skipped } else { TriggerEventStatus::Queued };
            sqlx::query(INSERT_EVENT)
                .bind(id).bind(org).bind(automation).bind(new.kind.as_str()).bind(status.as_str())
                .bind(skip).bind(new.event_name.map(storable)).bind(new.payload)
                .bind(new.firing.map(|firing| firing.due))
                .bind(new.firing.map_or(0, |firing| firing.missed)).bind(new.at)
                .execute(&mut *tx).await?;
            for key in &new.deliveries {
                sqlx::query(INSERT_DELIVERY).bind(automation).bind(key.as_slice()).bind(org).bind(id).bind(new.at)
                    .execute(&mut *tx).await?;
            }
            if skip.is_some() {
                return Ok(FiringOutcome::Skipped);
            }
            sqlx::query(INSERT_RUN)
                .bind(run).bind(org).bind(automation).bind(id).bind(new.rerun_of.map(AutomationRunId::uuid))
                .bind(new.deadline_at).bind(new.at).execute(&mut *tx).await?;
            log_event!(tx, (run, org), RunEventKind::Created, (None, Some(AutomationRunStatus::Queued)), new.actor,
                Some(origin), new.at);
            sqlx::query(ENQUEUE_STEP)
                .bind(new.outbox_id).bind(org).bind(run).bind(OutboxStep::StartSession.as_str()).bind(new.at)
                .execute(&mut *tx).await?;
            Ok(FiringOutcome::Started)
        })
    }

    /// The latest events of an automation, newest first.
    pub async fn trigger_events(
        &self,
        org: OrgId,
        automation: AutomationId,
        limit: u32,
    ) -> Result<Vec<TriggerEvent>, StoreError> {
        const SQL: &str =
            "SELECT e.id, e.automation_id, e.kind, e.status, e.skip_reason, e.error, e.event_name,
            NULL AS payload, r.id AS run_id, e.scheduled_for, e.missed, e.received_at FROM trigger_events e
            LEFT JOIN automation_runs r ON r.trigger_event_id = e.id
            WHERE e.org_id = $1 AND e.automation_id = $2 ORDER BY e.received_at DESC, e.id DESC LIMIT $3";
        let (org, automation, limit) = (org.uuid(), automation.uuid(), i64::from(limit));
        Ok(read!(self, pool =>
            sqlx::query_as(SQL).bind(org).bind(automation).bind(limit).fetch_all(pool).await)?)
    }

    /// One event with its payload.
    pub async fn trigger_event(
        &self,
        org: OrgId,
        id: TriggerEventId,
    ) -> Result<Option<TriggerEvent>, StoreError> {
        const SQL: &str =
            "SELECT e.id, e.automation_id, e.kind, e.status, e.skip_reason, e.error, e.event_name,
            e.payload, r.id AS run_id, e.scheduled_for, e.missed, e.received_at FROM trigger_events e
            LEFT JOIN automation_runs r ON r.trigger_event_id = e.id WHERE e.org_id = $1 AND e.id = $2";
        let (org, id) = (org.uuid(), id.uuid());
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(org).bind(id).fetch_optional(pool).await)?)
    }
}
