//! The outbox of automations: work outside of the database that follows from a change of a run. A row is written in the
//! transaction of the change and deleted when the work is done, so a crash in between repeats the work and loses none.

use chrono::{DateTime, Utc};
use proto::{AutomationRunId, OrgId};
use uuid::Uuid;

use crate::db::{read, write};
use crate::row::{from_row, storable};
use crate::{Store, StoreError};

/// The step that has to be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutboxStep {
    /// Create the session of a run and prompt it.
    StartSession,
    /// End the session of a run that has ended.
    EndSession,
}

impl OutboxStep {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::StartSession => "start_session",
            Self::EndSession => "end_session",
        }
    }
}

/// A row of the outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxEntry {
    pub id: Uuid,
    pub org_id: OrgId,
    pub run_id: AutomationRunId,
    pub step: OutboxStep,
    /// Failed attempts so far.
    pub attempts: i64,
}

from_row!(OutboxEntry, row => OutboxEntry {
    id: row.try_get("id")?,
    org_id: row.try_get::<Uuid, _>("org_id")?.into(),
    run_id: row.try_get::<Uuid, _>("run_id")?.into(),
    step: match row.try_get::<String, _>("step")?.as_str() {
        "start_session" => OutboxStep::StartSession,
        _ => OutboxStep::EndSession,
    },
    attempts: row.try_get("attempts")?,
});

/// Adds a row, unless the run has one for this step.
pub(crate) const ENQUEUE_STEP: &str =
    "INSERT INTO automation_outbox (id, org_id, run_id, step, attempts, available_at,
    created_at) VALUES ($1, $2, $3, $4, 0, $5, $5) ON CONFLICT (run_id, step) DO NOTHING";

impl Store {
    /// Work that is due, the oldest first.
    pub async fn due_outbox(&self, now: DateTime<Utc>, limit: i64) -> Result<Vec<OutboxEntry>, StoreError> {
        const SQL: &str = "SELECT id, org_id, run_id, step, attempts FROM automation_outbox
            WHERE available_at <= $1 ORDER BY available_at, id LIMIT $2";
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(now).bind(limit).fetch_all(pool).await)?)
    }

    /// Removes a row whose work is done.
    pub async fn finish_outbox(&self, id: Uuid) -> Result<(), StoreError> {
        const SQL: &str = "DELETE FROM automation_outbox WHERE id = $1";
        write!(self, Disk, tx => {
            sqlx::query(SQL).bind(id).execute(&mut *tx).await?;
            Ok(())
        })
    }

    /// Postpones a row whose work failed or is not possible yet.
    pub async fn postpone_outbox(
        &self,
        id: Uuid,
        error: Option<&str>,
        available_at: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        const SQL: &str =
            "UPDATE automation_outbox SET attempts = attempts + $2, last_error = COALESCE($3, last_error),
            available_at = $4 WHERE id = $1";
        let (failed, error) = (i64::from(error.is_some()), error.map(|error| storable(error.to_owned())));
        write!(self, Disk, tx => {
            sqlx::query(SQL).bind(id).bind(failed).bind(error).bind(available_at).execute(&mut *tx).await?;
            Ok(())
        })
    }
}
