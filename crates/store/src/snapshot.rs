//! Snapshots: which there are, whose they are, and what starts from them.

use chrono::{DateTime, Utc};
use proto::socket::SnapshotTarget;
use proto::{OrgId, SessionId};
use uuid::Uuid;

use crate::db::{read, write};
use crate::owner::{HOLD, fenced};
use crate::row::{from_row, word};
use crate::{Owner, Store, StoreError};

/// A snapshot that was made of a session's sandbox a moment ago.
#[derive(Clone, Debug)]
pub struct NewSnapshot {
    /// The provider's name for it.
    pub id: String,
    /// What starts from it from now on.
    pub target: SnapshotTarget,
    pub sandbox_provider: String,
    pub at: DateTime<Utc>,
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    pub id: String,
    pub org_id: OrgId,
    /// What it was made of; that may be gone.
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

impl Store {
    /// Keeps a snapshot, and lets its target start from it: both or neither.
    pub async fn record_snapshot(&self, owner: &Owner, new: NewSnapshot) -> Result<(), StoreError> {
        const SQL: &str =
            "INSERT INTO snapshots (id, org_id, session_id, target, sandbox_provider, created_at)
            VALUES ($1, $2, $3, $4, $5, $6)";
        const SESSION: &str = "UPDATE sessions SET snapshot_id = $2 WHERE id = $1";
        const CONFIGURATION: &str =
            "UPDATE configurations SET snapshot_id = $2, status = 'ready', error = NULL, updated_at = $3
            WHERE id = (SELECT configuration_id FROM sessions WHERE id = $1)";
        let owner = *owner;
        write!(self, Disk, tx => {
            fenced!(tx, owner, HOLD);
            let session = owner.session().uuid();
            sqlx::query(SQL)
                .bind(&new.id).bind(owner.org().uuid()).bind(session).bind(new.target.as_str())
                .bind(new.sandbox_provider).bind(new.at).execute(&mut *tx).await?;
            let done = match new.target {
                SnapshotTarget::Session => {
                    sqlx::query(SESSION).bind(session).bind(new.id).execute(&mut *tx).await?.rows_affected()
                }
                SnapshotTarget::Configuration => {
                    sqlx::query(CONFIGURATION).bind(session).bind(new.id).bind(new.at)
                        .execute(&mut *tx).await?.rows_affected()
                }
            };
            if done == 0 { Err(StoreError::Missing("this configuration")) } else { Ok(()) }
        })
        .map_err(|error: StoreError| error.on_constraint("this snapshot", "this organisation"))
    }

    /// A snapshot of an organisation; one of another does not exist here.
    pub async fn snapshot(&self, org: OrgId, id: &str) -> Result<Option<Snapshot>, StoreError> {
        const SQL: &str = "SELECT id, org_id, session_id, target, sandbox_provider, created_at FROM snapshots
            WHERE org_id = $1 AND id = $2";
        let org = org.uuid();
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(org).bind(id).fetch_optional(pool).await)?)
    }
}
