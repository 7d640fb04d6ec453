//! Creates, renames and deletes sessions: changes by their organization, which need no ownership.

use chrono::{DateTime, Utc};
use proto::http::AgentConfig;
use proto::{
    AutomationId, ClientType, ConfigurationId, IntegrationId, JsonObject, OrgId, Origin, SessionId,
    SessionMetrics, SessionStatus, SessionType, TitleSource, UserId,
};
use sqlx::types::{Json, JsonValue};
use uuid::Uuid;

use crate::db::{read, write};
use crate::gate::administer;
use crate::integration::connect_session;
use crate::row::{storable, storable_json};
use crate::{Store, StoreError};

/// A new session.
#[derive(Clone, Debug)]
pub struct NewSession {
    pub id: SessionId,
    pub org_id: OrgId,
    pub created_by: Option<UserId>,
    pub configuration_id: Option<ConfigurationId>,
    pub parent_session_id: Option<SessionId>,
    pub session_type: SessionType,
    pub client_type: Option<ClientType>,
    pub client_metadata: Option<JsonObject>,
    pub origin: Origin,
    pub starts: Starts,
    pub title: Option<String>,
    /// The source of the title, if there is one.
    pub title_source: TitleSource,
    pub initial_prompt: Option<String>,
    pub agent_config: Option<AgentConfig>,
    pub system_prompt: Option<String>,
    pub automation_id: Option<AutomationId>,
    pub trigger_context: Option<JsonObject>,
    /// The integrations that the session may use; `None` means those of its automation, or all that are active.
    pub integrations: Option<Vec<IntegrationId>>,
    pub local_path_hash: Option<String>,
    pub sandbox_provider: String,
    pub snapshot_id: Option<String>,
    pub budget_micros: Option<i64>,
    pub at: DateTime<Utc>,
}

/// The time at which a new session gets its sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Starts {
    /// The sandbox starts when a client first needs it.
    Later,
    /// The sandbox starts at once.
    Now,
}

impl NewSession {
    /// A session with the required fields only.
    pub fn new(
        id: SessionId,
        org_id: OrgId,
        session_type: SessionType,
        sandbox_provider: &str,
        at: DateTime<Utc>,
    ) -> Self {
        Self {
            id,
            org_id,
            created_by: None,
            configuration_id: None,
            parent_session_id: None,
            session_type,
            client_type: None,
            client_metadata: None,
            origin: Origin::Web,
            starts: Starts::Later,
            title: None,
            title_source: TitleSource::Person,
            initial_prompt: None,
            agent_config: None,
            system_prompt: None,
            automation_id: None,
            integrations: None,
            trigger_context: None,
            local_path_hash: None,
            sandbox_provider: sandbox_provider.to_owned(),
            snapshot_id: None,
            budget_micros: None,
            at,
        }
    }
}

/// Locks the organization until the end of the transaction, so that two sessions cannot both be admitted as the last one.
/// A `None` limit admits all.
pub(crate) const HOLD_LIMIT: &str =
    "UPDATE organizations SET name = name WHERE id = $1 RETURNING session_limit";
/// Other sessions that have a sandbox or are about to get one.
pub(crate) const COUNT_LIVE_SESSIONS: &str = "SELECT count(*) FROM sessions WHERE org_id = $1 AND id <> $2
    AND (status = 'running' OR (status IN ('pending', 'starting') AND last_activity_at > $3))";
/// Other setup sessions of this configuration.
const SETTING_UP: &str = "SELECT count(*) FROM sessions WHERE org_id = $1 AND configuration_id = $2
    AND session_type = 'setup' AND (status IN ('running', 'paused', 'suspended')
    OR (status IN ('pending', 'starting') AND last_activity_at > $3))";
/// How long a session without a sandbox counts as live: one that was abandoned or never started must not use up the limit
/// for ever. One that waits longer is admitted again when it starts.
const ABOUT_TO: chrono::TimeDelta = chrono::TimeDelta::minutes(10);

/// Sessions without a sandbox count if they were created, or started booting, after this time.
pub(crate) fn counts_since(now: DateTime<Utc>) -> DateTime<Utc> {
    now - ABOUT_TO
}

/// Refuses a session beyond the limit of its organization.
macro_rules! admit {
    ($connection:expr, $org:expr, $session:expr, $at:expr) => {{
        let limit: Option<Option<i64>> =
            sqlx::query_scalar(HOLD_LIMIT).bind($org).fetch_optional(&mut *$connection).await?;
        if let Some(Some(limit)) = limit {
            let since = $crate::session::counts_since($at);
            let live: i64 = sqlx::query_scalar(COUNT_LIVE_SESSIONS)
                .bind($org)
                .bind($session)
                .bind(since)
                .fetch_one(&mut *$connection)
                .await?;
            if live >= limit {
                return Err($crate::StoreError::SessionLimit { limit });
            }
        }
    }};
}
pub(crate) use admit;

impl Store {
    /// Creates a session, unless its organization has reached its limit.
    pub async fn create_session(&self, new: NewSession) -> Result<(), StoreError> {
        self.create(new, None).await.map(drop)
    }

    /// Creates a setup session of a configuration, unless there is one already: of several concurrent callers, one gets
    /// `true`.
    pub async fn create_setup_session(
        &self,
        new: NewSession,
        configuration: ConfigurationId,
    ) -> Result<bool, StoreError> {
        self.create(NewSession { configuration_id: Some(configuration), ..new }, Some(configuration)).await
    }

    /// The number of live sessions of an organization, as its limit counts them.
    pub async fn live_sessions(&self, org: OrgId, at: DateTime<Utc>) -> Result<i64, StoreError> {
        let (org, since) = (org.uuid(), counts_since(at));
        Ok(read!(self, pool =>
            sqlx::query_scalar(COUNT_LIVE_SESSIONS).bind(org).bind(Uuid::nil()).bind(since).fetch_one(pool).await)?)
    }

    async fn create(&self, new: NewSession, sets_up: Option<ConfigurationId>) -> Result<bool, StoreError> {
        const SQL: &str = "INSERT INTO sessions (id, org_id, created_by, configuration_id, parent_session_id,
            session_type, client_type, client_metadata, origin, status, title, initial_prompt,
            agent_config, automation_id, local_path_hash, sandbox_provider, snapshot_id, budget_micros,
            metrics, started_at, last_activity_at, trigger_context, system_prompt, sandbox_generation, owner_epoch,
            seq_reserved, pr_urls, title_source) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17,
            $18, $19, $20, $20, $21, $22, 0, 0, 0, '[]', $23)";
        let status = match new.starts {
            Starts::Later => SessionStatus::Pending,
            Starts::Now => SessionStatus::Starting,
        };
        let title_source = new.title.as_ref().map(|_| new.title_source.as_str());
        let integrations = new.integrations.clone();
        let integrations: Option<Vec<Uuid>> =
            integrations.map(|ids| ids.into_iter().map(IntegrationId::uuid).collect());
        let (id, org, automation) =
            (new.id.uuid(), new.org_id.uuid(), new.automation_id.map(AutomationId::uuid));
        write!(self, Disk, tx => {
            admit!(tx, new.org_id.uuid(), new.id.uuid(), new.at);
            if let Some(configuration) = sets_up {
                let others: i64 = sqlx::query_scalar(SETTING_UP)
                    .bind(new.org_id.uuid()).bind(configuration.uuid()).bind(counts_since(new.at))
                    .fetch_one(&mut *tx).await?;
                if others > 0 {
                    return Ok(false);
                }
            }
            sqlx::query(SQL)
                .bind(new.id.uuid()).bind(new.org_id.uuid()).bind(new.created_by.map(UserId::uuid))
                .bind(new.configuration_id.map(ConfigurationId::uuid))
                .bind(new.parent_session_id.map(SessionId::uuid))
                .bind(new.session_type.as_str()).bind(new.client_type.map(ClientType::as_str))
                .bind(new.client_metadata.map(storable_object)).bind(new.origin.as_str()).bind(status.as_str())
                .bind(new.title.map(storable)).bind(new.initial_prompt.map(storable))
                .bind(new.agent_config.map(Json))
                .bind(new.automation_id.map(AutomationId::uuid)).bind(new.local_path_hash)
                .bind(new.sandbox_provider).bind(new.snapshot_id).bind(new.budget_micros)
                .bind(Json(SessionMetrics::default())).bind(new.at)
                .bind(new.trigger_context.map(storable_object)).bind(new.system_prompt.map(storable))
                .bind(title_source)
                .execute(&mut *tx).await?;
            connect_session!(tx, id, org, automation, integrations);
            Ok(true)
        })
        .map_err(|error: StoreError| {
            error.on_constraint("this session", "this organization, user, configuration, parent or automation")
        })
    }

    /// The event that started a session, if one did.
    pub async fn trigger_context(&self, org: OrgId, id: SessionId) -> Result<Option<JsonObject>, StoreError> {
        const SQL: &str = "SELECT trigger_context FROM sessions WHERE org_id = $1 AND id = $2";
        let (org, id) = (org.uuid(), id.uuid());
        let found: Option<Option<Json<JsonObject>>> = read!(self, pool =>
            sqlx::query_scalar(SQL).bind(org).bind(id).fetch_optional(pool).await)?;
        Ok(found.flatten().map(|context| context.0))
    }

    /// Gives a session the title that a person has chosen.
    pub async fn rename_session(&self, org: OrgId, id: SessionId, title: &str) -> Result<(), StoreError> {
        const SQL: &str =
            "UPDATE sessions SET title = $3, title_source = 'person' WHERE org_id = $1 AND id = $2";
        let (org, id, title) = (org.uuid(), id.uuid(), storable(title.to_owned()));
        write!(self, Disk, tx => {
            let done = sqlx::query(SQL).bind(org).bind(id).bind(title).execute(&mut *tx).await?;
            if done.rows_affected() == 0 { Err(StoreError::Missing("this session")) } else { Ok(()) }
        })
    }

    /// Records that somebody deletes a session. Its owner carries it out with [`Store::remove_session`]. If that owner dies
    /// before, the next one does.
    pub async fn delete_session(
        &self,
        org: OrgId,
        id: SessionId,
        at: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        const SQL: &str =
            "UPDATE sessions SET deleted_at = COALESCE(deleted_at, $3) WHERE org_id = $1 AND id = $2";
        let (org, id) = (org.uuid(), id.uuid());
        administer!(self, tx => {
            let done = sqlx::query(SQL).bind(org).bind(id).bind(at).execute(&mut *tx).await?;
            if done.rows_affected() == 0 { Err(StoreError::Missing("this session")) } else { Ok(()) }
        })
    }

    /// Removes a session with its log, transcript and credentials. Its runs stay in the ledger. Its owner can write
    /// nothing afterwards.
    pub async fn remove_session(&self, org: OrgId, id: SessionId) -> Result<(), StoreError> {
        const DETACH_CHILDREN: &str =
            "UPDATE sessions SET parent_session_id = NULL WHERE org_id = $1 AND parent_session_id = $2";
        const DELETE_SESSION: &str = "DELETE FROM sessions WHERE org_id = $1 AND id = $2";
        let (org, id) = (org.uuid(), id.uuid());
        write!(self, Disk, tx => {
            sqlx::query(DETACH_CHILDREN).bind(org).bind(id).execute(&mut *tx).await?;
            let done = sqlx::query(DELETE_SESSION).bind(org).bind(id).execute(&mut *tx).await?;
            if done.rows_affected() == 0 {
                return Err(StoreError::Missing("this session"));
            }
            Ok(())
        })
    }
}

fn storable_object(object: JsonObject) -> Json<JsonValue> {
    Json(storable_json(JsonValue::Object(object)))
}
