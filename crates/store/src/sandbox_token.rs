//! Tokens of sandboxes: bound to a session and one generation of its sandbox, dead with it.

use chrono::{DateTime, Utc};
use proto::{ClientType, OrgId, SessionId, SessionType};
use sqlx::postgres::PgRow;
use sqlx::{FromRow, PgPool, Row as _};
use uuid::Uuid;

use crate::db::{find, read, write};
use crate::row::{from_row, word};
use crate::together::Found;
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

/// The SELECT of owners by their tokens, with the rest that makes it a query.
macro_rules! by_token {
    ($rest:literal) => {
        concat!(
            "SELECT s.id AS session_id, s.org_id, s.session_type, s.client_type
            FROM sandbox_tokens t JOIN sessions s ON s.id = t.session_id AND s.sandbox_generation = t.generation
            WHERE t.revoked_at IS NULL AND s.ended_at IS NULL AND t.token_hash = ",
            $rest
        )
    };
}

/// The same by the ids of their sessions.
macro_rules! by_session {
    ($rest:literal) => {
        concat!(
            "SELECT id AS session_id, org_id, session_type, client_type FROM sessions
            WHERE ended_at IS NULL AND id = ",
            $rest
        )
    };
}

/// An owner, and the hash it was asked for by.
struct Asked(Vec<u8>, SandboxOwner);

impl FromRow<'_, PgRow> for Asked {
    fn from_row(row: &PgRow) -> sqlx::Result<Self> {
        Ok(Self(row.try_get("asked")?, SandboxOwner::from_row(row)?))
    }
}

/// Several by their tokens.
pub(crate) fn many_by_token(pool: &PgPool, hashes: Vec<Vec<u8>>) -> Found<'_, Vec<u8>, SandboxOwner> {
    const SQL: &str = concat!(
        "SELECT k.hash AS asked, r.* FROM UNNEST($1::bytea[]) AS k (hash) CROSS JOIN LATERAL (",
        by_token!("k.hash LIMIT 1"),
        ") r"
    );
    Box::pin(async move {
        let rows: Vec<Asked> = sqlx::query_as(SQL).bind(hashes).fetch_all(pool).await?;
        Ok(rows.into_iter().map(|Asked(hash, owner)| (hash, owner)).collect())
    })
}

/// Several by their sessions.
pub(crate) fn many_by_session(pool: &PgPool, ids: Vec<Uuid>) -> Found<'_, Uuid, SandboxOwner> {
    const SQL: &str = concat!(
        "SELECT r.* FROM UNNEST($1::uuid[]) AS k (id) CROSS JOIN LATERAL (",
        by_session!("k.id LIMIT 1"),
        ") r"
    );
    Box::pin(async move {
        let rows: Vec<SandboxOwner> = sqlx::query_as(SQL).bind(ids).fetch_all(pool).await?;
        Ok(rows.into_iter().map(|owner| (owner.session_id.uuid(), owner)).collect())
    })
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
        const SQL: &str = by_token!("$1");
        let hash = hash.as_slice();
        Ok(find!(self, together tokens hash.to_vec(), SQL, hash)?)
    }

    /// Whether any session has this sandbox.
    pub async fn is_sandbox_of_session(&self, sandbox_id: &str) -> Result<bool, StoreError> {
        const SQL: &str = "SELECT EXISTS (SELECT 1 FROM sessions WHERE sandbox_id = $1)";
        Ok(read!(self, pool => sqlx::query_scalar(SQL).bind(sandbox_id).fetch_one(pool).await)?)
    }

    /// The same by session id, for the plain per-session token that old sandbox images send.
    pub async fn sandbox_of_session(&self, id: SessionId) -> Result<Option<SandboxOwner>, StoreError> {
        const SQL: &str = by_session!("$1");
        let id = id.uuid();
        Ok(find!(self, together sandboxes id, SQL, id)?)
    }
}
