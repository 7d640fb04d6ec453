//! Reads everything that `audit verify` compares with the ledger, from one snapshot of the database, so that it never sees
//! half of what a running gateway writes.

use std::ops::ControlFlow;

use chrono::{DateTime, Utc};
use futures_util::TryStreamExt as _;
use ledger::{Chain, Entry};
use proto::OrgId;
use sqlx::types::{Json, JsonValue};
use sqlx::{Sqlite, Transaction};
use uuid::Uuid;

use crate::db::Db;
use crate::ledger_event::{hash, non_negative};
use crate::row::from_row;
use crate::run::run_columns;
use crate::{KeptCheckpoint, OrgActionMode, OverrideGrant, Run, SafetyLock, Store, StoreError};

/// A read transaction.
pub struct AuditReader(Snapshot);

enum Snapshot {
    Sqlite(Transaction<'static, Sqlite>),
    Postgres(Transaction<'static, sqlx::Postgres>),
}

/// Runs the same query expression in the transaction of whichever database is open.
macro_rules! ask {
    ($reader:expr, $connection:ident => $query:expr) => {
        match &mut $reader.0 {
            Snapshot::Sqlite(transaction) => {
                let $connection = &mut **transaction;
                $query
            }
            Snapshot::Postgres(transaction) => {
                let $connection = &mut **transaction;
                $query
            }
        }
    };
}

/// A row of `ledger_events`: the record and all other columns.
#[derive(Clone, Debug)]
pub struct EventRow {
    pub entry: Entry,
    pub event_id: String,
    pub org_id: Option<OrgId>,
    pub action_type: String,
    pub outcome: String,
    pub run_id: Option<String>,
    pub case_id: Option<String>,
    /// No run references it.
    pub unattached: bool,
    pub created_at: DateTime<Utc>,
}

/// A row of `runs` with the positions of its events.
#[derive(Clone, Debug)]
pub struct RunRow {
    pub run: Run,
    pub begun_position: Option<i64>,
    pub ended_position: Option<i64>,
}

/// A row of `ledger_heads`.
#[derive(Clone, Debug)]
pub struct HeadRow {
    pub chain: String,
    pub org_id: Option<OrgId>,
    pub sequence: i64,
    pub hash: String,
}

/// An artifact with its content, and the inputs and outputs of the run that made it.
#[derive(Clone, Debug)]
pub struct ArtifactRow {
    pub org_id: OrgId,
    pub artifact_id: String,
    pub kind: String,
    pub hash: String,
    pub hash_source: Option<String>,
    pub scope: String,
    pub case_id: Option<String>,
    pub content_type: Option<String>,
    pub byte_size: i64,
    pub lineage: Option<JsonValue>,
    pub created_at: DateTime<Utc>,
    pub content: Option<Vec<u8>>,
    pub run_inputs: Option<JsonValue>,
    pub run_outputs: Option<JsonValue>,
}

from_row!(EventRow, row => EventRow {
    entry: Entry {
        chain: Chain::new(row.try_get::<String, _>("chain")?).map_err(|e| sqlx::Error::Decode(e.into()))?,
        sequence: non_negative(row.try_get("sequence")?)?,
        position: non_negative(row.try_get("position")?)?,
        prev_hash: hash(row.try_get("prev_hash")?)?,
        hash: hash(row.try_get("hash")?)?,
        record: row.try_get("record")?,
    },
    event_id: row.try_get("event_id")?,
    org_id: row.try_get::<Option<Uuid>, _>("org_id")?.map(Into::into),
    action_type: row.try_get("action_type")?,
    outcome: row.try_get("outcome")?,
    run_id: row.try_get("run_id")?,
    case_id: row.try_get("case_id")?,
    unattached: row.try_get("unattached")?,
    created_at: row.try_get("created_at")?,
});

from_row!(RunRow, row => RunRow {
    run: Run::from_row(row)?,
    begun_position: row.try_get("begun_position")?,
    ended_position: row.try_get("ended_position")?,
});

from_row!(HeadRow, row => HeadRow {
    chain: row.try_get("chain")?,
    org_id: row.try_get::<Option<Uuid>, _>("org_id")?.map(Into::into),
    sequence: row.try_get("sequence")?,
    hash: row.try_get("hash")?,
});

from_row!(ArtifactRow, row => ArtifactRow {
    org_id: row.try_get::<Uuid, _>("org_id")?.into(),
    artifact_id: row.try_get("artifact_id")?,
    kind: row.try_get("artifact_kind")?,
    hash: row.try_get("hash_sha256")?,
    hash_source: row.try_get("hash_source")?,
    scope: row.try_get("scope")?,
    case_id: row.try_get("case_id")?,
    content_type: row.try_get("content_type")?,
    byte_size: row.try_get("byte_size")?,
    lineage: row.try_get::<Option<Json<_>>, _>("lineage")?.map(|json| json.0),
    created_at: row.try_get("created_at")?,
    content: row.try_get("content")?,
    run_inputs: row.try_get::<Option<Json<_>>, _>("inputs")?.map(|json| json.0),
    run_outputs: row.try_get::<Option<Json<_>>, _>("outputs")?.map(|json| json.0),
});

impl Store {
    /// Opens a snapshot of the database, which later writes do not change.
    pub async fn audit_reader(&self) -> Result<AuditReader, StoreError> {
        Ok(AuditReader(match &self.db {
            Db::Sqlite(sqlite) => {
                let mut transaction = sqlite.readers.begin().await?;
                // Runs and artifacts are looked up by random keys, which need a large page cache.
                sqlx::query("PRAGMA cache_size = -65536").execute(&mut *transaction).await?;
                Snapshot::Sqlite(transaction)
            }
            Db::Postgres(postgres) => {
                const READ_SNAPSHOT: &str = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY";
                let mut transaction = postgres.pool.begin().await?;
                sqlx::raw_sql(READ_SNAPSHOT).execute(&mut *transaction).await?;
                Snapshot::Postgres(transaction)
            }
        }))
    }
}

impl AuditReader {
    /// The size of the ledger according to `ledger_tree`.
    pub async fn tree_size(&mut self) -> Result<i64, StoreError> {
        const SQL: &str = "SELECT size FROM ledger_tree WHERE id = 1";
        let size: Option<i64> = ask!(self, c => sqlx::query_scalar(SQL).fetch_optional(c).await)?;
        Ok(size.unwrap_or(-1))
    }

    /// Events from a position on, ordered by position.
    pub async fn events(&mut self, from: u64, limit: i64) -> Result<Vec<EventRow>, StoreError> {
        const SQL: &str =
            "SELECT position, chain, sequence, event_id, org_id, action_type, outcome, run_id, case_id,
            unattached, record, prev_hash, hash, created_at FROM ledger_events
            WHERE position >= $1 ORDER BY position LIMIT $2";
        let from = i64::try_from(from).unwrap_or(i64::MAX);
        Ok(ask!(self, c => sqlx::query_as(SQL).bind(from).bind(limit).fetch_all(c).await)?)
    }

    /// The runs of the events at these positions.
    pub async fn runs_of_events(&mut self, from: u64, to: u64) -> Result<Vec<RunRow>, StoreError> {
        const SQL: &str = concat!(
            "SELECT ",
            run_columns!(),
            ", begun_position, ended_position FROM (SELECT DISTINCT org_id AS of_org, run_id AS of_run
                FROM ledger_events WHERE position BETWEEN $1 AND $2 AND NOT unattached) e
            CROSS JOIN runs WHERE org_id = of_org AND run_id = of_run"
        );
        let number = |number| i64::try_from(number).unwrap_or(i64::MAX);
        let (from, to) = (number(from), number(to));
        Ok(ask!(self, c => sqlx::query_as(SQL).bind(from).bind(to).fetch_all(c).await)?)
    }

    /// The number of runs. Reads only an index.
    pub async fn count_runs(&mut self) -> Result<u64, StoreError> {
        let runs: i64 = ask!(self, c => sqlx::query_scalar("SELECT count(*) FROM runs").fetch_one(c).await)?;
        Ok(non_negative(runs)?)
    }

    /// A run whose events are not at the positions that it references.
    pub async fn unrecorded_run(&mut self) -> Result<Option<RunRow>, StoreError> {
        const SQL: &str = concat!(
            "SELECT ",
            run_columns!(),
            ", begun_position, ended_position FROM runs r
            WHERE NOT EXISTS (SELECT 1 FROM ledger_events e WHERE e.position = r.begun_position
                AND e.org_id = r.org_id AND e.run_id = r.run_id AND NOT e.unattached)
            OR (r.ended_position IS NOT NULL AND NOT EXISTS (SELECT 1 FROM ledger_events e
                WHERE e.position = r.ended_position AND e.org_id = r.org_id AND e.run_id = r.run_id
                AND NOT e.unattached))
            ORDER BY r.created_at, r.run_id LIMIT 1"
        );
        Ok(ask!(self, c => sqlx::query_as(SQL).fetch_optional(c).await)?)
    }

    /// The first of these artifacts that an organization does not have.
    pub async fn missing_artifact(&mut self, org: OrgId, ids: &[&str]) -> Result<Option<String>, StoreError> {
        const SQLITE: &str = "SELECT value FROM json_each($2) WHERE NOT EXISTS
            (SELECT 1 FROM artifacts WHERE org_id = $1 AND artifact_id = value) LIMIT 1";
        const POSTGRES: &str = "SELECT id FROM jsonb_array_elements_text($2::jsonb) AS id WHERE NOT EXISTS
            (SELECT 1 FROM artifacts WHERE org_id = $1 AND artifact_id = id) LIMIT 1";
        let (org, ids) = (org.uuid(), serde_json::json!(ids).to_string());
        Ok(match &mut self.0 {
            Snapshot::Sqlite(transaction) => {
                sqlx::query_scalar(SQLITE).bind(org).bind(ids).fetch_optional(&mut **transaction).await
            }
            Snapshot::Postgres(transaction) => {
                sqlx::query_scalar(POSTGRES).bind(org).bind(ids).fetch_optional(&mut **transaction).await
            }
        }?)
    }

    /// Passes all artifacts to `check`, one at a time because each may be large, until it breaks off.
    pub async fn artifacts(
        &mut self,
        mut check: impl FnMut(&ArtifactRow) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        const SQL: &str =
            "SELECT a.org_id, a.artifact_id, a.artifact_kind, a.hash_sha256, a.hash_source, a.scope,
            a.case_id, a.content_type, a.byte_size, a.lineage, a.created_at, c.content, r.inputs, r.outputs
            FROM artifacts a
            LEFT JOIN artifact_contents c ON c.org_id = a.org_id AND c.artifact_id = a.artifact_id
            LEFT JOIN runs r ON r.org_id = a.org_id AND r.run_id = a.lineage ->> 'run_id'";
        ask!(self, c => {
            let mut rows = sqlx::query_as(SQL).fetch(c);
            while let Some(row) = rows.try_next().await? {
                if check(&row).is_break() {
                    break;
                }
            }
        });
        Ok(())
    }

    pub async fn heads(&mut self) -> Result<Vec<HeadRow>, StoreError> {
        const SQL: &str = "SELECT chain, org_id, sequence, hash FROM ledger_heads ORDER BY chain";
        Ok(ask!(self, c => sqlx::query_as(SQL).fetch_all(c).await)?)
    }

    pub async fn checkpoints(&mut self) -> Result<Vec<KeptCheckpoint>, StoreError> {
        Ok(ask!(self, c => sqlx::query_as(crate::ledger_event::SELECT_CHECKPOINTS).fetch_all(c).await)?)
    }

    pub async fn safety_lock(&mut self) -> Result<Option<SafetyLock>, StoreError> {
        Ok(ask!(self, c => sqlx::query_as(crate::safety::SELECT_LOCK).fetch_optional(c).await)?)
    }

    pub async fn action_modes(&mut self) -> Result<Vec<OrgActionMode>, StoreError> {
        const SQL: &str =
            "SELECT org_id, action_key, mode, conditions, two_person, invocation_id, changed_by,
            changed_at FROM action_modes ORDER BY org_id, action_key";
        Ok(ask!(self, c => sqlx::query_as(SQL).fetch_all(c).await)?)
    }

    pub async fn grants(&mut self) -> Result<Vec<OverrideGrant>, StoreError> {
        Ok(ask!(self, c => sqlx::query_as(crate::safety::SELECT_GRANTS).fetch_all(c).await)?)
    }
}
