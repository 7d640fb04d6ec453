//! The session record: what it is, whose it is, and which sandbox it has.

use chrono::{DateTime, Utc};
use proto::{ClientType, OrgId, SessionId, SessionStatus, SessionType, UserId};
use sqlx::FromRow;
use uuid::Uuid;

use crate::db::{read, write};
use crate::{Store, StoreError};

/// A session to be made.
pub struct NewSession {
    pub id: SessionId,
    pub org_id: OrgId,
    pub created_by: Option<UserId>,
    pub session_type: SessionType,
    pub client_type: Option<ClientType>,
    pub sandbox_provider: String,
    pub at: DateTime<Utc>,
}

/// What identity needs to know of a session.
#[derive(Clone, Debug, FromRow)]
pub struct SessionRow {
    #[sqlx(try_from = "Uuid")]
    pub id: SessionId,
    #[sqlx(try_from = "Uuid")]
    pub org_id: OrgId,
    #[sqlx(try_from = "String")]
    pub status: SessionStatus,
    #[sqlx(try_from = "String")]
    pub session_type: SessionType,
    pub stop_reason: Option<String>,
    pub sandbox_id: Option<String>,
    pub sandbox_generation: i64,
    pub ended_at: Option<DateTime<Utc>>,
}

impl Store {
    pub async fn create_session(&self, new: NewSession) -> Result<(), StoreError> {
        const SQL: &str =
            "INSERT INTO sessions (id, org_id, created_by, session_type, client_type, origin, status,
            sandbox_provider, sandbox_generation, owner_epoch, seq_reserved, pr_urls, metrics, started_at,
            last_activity_at)
            VALUES ($1, $2, $3, $4, $5, $6, 'pending', $7, 0, 0, 0, '[]', '{}', $8, $8)";
        let origin = if new.client_type == Some(ClientType::Cli) { "cli" } else { "web" };
        write!(self, Disk, tx => {
            sqlx::query(SQL)
                .bind(new.id.uuid()).bind(new.org_id.uuid()).bind(new.created_by.map(UserId::uuid))
                .bind(new.session_type.as_str()).bind(new.client_type.map(ClientType::as_str)).bind(origin)
                .bind(new.sandbox_provider).bind(new.at)
                .execute(&mut *tx).await?;
            Ok(())
        })
        .map_err(|error: StoreError| error.on_constraint("this session", "this organisation or user"))
    }

    /// A session by its id alone. Whoever asks must compare the organisation: `edge` does it in one extractor.
    pub async fn session(&self, id: SessionId) -> Result<Option<SessionRow>, StoreError> {
        const SQL: &str =
            "SELECT id, org_id, status, session_type, stop_reason, sandbox_id, sandbox_generation, ended_at
            FROM sessions WHERE id = $1";
        let id = id.uuid();
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(id).fetch_optional(pool).await)?)
    }

    /// Begins a new sandbox generation, on a new sandbox and at the end of one: all earlier tokens are dead.
    pub async fn next_sandbox_generation(&self, id: SessionId) -> Result<i64, StoreError> {
        const SQL: &str = "UPDATE sessions SET sandbox_generation = sandbox_generation + 1 WHERE id = $1
            RETURNING sandbox_generation";
        let id = id.uuid();
        write!(self, Disk, tx => {
            let generation = sqlx::query_scalar(SQL).bind(id).fetch_optional(&mut *tx).await?;
            generation.ok_or(StoreError::Missing("this session"))
        })
    }
}
