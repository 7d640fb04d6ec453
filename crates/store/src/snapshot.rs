//! Snapshots: their owners, and the sessions and configurations that start from them.

use chrono::{DateTime, Utc};
use proto::socket::SnapshotTarget;
use proto::{OrgId, SessionId};
use uuid::Uuid;

use crate::db::{read, write};
use crate::owner::{LOCK_OWNED_SESSION, fenced};
use crate::row::{from_row, word};
use crate::{Owner, Store, StoreError};

/// A new snapshot of a session's sandbox.
#[derive(Clone, Debug)]
pub struct NewSnapshot {
    /// The provider's id of it.
    pub id: String,
    /// The configuration or session that starts from it from then on.
    pub target: SnapshotTarget,
    pub sandbox_provider: String,
    /// The run that makes it; no other snapshot has the same.
    pub run_id: String,
    pub at: DateTime<Utc>,
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    pub id: String,
    pub org_id: OrgId,
    /// The session that it was made of, which may be deleted.
    pub session_id: SessionId,
    pub target: SnapshotTarget,
    pub sandbox_provider: String,
    pub created_at: DateTime<Utc>,
}

from_row!(Snapshot, row => Snapshot {
    id: row.try_get("id")?,
    org_id: row.try_get::<Uuid, _>("org_id")?.into(),
    session_id: row.try_get::<Uuid, _>("session_id")?.into(),
    target: word(row.try_get("target")?)?,
    sandbox_provider: row.try_get("sandbox_provider")?,
    created_at: row.try_get("created_at")?,
});

/// The condition that nothing starts from a snapshot any more.
macro_rules! unnamed {
    () => {
        "NOT EXISTS (SELECT 1 FROM sessions s WHERE s.org_id = snapshots.org_id AND s.snapshot_id = snapshots.id)
        AND NOT EXISTS
            (SELECT 1 FROM configurations c WHERE c.org_id = snapshots.org_id AND c.snapshot_id = snapshots.id)"
    };
}

/// The condition that its session is deleted.
macro_rules! orphaned {
    () => {
        "NOT EXISTS (SELECT 1 FROM sessions s WHERE s.id = snapshots.session_id)"
    };
}

impl Store {
    /// Stores a snapshot and makes its target start from it, in one transaction. Returns the ids of snapshots whose files can be
    /// removed, because nothing starts from them any more; their rows are deleted. The last five of a session
    /// stay, so that people can start from one by its id.
    pub async fn record_snapshot(&self, owner: &Owner, new: NewSnapshot) -> Result<Vec<String>, StoreError> {
        const SQL: &str =
            "INSERT INTO snapshots (id, org_id, session_id, target, sandbox_provider, run_id, created_at)
            VALUES ($1, $2, $3, $4, $5, $6, $7)";
        const UPDATE_SESSION: &str = "UPDATE sessions SET snapshot_id = $2 WHERE id = $1";
        const UPDATE_CONFIGURATION: &str =
            "UPDATE configurations SET snapshot_id = $2, status = 'ready', error = NULL, updated_at = $3
            WHERE id = (SELECT configuration_id FROM sessions WHERE id = $1)";
        const OF_SESSION: &str = "SELECT snapshot_id FROM sessions WHERE id = $1";
        const OF_CONFIGURATION: &str = "SELECT snapshot_id FROM configurations
            WHERE id = (SELECT configuration_id FROM sessions WHERE id = $1)";
        const DELETE_OLD: &str = concat!(
            "DELETE FROM snapshots WHERE org_id = $1 AND sandbox_provider = $3 AND id <> $4
            AND ((id = $5 AND session_id <> $2) OR (session_id = $2 AND id NOT IN (SELECT k.id FROM snapshots k
                WHERE k.session_id = $2 ORDER BY k.created_at DESC, k.id DESC LIMIT 5)) OR ",
            orphaned!(),
            ") AND ",
            unnamed!(),
            " RETURNING id"
        );
        let owner = *owner;
        write!(self, Disk, tx => {
            fenced!(tx, owner, LOCK_OWNED_SESSION);
            let session = owner.session().uuid();
            sqlx::query(SQL)
                .bind(&new.id).bind(owner.org().uuid()).bind(session).bind(new.target.as_str())
                .bind(&new.sandbox_provider).bind(&new.run_id).bind(new.at).execute(&mut *tx).await?;
            let former = match new.target {
                SnapshotTarget::Session => OF_SESSION,
                SnapshotTarget::Configuration => OF_CONFIGURATION,
            };
            let former: Option<Option<String>> =
                sqlx::query_scalar(former).bind(session).fetch_optional(&mut *tx).await?;
            let done = match new.target {
                SnapshotTarget::Session => {
                    sqlx::query(UPDATE_SESSION).bind(session).bind(&new.id).execute(&mut *tx).await?.rows_affected()
                }
                SnapshotTarget::Configuration => {
                    sqlx::query(UPDATE_CONFIGURATION).bind(session).bind(&new.id).bind(new.at)
                        .execute(&mut *tx).await?.rows_affected()
                }
            };
            if done == 0 {
                return Err(StoreError::Missing("this configuration"));
            }
            let forgotten: Vec<String> = sqlx::query_scalar(DELETE_OLD)
                .bind(owner.org().uuid()).bind(session).bind(new.sandbox_provider).bind(new.id)
                .bind(former.flatten()).fetch_all(&mut *tx).await?;
            Ok(forgotten)
        })
        .map_err(|error: StoreError| error.on_constraint("this snapshot", "this organization"))
    }

    /// Deletes the snapshots of deleted sessions from which nothing starts; returns their ids, to remove the files.
    pub async fn forget_orphaned_snapshots(&self, sandbox_provider: &str) -> Result<Vec<String>, StoreError> {
        const SQL: &str = concat!(
            "DELETE FROM snapshots WHERE sandbox_provider = $1 AND ",
            orphaned!(),
            " AND ",
            unnamed!(),
            " RETURNING id"
        );
        let provider = sandbox_provider.to_owned();
        write!(self, Disk, tx => {
            let forgotten: Vec<String> = sqlx::query_scalar(SQL).bind(provider).fetch_all(&mut *tx).await?;
            Ok(forgotten)
        })
    }

    /// The snapshot that a run has made.
    pub async fn snapshot_of_run(&self, org: OrgId, run_id: &str) -> Result<Option<Snapshot>, StoreError> {
        const SQL: &str = "SELECT id, org_id, session_id, target, sandbox_provider, created_at FROM snapshots
            WHERE org_id = $1 AND run_id = $2";
        let org = org.uuid();
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(org).bind(run_id).fetch_optional(pool).await)?)
    }

    /// A snapshot of an organization. Another organization's snapshot does not exist here.
    pub async fn snapshot(&self, org: OrgId, id: &str) -> Result<Option<Snapshot>, StoreError> {
        const SQL: &str = "SELECT id, org_id, session_id, target, sandbox_provider, created_at FROM snapshots
            WHERE org_id = $1 AND id = $2";
        let org = org.uuid();
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(org).bind(id).fetch_optional(pool).await)?)
    }
}
