//! Runs: every attempt and its outcome. The row of a tool call is its claim.

use chrono::{DateTime, Utc};
use proto::{OrgId, RunKind, RunStatus, SessionId};
use sqlx::PgPool;
use sqlx::types::{Json, JsonValue};
use uuid::Uuid;

use crate::db::{find, read};
use crate::postgres::lookup_batcher::Rows;
use crate::row::{JsonText, from_row, word};
use crate::{Store, StoreError};

/// A new run. A denied or refused one is created with its end.
#[derive(Clone, Debug)]
pub struct NewRun {
    pub org_id: OrgId,
    pub run_id: String,
    pub kind: RunKind,
    pub lanes_version: String,
    pub roles_version: String,
    /// The parent must be running, or have ended if this is a retry.
    pub parent_run_id: Option<String>,
    pub root_run_id: String,
    pub run_name: Option<String>,
    pub case_id: Option<String>,
    pub session_id: Option<SessionId>,
    pub correlation_id: Option<String>,
    pub actor: JsonText,
    pub role_id: String,
    pub lane_id: Option<String>,
    pub call: Option<CallDetails>,
    pub inputs: JsonText,
    pub retry_count: i64,
    pub retry_reason: Option<String>,
    pub created_at: DateTime<Utc>,
    /// Whether it waits for approval before it starts.
    pub waits: bool,
    /// Set if it ends in the transaction that creates it.
    pub end: Option<Ended>,
}

/// The details of a run that is a call.
#[derive(Clone, Debug)]
pub struct CallDetails {
    pub tool: String,
    pub operation: String,
    pub request_hash: String,
    pub decision: JsonText,
    /// The instance that executes it.
    pub instance: String,
}

/// The end of a run.
#[derive(Clone, Debug)]
pub struct Ended {
    pub status: RunStatus,
    pub outcome: String,
    pub error: Option<JsonText>,
    pub answer: Option<JsonText>,
    pub response_hash: Option<String>,
    pub outputs: JsonText,
    /// The start time of a run that had waited for approval before.
    pub started_at: Option<DateTime<Utc>>,
    pub at: DateTime<Utc>,
}

/// A run.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    pub org_id: OrgId,
    pub run_id: String,
    pub kind: RunKind,
    pub status: RunStatus,
    pub lanes_version: String,
    pub roles_version: String,
    pub parent_run_id: Option<String>,
    pub root_run_id: String,
    pub run_name: Option<String>,
    pub case_id: Option<String>,
    pub session_id: Option<SessionId>,
    pub correlation_id: Option<String>,
    pub actor: JsonValue,
    pub role_id: String,
    pub lane_id: Option<String>,
    pub tool: Option<String>,
    pub operation: Option<String>,
    pub request_hash: Option<String>,
    pub response_hash: Option<String>,
    pub instance: Option<String>,
    pub inputs: JsonValue,
    pub outputs: JsonValue,
    pub error: Option<JsonValue>,
    pub outcome: Option<String>,
    pub answer: Option<JsonValue>,
    pub retry_count: i64,
    pub retry_reason: Option<String>,
    pub created_at: DateTime<Utc>,
    pub started_at: Option<DateTime<Utc>>,
    pub completed_at: Option<DateTime<Utc>>,
}

/// Selects runs of an organization, newest first.
#[derive(Clone, Debug, Default)]
pub struct RunFilter {
    pub case_id: Option<String>,
    pub parent_run_id: Option<String>,
    pub status: Option<RunStatus>,
    pub kind: Option<RunKind>,
    /// Restricts the list to runs before this one, by creation time and id.
    pub before: Option<(DateTime<Utc>, String)>,
    pub limit: i64,
}

/// A recorded decision about a call, to replay with another policy.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedDecision {
    pub run_id: String,
    pub decision: JsonValue,
}

/// The columns of a run.
macro_rules! run_columns {
    () => {
        "org_id, run_id, run_kind, status, lanes_version, roles_version, parent_run_id, root_run_id,
            run_name, case_id, session_id, correlation_id, actor, role_id, lane_id, tool, operation, request_hash,
            response_hash, instance, inputs, outputs, error, outcome, answer, retry_count, retry_reason, created_at,
            started_at, completed_at"
    };
}
pub(crate) use run_columns;

/// The SELECT of runs, followed by the rest of a query.
macro_rules! runs {
    ($rest:literal) => {
        concat!("SELECT ", run_columns!(), " FROM runs ", $rest)
    };
}

/// A page of runs that match a filter, newest first.
macro_rules! list {
    ($where:literal) => {
        concat!(
            runs!($where),
            " AND ($4 IS NULL OR status = $4) AND ($5 IS NULL OR run_kind = $5)
            AND ($6 IS NULL OR created_at < $6 OR (created_at = $6 AND run_id < $7))
            ORDER BY created_at DESC, run_id DESC LIMIT $8"
        )
    };
}

/// One run by its key.
pub(crate) const SELECT_RUN: &str = runs!("WHERE org_id = $1 AND run_id = $2");

/// Several runs by their keys, on PostgreSQL.
pub(crate) const SELECT_RUNS: &str = concat!(
    "SELECT r.* FROM UNNEST($1::uuid[], $2::text[]) AS k (org, run) CROSS JOIN LATERAL (",
    runs!("WHERE org_id = k.org AND run_id = k.run LIMIT 1"),
    ") r"
);

/// The batched lookup of runs.
pub(crate) fn many(pool: &PgPool, keys: Vec<(Uuid, String)>) -> Rows<'_, (Uuid, String), Run> {
    let (orgs, ids): (Vec<_>, Vec<_>) = keys.into_iter().unzip();
    Box::pin(async move {
        let rows: Vec<Run> = sqlx::query_as(SELECT_RUNS).bind(orgs).bind(ids).fetch_all(pool).await?;
        Ok(rows.into_iter().map(|run| ((run.org_id.uuid(), run.run_id.clone()), run)).collect())
    })
}

from_row!(inline Run, row => Run {
    org_id: row.try_get::<Uuid, _>("org_id")?.into(),
    run_id: row.try_get("run_id")?,
    kind: word(row.try_get("run_kind")?)?,
    status: word(row.try_get("status")?)?,
    lanes_version: row.try_get("lanes_version")?,
    roles_version: row.try_get("roles_version")?,
    parent_run_id: row.try_get("parent_run_id")?,
    root_run_id: row.try_get("root_run_id")?,
    run_name: row.try_get("run_name")?,
    case_id: row.try_get("case_id")?,
    session_id: row.try_get::<Option<Uuid>, _>("session_id")?.map(Into::into),
    correlation_id: row.try_get("correlation_id")?,
    actor: row.try_get::<Json<_>, _>("actor")?.0,
    role_id: row.try_get("role_id")?,
    lane_id: row.try_get("lane_id")?,
    tool: row.try_get("tool")?,
    operation: row.try_get("operation")?,
    request_hash: row.try_get("request_hash")?,
    response_hash: row.try_get("response_hash")?,
    instance: row.try_get("instance")?,
    inputs: row.try_get::<Json<_>, _>("inputs")?.0,
    outputs: row.try_get::<Json<_>, _>("outputs")?.0,
    error: row.try_get::<Option<Json<_>>, _>("error")?.map(|json| json.0),
    outcome: row.try_get("outcome")?,
    answer: row.try_get::<Option<Json<_>>, _>("answer")?.map(|json| json.0),
    retry_count: row.try_get("retry_count")?,
    retry_reason: row.try_get("retry_reason")?,
    created_at: row.try_get("created_at")?,
    started_at: row.try_get("started_at")?,
    completed_at: row.try_get("completed_at")?,
});

from_row!(RecordedDecision, row => RecordedDecision {
    run_id: row.try_get("run_id")?,
    decision: row.try_get::<Json<_>, _>("decision")?.0,
});

impl Store {
    /// A run of an organization. Another organization's run does not exist here.
    pub async fn run(&self, org: OrgId, run_id: &str) -> Result<Option<Run>, StoreError> {
        let org = org.uuid();
        Ok(find!(self, batched runs (org, run_id.to_owned()), SELECT_RUN, org, run_id)?)
    }

    pub async fn runs(&self, org: OrgId, filter: &RunFilter) -> Result<Vec<Run>, StoreError> {
        const LIST_RUNS: &str = list!(
            "WHERE org_id = $1 AND ($2 IS NULL OR case_id = $2)
            AND ($3 IS NULL OR parent_run_id = $3)"
        );
        const OF_CASE: &str = list!(
            "WHERE org_id = $1 AND case_id = $2
            AND ($3 IS NULL OR parent_run_id = $3)"
        );
        const OF_PARENT: &str = list!(
            "WHERE org_id = $1 AND ($2 IS NULL OR case_id = $2)
            AND parent_run_id = $3"
        );
        let (case, parent) = (filter.case_id.as_deref(), filter.parent_run_id.as_deref());
        let sql = match (case, parent) {
            (_, Some(_)) => OF_PARENT,
            (Some(_), None) => OF_CASE,
            (None, None) => LIST_RUNS,
        };
        let org = org.uuid();
        let (before, before_id) = filter.before.clone().unzip();
        Ok(read!(self, pool => sqlx::query_as(sql).bind(org).bind(case).bind(parent)
            .bind(filter.status.map(RunStatus::as_str)).bind(filter.kind.map(RunKind::as_str))
            .bind(before).bind(before_id.as_deref()).bind(filter.limit).fetch_all(pool).await)?)
    }

    /// Calls whose instance has not been seen since `before`.
    pub async fn orphaned_calls(&self, before: DateTime<Utc>, limit: i64) -> Result<Vec<Run>, StoreError> {
        const SQL: &str = runs!(
            "WHERE status = 'running' AND instance IS NOT NULL AND instance NOT IN
            (SELECT id FROM instances WHERE seen_at >= $1) ORDER BY created_at LIMIT $2"
        );
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(before).bind(limit).fetch_all(pool).await)?)
    }

    /// Recorded decisions after this run id, ordered by run id, of one organization or of all.
    pub async fn recorded_decisions(
        &self,
        org: Option<OrgId>,
        after: &str,
        limit: i64,
    ) -> Result<Vec<RecordedDecision>, StoreError> {
        const SQL: &str = "SELECT run_id, decision FROM runs WHERE ($1 IS NULL OR org_id = $1)
            AND run_id > $2 AND decision IS NOT NULL ORDER BY run_id LIMIT $3";
        let org = org.map(OrgId::uuid);
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(org).bind(after).bind(limit).fetch_all(pool).await)?)
    }
}
