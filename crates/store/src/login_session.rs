//! Browser logins: an opaque credential in a cookie, which can be ended before it expires.

use chrono::{DateTime, Utc};
use proto::{OrgId, UserId};

use crate::db::{long_before, read, write};
use crate::{Member, Store, StoreError, TokenHash};

/// A new login.
pub struct NewLoginSession {
    pub token_hash: TokenHash,
    pub org_id: OrgId,
    pub user_id: UserId,
    pub at: DateTime<Utc>,
    pub expires_at: DateTime<Utc>,
}

impl Store {
    pub async fn create_login_session(&self, new: NewLoginSession) -> Result<(), StoreError> {
        const DELETE_EXPIRED: &str = "DELETE FROM login_sessions WHERE org_id = $1 AND expires_at < $2";
        const SQL: &str = "INSERT INTO login_sessions (token_hash, org_id, user_id, created_at, expires_at)
            VALUES ($1, $2, $3, $4, $5)";
        write!(self, Disk, tx => {
            sqlx::query(DELETE_EXPIRED).bind(new.org_id.uuid()).bind(long_before(new.at)).execute(&mut *tx).await?;
            sqlx::query(SQL)
                .bind(new.token_hash.to_vec()).bind(new.org_id.uuid()).bind(new.user_id.uuid())
                .bind(new.at).bind(new.expires_at)
                .execute(&mut *tx).await?;
            Ok(())
        })
        .map_err(|error: StoreError| error.on_constraint("this login", "this member"))
    }

    /// The member of a login that has neither expired nor ended.
    pub async fn login_session_owner(
        &self,
        hash: &TokenHash,
        now: DateTime<Utc>,
    ) -> Result<Option<Member>, StoreError> {
        const SQL: &str = "SELECT m.user_id, m.org_id, u.email, m.name, m.role, m.created_at
            FROM login_sessions l JOIN members m ON m.org_id = l.org_id AND m.user_id = l.user_id
            JOIN users u ON u.id = m.user_id
            WHERE l.token_hash = $1 AND l.ended_at IS NULL AND l.expires_at > $2";
        let hash = hash.as_slice();
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(hash).bind(now).fetch_optional(pool).await)?)
    }

    /// Ends a login. Ending it twice is no error.
    pub async fn end_login_session(&self, hash: &TokenHash, now: DateTime<Utc>) -> Result<(), StoreError> {
        const SQL: &str =
            "UPDATE login_sessions SET ended_at = $2 WHERE token_hash = $1 AND ended_at IS NULL";
        let hash = hash.to_vec();
        write!(self, Disk, tx => {
            sqlx::query(SQL).bind(hash).bind(now).execute(&mut *tx).await?;
            Ok(())
        })
    }
}
