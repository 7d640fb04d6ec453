//! Tokens of sandboxes: bound to a session and one generation of its sandbox, dead with it.

use chrono::{DateTime, Utc};
use proto::{ClientType, OrgId, SessionId, SessionType};
use uuid::Uuid;

use crate::db::{find, read, write};
use crate::row::{from_row, word};
use crate::{Store, StoreError, TokenHash};

/// A token to be stored, for the present sandbox of a session.
pub struct NewSandboxToken {
    pub token_hash: TokenHash,
    pub session_id: SessionId,
    pub at: DateTime<Utc>,
}

/// The session a sandbox token stands for, and what decides its role.
#[derive(Clone, Debug)]
pub struct SandboxOwner {
    pub session_id: SessionId,
    pub org_id: OrgId,
    pub session_type: SessionType,
    client_type: Option<String>,
}

from_row!(near SandboxOwner, row => SandboxOwner {
    session_id: row.try_get::<Uuid, _>("session_id")?.into(),
    org_id: row.try_get::<Uuid, _>("org_id")?.into(),
    session_type: word(row.try_get("session_type")?)?,
    client_type: row.try_get("client_type")?,
});

impl SandboxOwner {
    /// Whether an automation started the session, which gives its agent another role.
    pub fn is_automation(&self) -> bool {
        self.client_type.as_deref() == Some(ClientType::Automation.as_str())
    }
}

impl Store {
    pub async fn create_sandbox_token(&self, new: NewSandboxToken) -> Result<(), StoreError> {
        const SQL: &str =
            "INSERT INTO sandbox_tokens (token_hash, org_id, session_id, generation, created_at)
            SELECT $1, org_id, id, sandbox_generation, $3 FROM sessions WHERE id = $2 AND ended_at IS NULL";
        let (hash, session) = (new.token_hash.to_vec(), new.session_id.uuid());
        write!(self, Disk, tx => {
            let done = sqlx::query(SQL).bind(hash).bind(session).bind(new.at).execute(&mut *tx).await?;
            if done.rows_affected() == 0 { Err(StoreError::Missing("this live session")) } else { Ok(()) }
        })
    }

    /// Whom a sandbox token stands for, if its sandbox is still the session's present one.
    pub async fn sandbox_owner(&self, hash: &TokenHash) -> Result<Option<SandboxOwner>, StoreError> {
        const SQL: &str = "SELECT s.id AS session_id, s.org_id, s.session_type, s.client_type
            FROM sandbox_tokens t JOIN sessions s ON s.id = t.session_id AND s.sandbox_generation = t.generation
            WHERE t.token_hash = $1 AND t.revoked_at IS NULL AND s.ended_at IS NULL";
        let hash = hash.as_slice();
        Ok(find!(self, SQL, hash)?)
    }

    /// Whether any session has this sandbox.
    pub async fn is_sandbox_of_session(&self, sandbox_id: &str) -> Result<bool, StoreError> {
        const SQL: &str = "SELECT EXISTS (SELECT 1 FROM sessions WHERE sandbox_id = $1)";
        Ok(read!(self, pool => sqlx::query_scalar(SQL).bind(sandbox_id).fetch_one(pool).await)?)
    }

    /// The same by session id, for the plain per-session token that old sandbox images send.
    pub async fn sandbox_of_session(&self, id: SessionId) -> Result<Option<SandboxOwner>, StoreError> {
        const SQL: &str = "SELECT id AS session_id, org_id, session_type, client_type FROM sessions
            WHERE id = $1 AND ended_at IS NULL";
        let id = id.uuid();
        Ok(find!(self, SQL, id)?)
    }
}
