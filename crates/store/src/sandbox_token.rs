//! Tokens of sandboxes: bound to a session and one generation of its sandbox, dead with it.

use chrono::{DateTime, Utc};
use proto::SessionId;
use sqlx::postgres::PgRow;
use sqlx::{FromRow, PgPool, Row as _};

use crate::db::{find, read, write};
use crate::session_record::records;
use crate::together::Found;
use crate::{SessionRecord, Store, StoreError, TokenHash};

/// A token to be stored, for the present sandbox of a session.
pub struct NewSandboxToken {
    pub token_hash: TokenHash,
    pub session_id: SessionId,
    pub at: DateTime<Utc>,
}

/// The rest of the SELECT of sessions that makes it one by their sandboxes' tokens.
macro_rules! by_token {
    ($hash:literal) => {
        records!(concat!(
            "JOIN sandbox_tokens t ON t.session_id = s.id AND t.generation = s.sandbox_generation
            WHERE t.revoked_at IS NULL AND s.ended_at IS NULL AND t.token_hash = ",
            $hash
        ))
    };
}

/// A session, and the hash it was asked for by.
struct Asked(Vec<u8>, SessionRecord);

impl FromRow<'_, PgRow> for Asked {
    fn from_row(row: &PgRow) -> sqlx::Result<Self> {
        Ok(Self(row.try_get("asked")?, SessionRecord::from_row(row)?))
    }
}

/// Several by their tokens.
pub(crate) fn many_by_token(pool: &PgPool, hashes: Vec<Vec<u8>>) -> Found<'_, Vec<u8>, SessionRecord> {
    const SQL: &str = concat!(
        "SELECT k.hash AS asked, r.* FROM UNNEST($1::bytea[]) AS k (hash) CROSS JOIN LATERAL (",
        by_token!("k.hash LIMIT 1"),
        ") r"
    );
    Box::pin(async move {
        let rows: Vec<Asked> = sqlx::query_as(SQL).bind(hashes).fetch_all(pool).await?;
        Ok(rows.into_iter().map(|Asked(hash, session)| (hash, session)).collect())
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

    /// The session that a sandbox token stands for, if its sandbox is still the session's present one.
    pub async fn session_of_token(&self, hash: &TokenHash) -> Result<Option<SessionRecord>, StoreError> {
        const SQL: &str = by_token!("$1");
        let hash = hash.as_slice();
        Ok(find!(self, together tokens hash.to_vec(), SQL, hash)?)
    }

    /// Whether any session has this sandbox.
    pub async fn is_sandbox_of_session(&self, sandbox_id: &str) -> Result<bool, StoreError> {
        const SQL: &str = "SELECT EXISTS (SELECT 1 FROM sessions WHERE sandbox_id = $1)";
        Ok(read!(self, pool => sqlx::query_scalar(SQL).bind(sandbox_id).fetch_one(pool).await)?)
    }
}
