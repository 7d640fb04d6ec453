//! One-time login links: the only credential that is allowed in a URL that a person opens, because it works once.

use chrono::{DateTime, Utc};
use proto::{OrgId, UserId};
use uuid::Uuid;

use crate::db::{long_before, write};
use crate::{Store, StoreError, TokenHash};

/// A new code.
pub struct NewLoginCode {
    pub code_hash: TokenHash,
    pub org_id: OrgId,
    pub user_id: UserId,
    pub at: DateTime<Utc>,
    pub expires_at: DateTime<Utc>,
}

impl Store {
    pub async fn create_login_code(&self, code: NewLoginCode) -> Result<(), StoreError> {
        const DELETE_EXPIRED: &str = "DELETE FROM login_codes WHERE org_id = $1 AND expires_at < $2";
        const SQL: &str = "INSERT INTO login_codes (code_hash, org_id, user_id, expires_at)
            VALUES ($1, $2, $3, $4)";
        write!(self, Disk, tx => {
            sqlx::query(DELETE_EXPIRED).bind(code.org_id.uuid()).bind(long_before(code.at)).execute(&mut *tx).await?;
            sqlx::query(SQL)
                .bind(code.code_hash.to_vec()).bind(code.org_id.uuid()).bind(code.user_id.uuid())
                .bind(code.expires_at)
                .execute(&mut *tx).await?;
            Ok(())
        })
        .map_err(|error: StoreError| error.on_constraint("this code", "this member"))
    }

    /// Redeems a code, in one statement: of two callers with the same code, one gets the member.
    pub async fn redeem_login_code(
        &self,
        hash: &TokenHash,
        now: DateTime<Utc>,
    ) -> Result<Option<(OrgId, UserId)>, StoreError> {
        const SQL: &str = "UPDATE login_codes SET used_at = $2
            WHERE code_hash = $1 AND used_at IS NULL AND expires_at > $2 RETURNING org_id, user_id";
        let hash = hash.to_vec();
        write!(self, Disk, tx => {
            let row: Option<(Uuid, Uuid)> =
                sqlx::query_as(SQL).bind(hash).bind(now).fetch_optional(&mut *tx).await?;
            Ok(row.map(|(org, user)| (OrgId::from(org), UserId::from(user))))
        })
    }
}
