//! Ownership of a session: who may write to it.
//!
//! Every grant raises the session's epoch, and a write with an earlier epoch changes nothing and returns
//! [`StoreError::Fenced`].

use proto::{OrgId, SessionId};
use uuid::Uuid;

use crate::db::write;
use crate::session_record::records;
use crate::{SessionRecord, Store, StoreError};

/// The right to write to one session, until another owner gets it. Only a grant creates one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    session: SessionId,
    org: OrgId,
    epoch: i64,
}

/// A session at the time of its grant.
#[derive(Clone, Debug)]
pub struct Owned {
    pub owner: Owner,
    pub record: SessionRecord,
    /// The highest number that may have been used: the last one in the log or the transcript, or the last reserved one if the
    /// end of the log may be lost.
    pub head: i64,
    /// Whether the session has been deleted and the owner must finish that.
    pub deleted: bool,
}

impl Owner {
    pub fn session(&self) -> SessionId {
        self.session
    }

    pub fn org(&self) -> OrgId {
        self.org
    }

    /// The epoch, for clients.
    pub fn epoch(&self) -> i64 {
        self.epoch
    }

    /// The first two parameters of every fenced statement.
    pub(crate) fn key(&self) -> (Uuid, i64) {
        (self.session.uuid(), self.epoch)
    }
}

/// Runs one fenced UPDATE, whose first parameters are the session and the epoch. No row means that the owner is a former one.
macro_rules! fenced {
    ($connection:expr, $owner:expr, $sql:expr $(, $value:expr)*) => {{
        let (session, epoch) = $owner.key();
        let done = sqlx::query($sql).bind(session).bind(epoch)$(.bind($value))*
            .execute(&mut *$connection).await?;
        if done.rows_affected() == 0 {
            return Err($crate::StoreError::Fenced);
        }
    }};
}
pub(crate) use fenced;

/// Locks the session until the end of the transaction, so that no new owner is granted meanwhile.
pub(crate) const LOCK_OWNED_SESSION: &str =
    "UPDATE sessions SET owner_epoch = owner_epoch WHERE id = $1 AND owner_epoch = $2";

impl Store {
    /// Makes `instance` the owner of a session. Former owners can write nothing from then on, and the result includes what they
    /// wrote before.
    pub async fn own_session(&self, id: SessionId, instance: &str) -> Result<Owned, StoreError> {
        const TAKE_OWNERSHIP: &str = "UPDATE sessions SET owner_epoch = owner_epoch + 1, owner_instance = $2,
            seq_floor = CASE WHEN seq_incarnation = $3 THEN seq_floor ELSE seq_reserved END, seq_incarnation = $3
            WHERE id = $1 RETURNING owner_epoch, seq_floor, deleted_at IS NOT NULL";
        const SELECT_RECORD: &str = records!("WHERE s.id = $1");
        const SELECT_LAST_LOGGED: &str =
            "SELECT COALESCE(max(last_seq), 0) FROM events WHERE session_id = $1";
        let (uuid, instance) = (id.uuid(), instance.to_owned());
        let (incarnation, boot) = self.incarnation();
        write!(self, Disk, tx => {
            let incarnation: Option<String> = sqlx::query_scalar(incarnation).bind(boot).fetch_one(&mut *tx).await?;
            let granted: Option<(i64, i64, bool)> =
                sqlx::query_as(TAKE_OWNERSHIP).bind(uuid).bind(instance).bind(incarnation).fetch_optional(&mut *tx).await?;
            let (epoch, floor, deleted) = granted.ok_or(StoreError::Missing("this session"))?;
            // After the grant, because a former owner's write is either finished or will be refused.
            let logged: i64 = sqlx::query_scalar(SELECT_LAST_LOGGED).bind(uuid).fetch_one(&mut *tx).await?;
            let record: SessionRecord = sqlx::query_as(SELECT_RECORD).bind(uuid).fetch_one(&mut *tx).await?;
            let owner = Owner { session: id, org: record.org_id, epoch };
            let head = logged.max(record.transcript_seq).max(floor);
            Ok(Owned { owner, record, head, deleted })
        })
    }

    /// Call it after a restore: numbers that were used since the backup are in no table, so every session skips far beyond
    /// them, and clients with a cursor get `gap` and `init`.
    pub async fn skip_used_numbers(&self) -> Result<(), StoreError> {
        const SQL: &str =
            "UPDATE sessions SET seq_reserved = seq_reserved + 1000000000, seq_incarnation = NULL";
        write!(self, Disk, tx => {
            sqlx::query(SQL).execute(&mut *tx).await?;
            Ok(())
        })
    }

    /// Reserves all numbers up to and including `up_to`, before the first of them is used. Never lowers what is
    /// reserved.
    pub async fn reserve_numbers(&self, owner: &Owner, up_to: i64) -> Result<(), StoreError> {
        const SQL: &str = "UPDATE sessions SET
            seq_reserved = CASE WHEN seq_reserved < $3 THEN $3 ELSE seq_reserved END
            WHERE id = $1 AND owner_epoch = $2";
        let owner = *owner;
        write!(self, Disk, tx => {
            fenced!(tx, owner, SQL, up_to);
            Ok(())
        })
    }
}
