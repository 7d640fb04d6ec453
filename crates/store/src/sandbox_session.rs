//! The session of a sandbox, reduced to what its calls need, because every call looks it up.

use proto::{AgentMode, AutomationId, ClientType, ConfigurationId, OrgId, SessionId, SessionType, UserId};
use sqlx::postgres::PgRow;
use sqlx::{FromRow, PgPool, Row as _};
use uuid::Uuid;

use crate::db::find;
use crate::postgres::lookup_batcher::Rows;
use crate::row::{from_row, optional_word, word};
use crate::{Store, StoreError, TokenHash};

/// A session that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SandboxSession {
    pub id: SessionId,
    pub org_id: OrgId,
    pub created_by: Option<UserId>,
    pub configuration_id: Option<ConfigurationId>,
    pub automation_id: Option<AutomationId>,
    pub session_type: SessionType,
    pub client_type: Option<ClientType>,
    pub budget_micros: Option<i64>,
}

impl SandboxSession {
    /// The mode of the session's agent.
    pub const fn mode(&self) -> AgentMode {
        AgentMode::of(self.session_type, self.client_type, self.configuration_id.is_some())
    }
}

from_row!(inline SandboxSession, row => SandboxSession {
    id: row.try_get::<Uuid, _>("id")?.into(),
    org_id: row.try_get::<Uuid, _>("org_id")?.into(),
    created_by: row.try_get::<Option<Uuid>, _>("created_by")?.map(Into::into),
    configuration_id: row.try_get::<Option<Uuid>, _>("configuration_id")?.map(Into::into),
    automation_id: row.try_get::<Option<Uuid>, _>("automation_id")?.map(Into::into),
    session_type: word(row.try_get("session_type")?)?,
    client_type: optional_word(row.try_get("client_type")?)?,
    budget_micros: row.try_get("budget_micros")?,
});

/// The SELECT, followed by the rest of a query.
macro_rules! sessions {
    ($rest:expr) => {
        concat!(
            "SELECT s.id, s.org_id, s.created_by, s.configuration_id, s.automation_id, s.session_type,
            s.client_type, s.budget_micros
            FROM sessions s ",
            $rest
        )
    };
}

macro_rules! by_token {
    ($hash:literal) => {
        sessions!(concat!(
            "JOIN sandbox_tokens t ON t.session_id = s.id AND t.generation = s.sandbox_generation
            WHERE s.ended_at IS NULL AND t.token_hash = ",
            $hash
        ))
    };
}

/// A session, and the hash of its token.
struct SandboxTokenRow(Vec<u8>, SandboxSession);

impl FromRow<'_, PgRow> for SandboxTokenRow {
    fn from_row(row: &PgRow) -> sqlx::Result<Self> {
        Ok(Self(row.try_get("asked")?, SandboxSession::from_row(row)?))
    }
}

/// The batched lookup by token.
pub(crate) fn many_by_token(pool: &PgPool, hashes: Vec<Vec<u8>>) -> Rows<'_, Vec<u8>, SandboxSession> {
    const SQL: &str = concat!(
        "SELECT k.hash AS asked, r.* FROM UNNEST($1::bytea[]) AS k (hash) CROSS JOIN LATERAL (",
        by_token!("k.hash LIMIT 1"),
        ") r"
    );
    Box::pin(async move {
        let rows: Vec<SandboxTokenRow> = sqlx::query_as(SQL).bind(hashes).fetch_all(pool).await?;
        Ok(rows.into_iter().map(|SandboxTokenRow(hash, session)| (hash, session)).collect())
    })
}

/// The batched lookup by id.
pub(crate) fn many(pool: &PgPool, ids: Vec<Uuid>) -> Rows<'_, Uuid, SandboxSession> {
    const SQL: &str = sessions!("WHERE s.id = ANY($1) AND s.ended_at IS NULL");
    Box::pin(async move {
        let rows: Vec<SandboxSession> = sqlx::query_as(SQL).bind(ids).fetch_all(pool).await?;
        Ok(rows.into_iter().map(|session| (session.id.uuid(), session)).collect())
    })
}

impl Store {
    /// The session of a sandbox token, if the token's sandbox is still the session's current one.
    pub async fn session_of_token(&self, hash: &TokenHash) -> Result<Option<SandboxSession>, StoreError> {
        const SQL: &str = by_token!("$1");
        let hash = hash.as_slice();
        Ok(find!(self, batched tokens hash.to_vec(), SQL, hash)?)
    }

    /// A session by its id, for callers that know the sandbox by other means.
    pub async fn sandbox_session(&self, id: SessionId) -> Result<Option<SandboxSession>, StoreError> {
        const SQL: &str = sessions!("WHERE s.id = $1 AND s.ended_at IS NULL");
        let id = id.uuid();
        Ok(find!(self, batched sandboxes id, SQL, id)?)
    }
}
