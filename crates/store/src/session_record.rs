//! A session with everything that is needed to run it or to show it.

use chrono::{DateTime, Utc};
use proto::http::AgentConfig;
use proto::{
    AgentMode, AutomationId, ClientType, ConfigurationId, JsonObject, OrgId, Origin, Outcome, PauseReason,
    SessionId, SessionMetrics, SessionStatus, SessionType, TitleSource, UserId,
};
use sqlx::PgPool;
use sqlx::types::Json;
use uuid::Uuid;

use crate::db::{find, read};
use crate::postgres::lookup_batcher::Rows;
use crate::row::{from_row, optional_word, word};
use crate::{Store, StoreError};

/// One session.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionRecord {
    pub id: SessionId,
    pub org_id: OrgId,
    pub created_by: Option<UserId>,
    pub configuration_id: Option<ConfigurationId>,
    pub configuration_name: Option<String>,
    pub parent_session_id: Option<SessionId>,
    pub session_type: SessionType,
    pub client_type: Option<ClientType>,
    pub client_metadata: Option<JsonObject>,
    pub origin: Origin,
    pub status: SessionStatus,
    pub pause_reason: Option<PauseReason>,
    pub stop_reason: Option<String>,
    pub outcome: Option<Outcome>,
    pub title: Option<String>,
    pub title_source: Option<TitleSource>,
    pub initial_prompt: Option<String>,
    pub initial_prompt_sent_at: Option<DateTime<Utc>>,
    pub agent_config: Option<AgentConfig>,
    /// The session's own, its automation's or its configuration's.
    pub system_prompt: Option<String>,
    pub automation_id: Option<AutomationId>,
    pub automation_name: Option<String>,
    /// The summary that the agent of an automation reported.
    pub summary: Option<String>,
    pub branch_name: Option<String>,
    pub base_commit_sha: Option<String>,
    pub local_path_hash: Option<String>,
    pub sandbox_provider: String,
    pub sandbox_id: Option<String>,
    pub sandbox_generation: i64,
    pub sandbox_expires_at: Option<DateTime<Utc>>,
    /// Whether files were lost and no prompt has told the agent yet.
    pub files_lost: bool,
    pub snapshot_id: Option<String>,
    pub agent_session_id: Option<String>,
    /// The transcript includes the effects of all events up to this number.
    pub transcript_seq: i64,
    pub budget_micros: Option<i64>,
    pub latest_task: Option<String>,
    pub pr_urls: Vec<String>,
    pub metrics: SessionMetrics,
    pub started_at: DateTime<Utc>,
    pub last_activity_at: DateTime<Utc>,
    pub paused_at: Option<DateTime<Utc>>,
    pub ended_at: Option<DateTime<Utc>>,
}

impl SessionRecord {
    /// The mode of the session's agent.
    pub const fn mode(&self) -> AgentMode {
        AgentMode::of(self.session_type, self.client_type, self.configuration_id.is_some())
    }
}

/// The SELECT of records, followed by the rest of a query.
macro_rules! records {
    ($rest:expr) => {
        concat!(
            "SELECT s.id, s.org_id, s.created_by, s.configuration_id, c.name AS configuration_name,
            s.parent_session_id, s.session_type, s.client_type, s.client_metadata, s.origin, s.status,
            s.pause_reason, s.stop_reason, s.outcome, s.title, s.title_source, s.initial_prompt,
            s.initial_prompt_sent_at, s.agent_config,
            COALESCE(s.system_prompt, CASE WHEN s.client_type = 'automation' THEN NULLIF(a.system_prompt, '') END,
                c.system_prompt) AS system_prompt,
            s.automation_id, a.name AS automation_name, s.summary, s.branch_name,
            s.base_commit_sha, s.local_path_hash, s.sandbox_provider, s.sandbox_id, s.sandbox_generation,
            s.sandbox_expires_at, s.files_lost, s.snapshot_id, s.agent_session_id, s.transcript_seq,
            s.budget_micros, s.latest_task, s.pr_urls, s.metrics, s.started_at, s.last_activity_at,
            s.paused_at, s.ended_at
            FROM sessions s LEFT JOIN configurations c ON c.id = s.configuration_id
            LEFT JOIN automations a ON a.id = s.automation_id ",
            $rest
        )
    };
}
pub(crate) use records;

/// A nullable id column.
macro_rules! optional_id {
    ($row:ident, $name:literal) => {
        $row.try_get::<Option<Uuid>, _>($name)?.map(Into::into)
    };
}

/// A nullable JSON column.
macro_rules! optional_json {
    ($row:ident, $name:literal) => {
        $row.try_get::<Option<Json<_>>, _>($name)?.map(|json| json.0)
    };
}

from_row!(inline SessionRecord, row => SessionRecord {
    id: row.try_get::<Uuid, _>("id")?.into(),
    org_id: row.try_get::<Uuid, _>("org_id")?.into(),
    created_by: optional_id!(row, "created_by"),
    configuration_id: optional_id!(row, "configuration_id"),
    configuration_name: row.try_get("configuration_name")?,
    parent_session_id: optional_id!(row, "parent_session_id"),
    session_type: word(row.try_get("session_type")?)?,
    client_type: optional_word(row.try_get("client_type")?)?,
    client_metadata: optional_json!(row, "client_metadata"),
    origin: word(row.try_get("origin")?)?,
    status: word(row.try_get("status")?)?,
    pause_reason: optional_word(row.try_get("pause_reason")?)?,
    stop_reason: row.try_get("stop_reason")?,
    outcome: optional_word(row.try_get("outcome")?)?,
    title: row.try_get("title")?,
    title_source: optional_word(row.try_get("title_source")?)?,
    initial_prompt: row.try_get("initial_prompt")?,
    initial_prompt_sent_at: row.try_get("initial_prompt_sent_at")?,
    agent_config: optional_json!(row, "agent_config"),
    system_prompt: row.try_get("system_prompt")?,
    automation_id: optional_id!(row, "automation_id"),
    automation_name: row.try_get("automation_name")?,
    summary: row.try_get("summary")?,
    branch_name: row.try_get("branch_name")?,
    base_commit_sha: row.try_get("base_commit_sha")?,
    local_path_hash: row.try_get("local_path_hash")?,
    sandbox_provider: row.try_get("sandbox_provider")?,
    sandbox_id: row.try_get("sandbox_id")?,
    sandbox_generation: row.try_get("sandbox_generation")?,
    sandbox_expires_at: row.try_get("sandbox_expires_at")?,
    files_lost: row.try_get("files_lost")?,
    snapshot_id: row.try_get("snapshot_id")?,
    agent_session_id: row.try_get("agent_session_id")?,
    transcript_seq: row.try_get("transcript_seq")?,
    budget_micros: row.try_get("budget_micros")?,
    latest_task: row.try_get("latest_task")?,
    pr_urls: row.try_get::<Json<Vec<String>>, _>("pr_urls")?.0,
    metrics: row.try_get::<Json<SessionMetrics>, _>("metrics")?.0,
    started_at: row.try_get("started_at")?,
    last_activity_at: row.try_get("last_activity_at")?,
    paused_at: row.try_get("paused_at")?,
    ended_at: row.try_get("ended_at")?,
});

/// The batched lookup by id.
pub(crate) fn many(pool: &PgPool, ids: Vec<Uuid>) -> Rows<'_, Uuid, SessionRecord> {
    const SQL: &str = concat!(
        "SELECT r.* FROM UNNEST($1::uuid[]) AS k (id) CROSS JOIN LATERAL (",
        records!("WHERE s.id = k.id LIMIT 1"),
        ") r"
    );
    Box::pin(async move {
        let rows: Vec<SessionRecord> = sqlx::query_as(SQL).bind(ids).fetch_all(pool).await?;
        Ok(rows.into_iter().map(|session| (session.id.uuid(), session)).collect())
    })
}

impl Store {
    /// A session of an organization. Another organization's session does not exist here.
    pub async fn session(&self, org: OrgId, id: SessionId) -> Result<Option<SessionRecord>, StoreError> {
        Ok(self.session_any(id).await?.filter(|session| session.org_id == org))
    }

    /// A session by its id alone, for services and for access checks. The caller must check the
    /// organization.
    pub async fn session_any(&self, id: SessionId) -> Result<Option<SessionRecord>, StoreError> {
        const SQL: &str = records!("WHERE s.id = $1");
        let id = id.uuid();
        Ok(find!(self, batched sessions id, SQL, id)?)
    }

    /// Live sessions with unanswered prompts that belong to `instance`, or to an instance that has not been seen since
    /// `before`.
    pub async fn sessions_with_prompts(
        &self,
        instance: &str,
        before: DateTime<Utc>,
        limit: i64,
    ) -> Result<Vec<SessionId>, StoreError> {
        const SQL: &str = "SELECT id FROM sessions WHERE status IN ('pending', 'starting', 'running')
            AND (owner_instance = $1 OR owner_instance NOT IN (SELECT id FROM instances WHERE seen_at >= $2))
            AND EXISTS (SELECT 1 FROM prompts WHERE session_id = sessions.id AND state IN ('queued', 'dispatched'))
            ORDER BY last_activity_at LIMIT $3";
        let found: Vec<Uuid> = read!(self, pool => sqlx::query_scalar(SQL)
            .bind(instance).bind(before).bind(limit).fetch_all(pool).await)?;
        Ok(found.into_iter().map(Into::into).collect())
    }

    /// Deleted sessions that are still there and belong to `instance`, or to an instance that has not been seen since
    /// `before`. In random order, so that those whose removal fails do not keep the others waiting.
    pub async fn deleted_sessions(
        &self,
        instance: &str,
        before: DateTime<Utc>,
        limit: i64,
    ) -> Result<Vec<SessionId>, StoreError> {
        const SQL: &str = "SELECT id FROM sessions WHERE deleted_at IS NOT NULL
            AND (owner_instance = $1 OR owner_instance NOT IN (SELECT id FROM instances WHERE seen_at >= $2))
            ORDER BY random() LIMIT $3";
        let found: Vec<Uuid> = read!(self, pool => sqlx::query_scalar(SQL)
            .bind(instance).bind(before).bind(limit).fetch_all(pool).await)?;
        Ok(found.into_iter().map(Into::into).collect())
    }

    /// Sessions with an expired sandbox that belong to `instance`, or to an instance that has not been seen since
    /// `before`. The longest overdue come first.
    pub async fn expired_sessions(
        &self,
        now: DateTime<Utc>,
        instance: &str,
        before: DateTime<Utc>,
        limit: i64,
    ) -> Result<Vec<SessionId>, StoreError> {
        // A stopped session has no sandbox. The other states are listed so that the index can be used.
        const SQL: &str = "SELECT id FROM sessions
            WHERE status IN ('pending', 'starting', 'running', 'paused', 'suspended', 'failed')
            AND sandbox_expires_at <= $1
            AND (owner_instance = $2 OR owner_instance NOT IN (SELECT id FROM instances WHERE seen_at >= $3))
            ORDER BY sandbox_expires_at LIMIT $4";
        let found: Vec<Uuid> = read!(self, pool => sqlx::query_scalar(SQL)
            .bind(now).bind(instance).bind(before).bind(limit).fetch_all(pool).await)?;
        Ok(found.into_iter().map(Into::into).collect())
    }
}
