//! The vault's rows: encrypted values by owner. This crate stores them and cannot decrypt them.

use chrono::{DateTime, Utc};
use proto::http::SecretPurpose;
use proto::{ConfigurationId, OrgId, RepoId, SecretId, SessionId, UserId};
use sqlx::FromRow;
use uuid::Uuid;

use crate::db::{read, write};
use crate::gate::administer;
use crate::row::{from_row, storable, word};
use crate::{Store, StoreError};

/// The sessions that may use a secret: all of the organization, those of one repository or configuration, or one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Org,
    Repo(RepoId),
    Configuration(ConfigurationId),
    Session(SessionId),
}

impl Scope {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Org => "org",
            Self::Repo(_) => "repo",
            Self::Configuration(_) => "configuration",
            Self::Session(_) => "session",
        }
    }

    fn repo_id(self) -> Option<Uuid> {
        match self {
            Self::Repo(id) => Some(id.uuid()),
            _ => None,
        }
    }

    fn configuration_id(self) -> Option<Uuid> {
        match self {
            Self::Configuration(id) => Some(id.uuid()),
            _ => None,
        }
    }

    fn session_id(self) -> Option<Uuid> {
        match self {
            Self::Session(id) => Some(id.uuid()),
            _ => None,
        }
    }

    /// The id of the owner, which the organization itself is for its own secrets.
    fn owner(self, org: OrgId) -> Uuid {
        self.repo_id().or(self.configuration_id()).or(self.session_id()).unwrap_or(org.uuid())
    }
}

/// An encrypted value and the id of the key that decrypts it.
#[derive(Clone, Debug, FromRow)]
pub struct Sealed {
    pub key_id: String,
    pub nonce: Vec<u8>,
    pub ciphertext: Vec<u8>,
}

/// A new secret, which replaces one with the same owner, key and purpose.
pub struct NewSecret {
    pub id: SecretId,
    pub org_id: OrgId,
    pub scope: Scope,
    pub purpose: SecretPurpose,
    pub key: String,
    pub value: Sealed,
    pub created_by: Option<UserId>,
    pub at: DateTime<Utc>,
}

impl NewSecret {
    /// Its owner and key, which identify a row.
    fn place(&self) -> (Uuid, &'static str, Uuid, &str) {
        (self.org_id.uuid(), self.scope.as_str(), self.scope.owner(self.org_id), self.key.as_str())
    }
}

/// A secret without its value, for lists.
#[derive(Clone, Debug)]
pub struct SecretEntry {
    pub id: SecretId,
    pub org_id: OrgId,
    pub scope: Scope,
    pub purpose: SecretPurpose,
    pub key: String,
    pub key_id: String,
    pub created_at: DateTime<Utc>,
    pub updated_at: DateTime<Utc>,
}

/// A secret with its encrypted value.
#[derive(Clone, Debug)]
pub struct SealedSecret {
    pub scope: Scope,
    pub purpose: SecretPurpose,
    pub key: String,
    pub value: Sealed,
}

/// The number of secrets, the time of the last change, and the bytes of all values.
pub type SecretsMark = (i64, Option<DateTime<Utc>>, Option<i64>);

/// The scope of a row, from the columns of its possible owners.
macro_rules! scope_of {
    ($row:ident) => {{
        let owner = |column| $row.try_get::<Option<Uuid>, _>(column);
        if let Some(id) = owner("repo_id")? {
            Scope::Repo(id.into())
        } else if let Some(id) = owner("configuration_id")? {
            Scope::Configuration(id.into())
        } else {
            owner("session_id")?.map_or(Scope::Org, |id| Scope::Session(id.into()))
        }
    }};
}

from_row!(SecretEntry, row => SecretEntry {
    id: row.try_get::<Uuid, _>("id")?.into(),
    org_id: row.try_get::<Uuid, _>("org_id")?.into(),
    scope: scope_of!(row),
    purpose: word(row.try_get("purpose")?)?,
    key: row.try_get("key")?,
    key_id: row.try_get("key_id")?,
    created_at: row.try_get("created_at")?,
    updated_at: row.try_get("updated_at")?,
});

from_row!(SealedSecret, row => SealedSecret {
    scope: scope_of!(row),
    purpose: word(row.try_get("purpose")?)?,
    key: row.try_get("key")?,
    value: Sealed {
        key_id: row.try_get("key_id")?,
        nonce: row.try_get("nonce")?,
        ciphertext: row.try_get("ciphertext")?,
    },
});

/// Selects a secret by its owner and key.
macro_rules! by_owner {
    ($before:literal, $after:literal) => {
        concat!(
            $before,
            " WHERE org_id = $1 AND scope = $2 AND key = $3
            AND COALESCE(repo_id, configuration_id, session_id, org_id) = $4",
            $after
        )
    };
}

/// The columns of a [`SecretEntry`].
macro_rules! entries {
    ($rest:literal) => {
        concat!(
            "SELECT id, org_id, repo_id, configuration_id, session_id, purpose, key, key_id, created_at, updated_at
            FROM secrets ",
            $rest
        )
    };
}

impl Store {
    /// Stores all of these secrets or none, and returns how many are new. The purpose of an existing secret never changes.
    pub async fn put_secrets(&self, mut all: Vec<NewSecret>) -> Result<u64, StoreError> {
        const SQL: &str =
            "INSERT INTO secrets (id, org_id, scope, repo_id, configuration_id, session_id, purpose, key, key_id, nonce,
            ciphertext, created_by, created_at, updated_at)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $13)
            ON CONFLICT (org_id, scope, COALESCE(repo_id, configuration_id, session_id, org_id), key) DO UPDATE
            SET key_id = excluded.key_id, nonce = excluded.nonce, ciphertext = excluded.ciphertext,
                updated_at = excluded.updated_at
            WHERE secrets.purpose = excluded.purpose
            RETURNING id";
        const OTHER_PURPOSE: &str =
            "a secret of this name has another purpose, which it keeps: remove it first, or name its purpose";
        // Concurrent callers must lock rows in the same order, or PostgreSQL aborts one of them because of a deadlock.
        all.sort_by(|a, b| a.place().cmp(&b.place()));
        administer!(self, tx => {
            let mut made = 0;
            for new in all {
                let (id, scope) = (new.id.uuid(), new.scope);
                let kept: Option<Uuid> = sqlx::query_scalar(SQL)
                    .bind(id).bind(new.org_id.uuid()).bind(scope.as_str()).bind(scope.repo_id())
                    .bind(scope.configuration_id()).bind(scope.session_id()).bind(new.purpose.as_str()).bind(new.key)
                    .bind(new.value.key_id).bind(new.value.nonce).bind(new.value.ciphertext)
                    .bind(new.created_by.map(UserId::uuid)).bind(new.at)
                    .fetch_optional(&mut *tx).await?;
                let kept = kept.ok_or(StoreError::Refused(OTHER_PURPOSE))?;
                made += u64::from(kept == id);
            }
            Ok(made)
        })
        .map_err(|error: StoreError| {
            error.on_constraint("this secret", "this organization, repo, configuration or session")
        })
    }

    /// All secrets of an organization, without their values and without those of single sessions.
    pub async fn secrets(&self, org: OrgId) -> Result<Vec<SecretEntry>, StoreError> {
        const SQL: &str = entries!("WHERE org_id = $1 AND scope <> 'session' ORDER BY scope, key, id");
        let org = org.uuid();
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(org).fetch_all(pool).await)?)
    }

    /// The encrypted value of one secret. A secret of another purpose does not exist here.
    pub async fn sealed_secret(
        &self,
        org: OrgId,
        scope: Scope,
        purpose: SecretPurpose,
        key: &str,
    ) -> Result<Option<Sealed>, StoreError> {
        const SQL: &str = by_owner!("SELECT key_id, nonce, ciphertext FROM secrets", " AND purpose = $5");
        let (owner, key) = (scope.owner(org), storable(key.to_owned()));
        Ok(read!(self, pool => {
            sqlx::query_as(SQL)
                .bind(org.uuid()).bind(scope.as_str()).bind(key).bind(owner).bind(purpose.as_str())
                .fetch_optional(pool).await
        })?)
    }

    /// All secrets of one purpose that a session may use: its organization's, those of its repositories and configuration,
    /// and its own.
    pub async fn sealed_secrets_of_session(
        &self,
        org: OrgId,
        session: SessionId,
        purpose: SecretPurpose,
    ) -> Result<Vec<SealedSecret>, StoreError> {
        const SQL: &str =
            "SELECT x.repo_id, x.configuration_id, x.session_id, x.purpose, x.key, x.key_id, x.nonce, x.ciphertext
            FROM secrets x JOIN sessions s ON s.org_id = x.org_id
            WHERE s.org_id = $1 AND s.id = $2 AND x.purpose = $3
            AND (x.scope = 'org' OR x.session_id = s.id OR x.configuration_id = s.configuration_id
                OR x.repo_id IN (SELECT r.repo_id FROM configuration_repos r
                    WHERE r.org_id = s.org_id AND r.configuration_id = s.configuration_id))
            ORDER BY x.key, x.id";
        let (org, session) = (org.uuid(), session.uuid());
        Ok(read!(self, pool => {
            sqlx::query_as(SQL).bind(org).bind(session).bind(purpose.as_str()).fetch_all(pool).await
        })?)
    }

    /// The encrypted secrets of an organization and its repositories and configurations, or only those of a session. The
    /// shortest come first, until they have this many bytes.
    pub async fn shortest_secrets(
        &self,
        org: OrgId,
        session: Option<SessionId>,
        bytes: i64,
    ) -> Result<Vec<SealedSecret>, StoreError> {
        const SQL: &str = "SELECT repo_id, configuration_id, session_id, purpose, key, key_id, nonce, ciphertext
            FROM (SELECT s.*, sum(length(ciphertext)) OVER (ORDER BY length(ciphertext), id) AS bytes FROM secrets s
                WHERE org_id = $1 AND (scope = 'session') = ($2 IS NOT NULL) AND ($2 IS NULL OR session_id = $2)) x
            WHERE bytes <= $3 ORDER BY bytes";
        let (org, session) = (org.uuid(), session.map(SessionId::uuid));
        Ok(read!(self, pool => {
            sqlx::query_as(SQL).bind(org).bind(session).bind(bytes).fetch_all(pool).await
        })?)
    }

    /// What differs after a secret of an organization, or of a session, was added, changed or removed.
    pub async fn secrets_mark(
        &self,
        org: OrgId,
        session: Option<SessionId>,
    ) -> Result<SecretsMark, StoreError> {
        const SQL: &str = "SELECT count(*), max(updated_at), sum(length(ciphertext)) FROM secrets
            WHERE org_id = $1 AND (scope = 'session') = ($2 IS NOT NULL) AND ($2 IS NULL OR session_id = $2)";
        let (org, session) = (org.uuid(), session.map(SessionId::uuid));
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(org).bind(session).fetch_one(pool).await)?)
    }

    pub async fn delete_secret(&self, org: OrgId, scope: Scope, key: &str) -> Result<(), StoreError> {
        const SQL: &str = by_owner!("DELETE FROM secrets", "");
        let (owner, org, key) = (scope.owner(org), org.uuid(), key.to_owned());
        administer!(self, tx => {
            let done = sqlx::query(SQL)
                .bind(org).bind(scope.as_str()).bind(key).bind(owner)
                .execute(&mut *tx).await?;
            if done.rows_affected() == 0 { Err(StoreError::Missing("this secret")) } else { Ok(()) }
        })
    }

    /// Secrets of all organizations that are not encrypted with the key `current`: what a rotation has left to do.
    pub async fn secrets_not_under(&self, current: &str, limit: i64) -> Result<Vec<SecretEntry>, StoreError> {
        const SQL: &str = entries!("WHERE key_id <> $1 ORDER BY id LIMIT $2");
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
