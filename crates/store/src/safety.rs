//! The safety lock, which stops every call; override grants, which let one through in an emergency; and the live instances.

use chrono::{DateTime, Utc};
use proto::{OrgId, UserId};
use uuid::Uuid;

use crate::db::{read, write};
use crate::row::from_row;
use crate::{Store, StoreError};

/// The last change of the global safety lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SafetyLock {
    pub locked: bool,
    pub changed_by: String,
    pub reason: String,
    pub changed_at: DateTime<Utc>,
}

/// A permission to override a denial in an emergency.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverrideGrant {
    pub id: Uuid,
    pub org_id: OrgId,
    pub user_id: UserId,
    pub ticket: String,
    pub reason: String,
    pub granted_by: String,
    pub valid_from: DateTime<Utc>,
    pub valid_until: DateTime<Utc>,
    pub revoked_by: Option<String>,
    pub revoked_at: Option<DateTime<Utc>>,
}

from_row!(SafetyLock, row => SafetyLock {
    locked: row.try_get("locked")?,
    changed_by: row.try_get("changed_by")?,
    reason: row.try_get("reason")?,
    changed_at: row.try_get("changed_at")?,
});

from_row!(OverrideGrant, row => OverrideGrant {
    id: row.try_get("id")?,
    org_id: row.try_get::<Uuid, _>("org_id")?.into(),
    user_id: row.try_get::<Uuid, _>("user_id")?.into(),
    ticket: row.try_get("ticket")?,
    reason: row.try_get("reason")?,
    granted_by: row.try_get("granted_by")?,
    valid_from: row.try_get("valid_from")?,
    valid_until: row.try_get("valid_until")?,
    revoked_by: row.try_get("revoked_by")?,
    revoked_at: row.try_get("revoked_at")?,
});

/// The SELECT of grants.
macro_rules! grants {
    ($rest:literal) => {
        concat!(
            "SELECT id, org_id, user_id, ticket, reason, granted_by, valid_from, valid_until, revoked_by, revoked_at
            FROM override_grants ",
            $rest
        )
    };
}

pub(crate) const SELECT_LOCK: &str =
    "SELECT locked, changed_by, reason, changed_at FROM safety_lock WHERE id = 1";
pub(crate) const SELECT_GRANTS: &str = grants!("ORDER BY valid_from, id");

impl Store {
    /// All grants, including expired and revoked ones, oldest first.
    pub async fn override_grants(&self) -> Result<Vec<OverrideGrant>, StoreError> {
        Ok(read!(self, pool => sqlx::query_as(SELECT_GRANTS).fetch_all(pool).await)?)
    }

    /// The safety lock; absent if it was never set.
    pub async fn safety_lock(&self) -> Result<Option<SafetyLock>, StoreError> {
        Ok(read!(self, pool => sqlx::query_as(SELECT_LOCK).fetch_optional(pool).await)?)
    }

    /// The valid grant of a user that lasts longest.
    pub async fn override_grant(
        &self,
        org: OrgId,
        user: UserId,
        ticket: &str,
        now: DateTime<Utc>,
    ) -> Result<Option<OverrideGrant>, StoreError> {
        const SQL: &str = grants!(
            "WHERE org_id = $1 AND user_id = $2 AND ticket = $3 AND valid_from <= $4 AND valid_until > $4
            AND revoked_at IS NULL ORDER BY valid_until DESC LIMIT 1"
        );
        let (org, user) = (org.uuid(), user.uuid());
        Ok(read!(self, pool => sqlx::query_as(SQL)
            .bind(org).bind(user).bind(ticket).bind(now).fetch_optional(pool).await)?)
    }

    /// Records a heartbeat of an instance, and which process it is.
    pub async fn see_instance(
        &self,
        id: &str,
        process: Option<&str>,
        at: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        const SQL: &str = "INSERT INTO instances (id, seen_at, process) VALUES ($1, $2, $3)
            ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, process = excluded.process";
        let (id, process) = (id.to_owned(), process.map(str::to_owned));
        write!(self, Process, tx => {
            sqlx::query(SQL).bind(id).bind(at).bind(process).execute(&mut *tx).await?;
            Ok(())
        })
    }

    /// The process of an instance that was seen since a time, if it is known. `None`: it was not seen.
    pub async fn seen_instance(
        &self,
        id: &str,
        since: DateTime<Utc>,
    ) -> Result<Option<Option<String>>, StoreError> {
        const SQL: &str = "SELECT process FROM instances WHERE id = $1 AND seen_at >= $2";
        Ok(read!(self, pool => sqlx::query_scalar(SQL).bind(id).bind(since).fetch_optional(pool).await)?)
    }

    /// All instances whose process is known, with that process.
    pub async fn instance_processes(&self) -> Result<Vec<(String, String)>, StoreError> {
        const SQL: &str = "SELECT id, process FROM instances WHERE process IS NOT NULL ORDER BY id";
        Ok(read!(self, pool => sqlx::query_as(SQL).fetch_all(pool).await)?)
    }

    /// Deletes all instances but this one, for a database that only one instance uses.
    pub async fn forget_other_instances(&self, id: &str) -> Result<(), StoreError> {
        let id = id.to_owned();
        write!(self, Disk, tx => {
            sqlx::query("DELETE FROM instances WHERE id <> $1").bind(id).execute(&mut *tx).await?;
            Ok(())
        })
    }

    /// Deletes an instance that has ended.
    pub async fn forget_instance(&self, id: &str) -> Result<(), StoreError> {
        let id = id.to_owned();
        write!(self, Disk, tx => {
            sqlx::query("DELETE FROM instances WHERE id = $1").bind(id).execute(&mut *tx).await?;
            Ok(())
        })
    }
}
