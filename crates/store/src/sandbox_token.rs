//! Sandbox tokens: each belongs to a session and one generation of its sandbox, and expires with that generation.

use proto::SessionId;

use crate::db::{read, write};
use crate::{Store, StoreError, TokenHash};

/// A new token for the current sandbox of a session.
pub struct NewSandboxToken {
    pub token_hash: TokenHash,
    pub session_id: SessionId,
}

impl Store {
    pub async fn create_sandbox_token(&self, new: NewSandboxToken) -> Result<(), StoreError> {
        const SQL: &str = "INSERT INTO sandbox_tokens (token_hash, org_id, session_id, generation)
            SELECT $1, org_id, id, sandbox_generation FROM sessions WHERE id = $2 AND ended_at IS NULL";
        let (hash, session) = (new.token_hash.to_vec(), new.session_id.uuid());
        write!(self, Disk, tx => {
            let done = sqlx::query(SQL).bind(hash).bind(session).execute(&mut *tx).await?;
            if done.rows_affected() == 0 { Err(StoreError::Missing("this live session")) } else { Ok(()) }
        })
    }

    /// Whether any session has this sandbox.
    pub async fn is_sandbox_of_session(&self, sandbox_id: &str) -> Result<bool, StoreError> {
        const SQL: &str = "SELECT EXISTS (SELECT 1 FROM sessions WHERE sandbox_id = $1)";
        Ok(read!(self, pool => sqlx::query_scalar(SQL).bind(sandbox_id).fetch_one(pool).await)?)
    }
}
