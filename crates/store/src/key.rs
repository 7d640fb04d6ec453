//! API keys of users: shown once, stored as a hash, revocable.

use chrono::{DateTime, Utc};
use proto::http::KeyScope;
use proto::{ApiKeyId, OrgId, UserId};
use uuid::Uuid;

use crate::db::read;
use crate::gate::administer;
use crate::invocation::{UNSTARTED_OF_KEY, expire_requests};
use crate::row::{from_row, word};
use crate::{Member, Store, StoreError, TokenHash};

/// A key as it is listed. `hint` is its beginning, so that people can recognise it.
#[derive(Clone, Debug)]
pub struct ApiKey {
    pub id: ApiKeyId,
    pub user_id: UserId,
    pub email: String,
    pub name: String,
    pub scope: KeyScope,
    pub hint: String,
    pub created_at: DateTime<Utc>,
    pub revoked_at: Option<DateTime<Utc>>,
}

/// A new key.
pub struct NewApiKey {
    pub id: ApiKeyId,
    pub org_id: OrgId,
    pub user_id: UserId,
    pub name: String,
    pub scope: KeyScope,
    pub hint: String,
    pub key_hash: TokenHash,
    pub at: DateTime<Utc>,
}

/// A valid key, and the member whose it is.
#[derive(Clone, Debug)]
pub struct KeyOwner {
    pub key: ApiKeyId,
    pub scope: KeyScope,
    pub member: Member,
}

from_row!(ApiKey, row => ApiKey {
    id: row.try_get::<Uuid, _>("id")?.into(),
    user_id: row.try_get::<Uuid, _>("user_id")?.into(),
    email: row.try_get("email")?,
    name: row.try_get("name")?,
    scope: word(row.try_get("scope")?)?,
    hint: row.try_get("hint")?,
    created_at: row.try_get("created_at")?,
    revoked_at: row.try_get("revoked_at")?,
});

from_row!(KeyOwner, row => KeyOwner {
    key: row.try_get::<Uuid, _>("key_id")?.into(),
    scope: word(row.try_get("scope")?)?,
    member: Member::from_row(row)?,
});

pub(crate) const INSERT_KEY: &str =
    "INSERT INTO api_keys (id, org_id, user_id, name, scope, hint, key_hash, created_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";

impl Store {
    pub async fn create_key(&self, key: NewApiKey) -> Result<(), StoreError> {
        administer!(self, tx => {
            sqlx::query(INSERT_KEY)
                .bind(key.id.uuid()).bind(key.org_id.uuid()).bind(key.user_id.uuid())
                .bind(key.name).bind(key.scope.as_str()).bind(key.hint).bind(key.key_hash.to_vec()).bind(key.at)
                .execute(&mut *tx).await?;
            Ok(())
        })
        .map_err(|error: StoreError| error.on_constraint("this key", "this member"))
    }

    /// A valid key and its member.
    pub async fn key_owner(&self, hash: &TokenHash) -> Result<Option<KeyOwner>, StoreError> {
        const SQL: &str =
            "SELECT k.id AS key_id, k.scope, m.user_id, m.org_id, u.email, m.name, m.role, m.created_at
            FROM api_keys k JOIN members m ON m.org_id = k.org_id AND m.user_id = k.user_id
            JOIN users u ON u.id = m.user_id WHERE k.key_hash = $1 AND k.revoked_at IS NULL";
        let hash = hash.as_slice();
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(hash).fetch_optional(pool).await)?)
    }

    /// Whether a key exists and has not been revoked. It is deleted with the membership.
    pub async fn is_key_valid(&self, org: OrgId, key: ApiKeyId) -> Result<bool, StoreError> {
        const SQL: &str = "SELECT 1 FROM api_keys WHERE org_id = $1 AND id = $2 AND revoked_at IS NULL";
        let (org, key) = (org.uuid(), key.uuid());
        let found: Option<i32> =
            read!(self, pool => sqlx::query_scalar(SQL).bind(org).bind(key).fetch_optional(pool).await)?;
        Ok(found.is_some())
    }

    /// The owner of a key, whether it was revoked or not.
    pub async fn key_user(&self, org: OrgId, key: ApiKeyId) -> Result<Option<UserId>, StoreError> {
        const SQL: &str = "SELECT user_id FROM api_keys WHERE org_id = $1 AND id = $2";
        let (org, key) = (org.uuid(), key.uuid());
        let found: Option<Uuid> =
            read!(self, pool => sqlx::query_scalar(SQL).bind(org).bind(key).fetch_optional(pool).await)?;
        Ok(found.map(Into::into))
    }

    /// All keys of an organization, newest first.
    pub async fn keys(&self, org: OrgId) -> Result<Vec<ApiKey>, StoreError> {
        const SQL: &str = "SELECT k.id, k.user_id, u.email, k.name, k.scope, k.hint, k.created_at, k.revoked_at
            FROM api_keys k JOIN users u ON u.id = k.user_id WHERE k.org_id = $1 ORDER BY k.created_at DESC, k.id";
        let org = org.uuid();
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(org).fetch_all(pool).await)?)
    }

    /// Revokes a key; `only_of` limits it to keys of that user. What was requested with it and has not started expires.
    pub async fn revoke_key(
        &self,
        org: OrgId,
        key: ApiKeyId,
        only_of: Option<UserId>,
        at: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        const SQL: &str = "UPDATE api_keys SET revoked_at = $3
            WHERE org_id = $1 AND id = $2 AND revoked_at IS NULL AND ($4 IS NULL OR user_id = $4)";
        let (org, key, user) = (org.uuid(), key.uuid(), only_of.map(UserId::uuid));
        administer!(self, tx => {
            let done = sqlx::query(SQL).bind(org).bind(key).bind(at).bind(user).execute(&mut *tx).await?;
            if done.rows_affected() == 0 {
                return Err(StoreError::Missing("this key"));
            }
            expire_requests!(tx, UNSTARTED_OF_KEY, org, key, at);
            Ok(())
        })
    }
}
