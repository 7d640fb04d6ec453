//! Invocations of actions: what they have beside their runs. Whether one waits, runs or has ended is in the row of its run,
//! which only the gate's writer changes.

use chrono::{DateTime, Utc};
use proto::{
    ActionMode, ApiKeyId, IntegrationId, InvocationId, InvocationStatus, ModeSource, OrgId, Risk, RunStatus,
    SessionId, UserId,
};
use sqlx::types::{Json, JsonValue};
use uuid::Uuid;

use crate::db::{find, read};
use crate::row::{JsonText, from_row, word};
use crate::{Store, StoreError};

/// The invocation of a new run.
#[derive(Clone, Debug)]
pub struct NewInvocation {
    pub id: InvocationId,
    pub integration: String,
    pub action: String,
    pub risk: Risk,
    pub mode: ActionMode,
    pub mode_source: ModeSource,
    pub mode_reason: Option<String>,
    /// Redacted and truncated.
    pub params: JsonText,
    pub definition_hash: Option<String>,
    pub key_id: Option<ApiKeyId>,
    /// Whether two people must approve it.
    pub two_person: bool,
    /// Set if the run waits for approval.
    pub waiting: Option<Waiting>,
}

/// The data that is stored while an invocation waits.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// The complete request, which is executed if it is approved.
    pub request: JsonText,
    pub expires_at: DateTime<Utc>,
    /// The session or key may have fewer than this many requests waiting.
    pub limit: u64,
}

/// An invocation with the state of its run.
#[derive(Clone, Debug, PartialEq)]
pub struct Invocation {
    pub org_id: OrgId,
    pub run_id: String,
    pub id: InvocationId,
    pub session_id: Option<SessionId>,
    pub integration: String,
    /// The integration, while it exists; `None` for a source that is none.
    pub integration_id: Option<IntegrationId>,
    pub action: String,
    pub risk: Risk,
    pub mode: ActionMode,
    pub mode_source: ModeSource,
    pub mode_reason: Option<String>,
    pub params: JsonValue,
    pub definition_hash: Option<String>,
    pub request: Option<JsonValue>,
    /// The API key with which it was requested.
    pub key_id: Option<ApiKeyId>,
    /// Whether two people must approve it.
    pub two_person: bool,
    /// Who approved it first, with the arguments that it has now.
    pub first_approved_by: Option<UserId>,
    pub first_approved_at: Option<DateTime<Utc>>,
    /// The hash of the request after an approver has edited its arguments.
    pub edited_hash: Option<String>,
    pub expires_at: Option<DateTime<Utc>>,
    pub decided_by: Option<UserId>,
    pub decided_at: Option<DateTime<Utc>>,
    pub created_at: DateTime<Utc>,
    pub run: InvocationRun,
}

/// The part of its run that an invocation shows.
#[derive(Clone, Debug, PartialEq)]
pub struct InvocationRun {
    pub status: RunStatus,
    pub request_hash: Option<String>,
    pub outcome: Option<String>,
    pub answer: Option<JsonValue>,
    pub started_at: Option<DateTime<Utc>>,
    pub completed_at: Option<DateTime<Utc>>,
}

impl Invocation {
    /// The hash of the request with its present parameters.
    pub fn request_hash(&self) -> Option<&String> {
        self.edited_hash.as_ref().or(self.run.request_hash.as_ref())
    }

    /// The status at this time. A request that nobody decided in time has expired, whether that was recorded or not.
    pub fn status(&self, now: DateTime<Utc>) -> InvocationStatus {
        let overdue = self.expires_at.is_some_and(|at| now >= at);
        match self.run.status {
            RunStatus::Created if overdue => InvocationStatus::Expired,
            RunStatus::Created if self.decided_by.is_some() => InvocationStatus::Approved,
            RunStatus::Created => InvocationStatus::Pending,
            RunStatus::Running => InvocationStatus::Executing,
            RunStatus::Completed => InvocationStatus::Completed,
            RunStatus::Denied => InvocationStatus::Denied,
            RunStatus::Cancelled => InvocationStatus::Expired,
            RunStatus::Failed if self.run.outcome.as_deref() == Some("unknown") => InvocationStatus::Unknown,
            RunStatus::Failed => InvocationStatus::Failed,
        }
    }
}

macro_rules! invocations {
    ($rest:literal) => {
        concat!(
            "SELECT i.org_id, i.run_id, i.id, i.session_id, i.integration, g.id AS integration_id, i.action, i.risk, i.mode, i.mode_source,
            i.mode_reason, i.params, i.definition_hash, i.request, i.key_id, i.two_person,
            i.first_approved_by, i.first_approved_at, i.edited_hash, i.expires_at, i.decided_by, i.decided_at, i.created_at,
            r.status, r.request_hash, r.outcome, r.answer, r.started_at, r.completed_at
            FROM invocations i JOIN runs r ON r.org_id = i.org_id AND r.run_id = i.run_id
            LEFT JOIN integrations g ON g.org_id = i.org_id AND g.provider = i.integration ",
            $rest
        )
    };
}

from_row!(inline Invocation, row => Invocation {
    org_id: row.try_get::<Uuid, _>("org_id")?.into(),
    run_id: row.try_get("run_id")?,
    id: row.try_get::<Uuid, _>("id")?.into(),
    session_id: row.try_get::<Option<Uuid>, _>("session_id")?.map(Into::into),
    integration: row.try_get("integration")?,
    integration_id: row.try_get::<Option<Uuid>, _>("integration_id")?.map(Into::into),
    action: row.try_get("action")?,
    risk: word(row.try_get("risk")?)?,
    mode: word(row.try_get("mode")?)?,
    mode_source: word(row.try_get("mode_source")?)?,
    mode_reason: row.try_get("mode_reason")?,
    params: row.try_get::<Json<_>, _>("params")?.0,
    definition_hash: row.try_get("definition_hash")?,
    request: row.try_get::<Option<Json<_>>, _>("request")?.map(|json| json.0),
    key_id: row.try_get::<Option<Uuid>, _>("key_id")?.map(Into::into),
    two_person: row.try_get("two_person")?,
    first_approved_by: row.try_get::<Option<Uuid>, _>("first_approved_by")?.map(Into::into),
    first_approved_at: row.try_get("first_approved_at")?,
    edited_hash: row.try_get("edited_hash")?,
    expires_at: row.try_get("expires_at")?,
    decided_by: row.try_get::<Option<Uuid>, _>("decided_by")?.map(Into::into),
    decided_at: row.try_get("decided_at")?,
    created_at: row.try_get("created_at")?,
    run: InvocationRun {
        status: word(row.try_get("status")?)?,
        request_hash: row.try_get("request_hash")?,
        outcome: row.try_get("outcome")?,
        answer: row.try_get::<Option<Json<_>>, _>("answer")?.map(|json| json.0),
        started_at: row.try_get("started_at")?,
        completed_at: row.try_get("completed_at")?,
    },
});

/// The requests of a session that have not started.
pub(crate) const UNSTARTED_OF_SESSION: &str = "SELECT i.run_id FROM runs r
    JOIN invocations i ON i.org_id = r.org_id AND i.run_id = r.run_id
    WHERE r.org_id = $1 AND r.session_id = $2 AND r.status = 'created' AND i.expires_at > $3";
/// Those of an API key.
pub(crate) const UNSTARTED_OF_KEY: &str = "SELECT i.run_id FROM runs r
    JOIN invocations i ON i.org_id = r.org_id AND i.run_id = r.run_id
    WHERE r.org_id = $1 AND r.session_id IS NULL AND i.key_id = $2 AND r.status = 'created' AND i.expires_at > $3";
/// Those of a member's API keys, which are deleted with the membership.
pub(crate) const UNSTARTED_OF_MEMBER: &str = "SELECT i.run_id FROM runs r
    JOIN invocations i ON i.org_id = r.org_id AND i.run_id = r.run_id
    JOIN api_keys k ON k.org_id = i.org_id AND k.id = i.key_id
    WHERE r.org_id = $1 AND r.session_id IS NULL AND k.user_id = $2 AND r.status = 'created' AND i.expires_at > $3";
pub(crate) const EXPIRE_INVOCATION: &str =
    "UPDATE invocations SET expires_at = $3 WHERE org_id = $1 AND run_id = $2 AND expires_at > $3";

/// Lets the requests that one of the queries above selects expire. The rows are locked in the order of their runs, as the
/// gate locks them, because PostgreSQL ends one of two transactions that wait for each other.
macro_rules! expire_requests {
    ($connection:expr, $unstarted:expr, $org:expr, $requester:expr, $at:expr) => {{
        let mut runs: Vec<String> = sqlx::query_scalar($unstarted)
            .bind($org)
            .bind($requester)
            .bind($at)
            .fetch_all(&mut *$connection)
            .await?;
        // Not by SQL, whose order depends on the database's collation.
        runs.sort_unstable();
        for run in runs {
            let expire = sqlx::query($crate::invocation::EXPIRE_INVOCATION).bind($org).bind(run).bind($at);
            expire.execute(&mut *$connection).await?;
        }
    }};
}
pub(crate) use expire_requests;

impl Store {
    pub async fn invocation(&self, org: OrgId, id: InvocationId) -> Result<Option<Invocation>, StoreError> {
        const SQL: &str = invocations!("WHERE i.org_id = $1 AND i.id = $2");
        let (org, id) = (org.uuid(), id.uuid());
        Ok(find!(self, SQL, org, id)?)
    }

    /// The invocation of a run, if it has one.
    pub async fn invocation_of_run(&self, org: OrgId, run: &str) -> Result<Option<Invocation>, StoreError> {
        const SQL: &str = invocations!("WHERE i.org_id = $1 AND i.run_id = $2");
        let org = org.uuid();
        Ok(find!(self, SQL, org, run)?)
    }

    /// The newest invocations of a session.
    pub async fn session_invocations(
        &self,
        org: OrgId,
        session: SessionId,
        limit: i64,
    ) -> Result<Vec<Invocation>, StoreError> {
        const SQL: &str = invocations!(
            "WHERE i.org_id = $1 AND i.session_id = $2 ORDER BY i.created_at DESC, i.run_id DESC LIMIT $3"
        );
        let (org, session) = (org.uuid(), session.uuid());
        Ok(
            read!(self, pool => sqlx::query_as(SQL).bind(org).bind(session).bind(limit).fetch_all(pool).await)?,
        )
    }

    /// The invocations of a session that can still be approved, the oldest first. Those of a session that was stopped
    /// have expired.
    pub async fn waiting_invocations(
        &self,
        session: SessionId,
        now: DateTime<Utc>,
    ) -> Result<Vec<Invocation>, StoreError> {
        const SQL: &str = invocations!(
            "JOIN sessions s ON s.id = i.session_id AND s.org_id = i.org_id AND s.status <> 'stopped'
            WHERE s.id = $1 AND r.status = 'created' AND i.decided_by IS NULL AND i.expires_at > $2
            ORDER BY i.created_at, i.run_id"
        );
        let session = session.uuid();
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(session).bind(now).fetch_all(pool).await)?)
    }

    /// The invocations of a session that have not started, and wait for a decision or for their caller to repeat them.
    pub async fn unstarted_invocations(
        &self,
        org: OrgId,
        session: SessionId,
        now: DateTime<Utc>,
    ) -> Result<Vec<Invocation>, StoreError> {
        const SQL: &str = invocations!(
            "WHERE r.org_id = $1 AND r.session_id = $2 AND r.status = 'created' AND i.expires_at > $3
            ORDER BY i.created_at, i.run_id"
        );
        let (org, session) = (org.uuid(), session.uuid());
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(org).bind(session).bind(now).fetch_all(pool).await)?)
    }

    /// The invocations that nobody decided in time and whose runs still wait.
    pub async fn overdue_invocations(
        &self,
        now: DateTime<Utc>,
        limit: i64,
    ) -> Result<Vec<Invocation>, StoreError> {
        const SQL: &str =
            invocations!("WHERE r.status = 'created' AND i.expires_at <= $1 ORDER BY i.expires_at LIMIT $2");
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(now).bind(limit).fetch_all(pool).await)?)
    }
}
