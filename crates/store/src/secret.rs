//! The vault's rows: encrypted values by owner. This crate stores them and cannot decrypt them.

use chrono::{DateTime, Utc};
use proto::{ConfigurationId, OrgId, RepoId, SecretId, UserId};
use sqlx::FromRow;
use uuid::Uuid;

use crate::db::{read, write};
use crate::gate::administer;
use crate::{Store, StoreError};

/// Who may use a secret: every session of the organization, or those of one repository or configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Org,
    Repo(RepoId),
    Configuration(ConfigurationId),
}

impl Scope {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Org => "org",
            Self::Repo(_) => "repo",
            Self::Configuration(_) => "configuration",
        }
    }

    fn repo(self) -> Option<Uuid> {
        match self {
            Self::Repo(id) => Some(id.uuid()),
            _ => None,
        }
    }

    fn configuration(self) -> Option<Uuid> {
        match self {
            Self::Configuration(id) => Some(id.uuid()),
            _ => None,
        }
    }
}

/// An encrypted value and the id of the key that decrypts it.
#[derive(Clone, Debug, FromRow)]
pub struct Sealed {
    pub key_id: String,
    pub nonce: Vec<u8>,
    pub ciphertext: Vec<u8>,
}

/// A new secret, which replaces one with the same owner and key.
pub struct NewSecret {
    pub id: SecretId,
    pub org_id: OrgId,
    pub scope: Scope,
    pub key: String,
    pub value: Sealed,
    pub created_by: Option<UserId>,
    pub at: DateTime<Utc>,
}

impl NewSecret {
    /// Its owner and key, which identify a row.
    fn place(&self) -> (Uuid, &'static str, Option<Uuid>, Option<Uuid>, &str) {
        (
            self.org_id.uuid(),
            self.scope.as_str(),
            self.scope.repo(),
            self.scope.configuration(),
            self.key.as_str(),
        )
    }
}

/// A secret without its value, for lists.
#[derive(Clone, Debug, FromRow)]
pub struct SecretEntry {
    #[sqlx(try_from = "Uuid")]
    pub id: SecretId,
    #[sqlx(try_from = "Uuid")]
    pub org_id: OrgId,
    #[sqlx(flatten)]
    pub owner: ScopeColumns,
    pub key: String,
    pub key_id: String,
    pub created_at: DateTime<Utc>,
    pub updated_at: DateTime<Utc>,
}

/// The scope of a secret, from its two nullable columns.
#[derive(Clone, Debug, FromRow)]
pub struct ScopeColumns {
    repo_id: Option<Uuid>,
    configuration_id: Option<Uuid>,
}

impl SecretEntry {
    pub fn scope(&self) -> Scope {
        match (self.owner.repo_id, self.owner.configuration_id) {
            (Some(id), _) => Scope::Repo(id.into()),
            (None, Some(id)) => Scope::Configuration(id.into()),
            (None, None) => Scope::Org,
        }
    }
}

/// Selects a secret by its owner and key; NULL ids compare as equal on both databases.
macro_rules! by_owner {
    ($before:literal) => {
        concat!(
            $before,
            " WHERE org_id = $1 AND scope = $2 AND key = $3
            AND COALESCE(repo_id, configuration_id, org_id) = COALESCE($4, $5, $1)"
        )
    };
}

impl Store {
    /// Stores all of these secrets or none, and returns how many are new.
    pub async fn put_secrets(&self, mut all: Vec<NewSecret>) -> Result<u64, StoreError> {
        const SQL: &str =
            "INSERT INTO secrets (id, org_id, scope, repo_id, configuration_id, key, key_id, nonce,
            ciphertext, created_by, created_at, updated_at)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $11)
            ON CONFLICT (org_id, scope, COALESCE(repo_id, configuration_id, org_id), key) DO UPDATE
            SET key_id = excluded.key_id, nonce = excluded.nonce, ciphertext = excluded.ciphertext,
                updated_at = excluded.updated_at
            RETURNING id";
        // Concurrent callers must lock rows in the same order, or PostgreSQL aborts one of them because of a deadlock.
        all.sort_by(|a, b| a.place().cmp(&b.place()));
        administer!(self, tx => {
            let mut made = 0;
            for new in all {
                let id = new.id.uuid();
                let kept: Uuid = sqlx::query_scalar(SQL)
                    .bind(id).bind(new.org_id.uuid()).bind(new.scope.as_str()).bind(new.scope.repo())
                    .bind(new.scope.configuration()).bind(new.key).bind(new.value.key_id).bind(new.value.nonce)
                    .bind(new.value.ciphertext).bind(new.created_by.map(UserId::uuid)).bind(new.at)
                    .fetch_one(&mut *tx).await?;
                made += u64::from(kept == id);
            }
            Ok(made)
        })
        .map_err(|error: StoreError| {
            error.on_constraint("this secret", "this organization, repo or configuration")
        })
    }

    /// All secrets of an organization, without their values.
    pub async fn secrets(&self, org: OrgId) -> Result<Vec<SecretEntry>, StoreError> {
        const SQL: &str = "SELECT id, org_id, repo_id, configuration_id, key, key_id, created_at, updated_at
            FROM secrets WHERE org_id = $1 ORDER BY scope, key, id";
        let org = org.uuid();
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(org).fetch_all(pool).await)?)
    }

    /// The encrypted value of one secret.
    pub async fn sealed_secret(
        &self,
        org: OrgId,
        scope: Scope,
        key: &str,
    ) -> Result<Option<Sealed>, StoreError> {
        const SQL: &str = by_owner!("SELECT key_id, nonce, ciphertext FROM secrets");
        let (org, repo, configuration) = (org.uuid(), scope.repo(), scope.configuration());
        Ok(read!(self, pool => {
            sqlx::query_as(SQL)
                .bind(org).bind(scope.as_str()).bind(key).bind(repo).bind(configuration)
                .fetch_optional(pool).await
        })?)
    }

    pub async fn delete_secret(&self, org: OrgId, scope: Scope, key: &str) -> Result<(), StoreError> {
        const SQL: &str = by_owner!("DELETE FROM secrets");
        let (org, key) = (org.uuid(), key.to_owned());
        administer!(self, tx => {
            let done = sqlx::query(SQL)
                .bind(org).bind(scope.as_str()).bind(key).bind(scope.repo()).bind(scope.configuration())
                .execute(&mut *tx).await?;
            if done.rows_affected() == 0 { Err(StoreError::Missing("this secret")) } else { Ok(()) }
        })
    }

    /// Secrets of all organizations that are not encrypted with the key `current`: what a rotation has left to do.
    pub async fn secrets_not_under(&self, current: &str, limit: i64) -> Result<Vec<SecretEntry>, StoreError> {
        const SQL: &str = "SELECT id, org_id, repo_id, configuration_id, key, key_id, created_at, updated_at
            FROM secrets WHERE key_id <> $1 ORDER BY id LIMIT $2";
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(current).bind(limit).fetch_all(pool).await)?)
    }

    /// The ids of all keys in use. Without one of them some secret cannot be decrypted.
    pub async fn secret_key_ids(&self) -> Result<Vec<String>, StoreError> {
        const SQL: &str = "SELECT DISTINCT key_id FROM secrets ORDER BY key_id";
        Ok(read!(self, pool => sqlx::query_scalar(SQL).fetch_all(pool).await)?)
    }

    /// Replaces the encrypted value of a secret, unless a new value was stored meanwhile.
    pub async fn reseal_secret(&self, id: SecretId, from: Sealed, to: Sealed) -> Result<bool, StoreError> {
        const SQL: &str =
            "UPDATE secrets SET key_id = $3, nonce = $4, ciphertext = $5 WHERE id = $1 AND nonce = $2";
        let id = id.uuid();
        write!(self, Disk, tx => {
            let done = sqlx::query(SQL)
                .bind(id).bind(from.nonce).bind(to.key_id).bind(to.nonce).bind(to.ciphertext)
                .execute(&mut *tx).await?;
            Ok(done.rows_affected() == 1)
        })
    }
}
