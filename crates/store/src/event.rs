//! The event log of a session: frames for clients, in order, stored before they are sent.

use chrono::{DateTime, Utc};
use proto::SessionId;
use rusqlite::ToSql;
use sqlx::FromRow;
use uuid::Uuid;

use crate::db::{Db, read, write};
use crate::owner::fenced;
use crate::sqlite::event_appender::EventAppender;
use crate::sqlite::inline_reader::time_text;
use crate::sqlite::writer::Writer;
use crate::{Durability, Owner, Store, StoreError};

/// Consecutive frames of a session.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct EventBatch {
    pub first_seq: i64,
    pub last_seq: i64,
    /// One JSON frame per line, in order.
    pub frames: String,
}

/// The condition for appending a batch: we own the session, the numbers are reserved, and none was used before.
macro_rules! fence {
    () => {
        " FROM sessions
        WHERE id = $1 AND owner_epoch = $2 AND seq_reserved >= $4 AND transcript_seq < $3 AND seq_floor < $3
        AND NOT EXISTS (SELECT 1 FROM events WHERE session_id = $1 AND last_seq >= $3)"
    };
}

macro_rules! insert {
    ($how:literal, $values:expr) => {
        concat!(
            $how,
            " INTO events (session_id, first_seq, last_seq, org_id, epoch, frames, created_at) ",
            $values
        )
    };
}

/// If the fence does not hold, the organization is NULL and the row is ignored. An INSERT … SELECT, as on PostgreSQL, would
/// make SQLite copy the row to a temporary table first, because it reads the table that it writes.
const INSERT_SQLITE: &str =
    insert!("INSERT OR IGNORE", concat!("VALUES ($1, $3, $4, (SELECT org_id", fence!(), "), $2, $5, $6)"));

/// One round trip instead of four: the statement is the whole transaction, and turns `synchronous_commit` off by itself.
/// The row lock makes a new owner wait, which would otherwise not see this batch.
const INSERT_POSTGRES: &str = insert!(
    "INSERT",
    concat!(
        "SELECT id, $3, $4, org_id, owner_epoch, $5, $6",
        fence!(),
        " AND set_config('synchronous_commit', 'off', true) = 'off' FOR SHARE OF sessions"
    )
);

/// The same inside a larger transaction, which waits for the disk.
pub(crate) const INSERT_IN_TRANSACTION: &str =
    insert!("INSERT", concat!("SELECT id, $3, $4, org_id, owner_epoch, $5, $6", fence!()));

/// A batch that is appended in the transaction that saves the messages it completes.
#[derive(Clone, Debug)]
pub struct NewBatch {
    pub first_seq: i64,
    pub last_seq: i64,
    /// One JSON frame per line, in order.
    pub frames: String,
    pub at: DateTime<Utc>,
}

/// Appends a batch in the current transaction, or returns an error from the surrounding block.
macro_rules! append {
    ($connection:expr, $owner:expr, $batch:expr) => {{
        let ((session, epoch), batch) = ($owner.key(), $batch);
        let done = sqlx::query($crate::event::INSERT_IN_TRANSACTION)
            .bind(session)
            .bind(epoch)
            .bind(batch.first_seq)
            .bind(batch.last_seq)
            .bind(batch.frames)
            .bind(batch.at)
            .execute(&mut *$connection)
            .await?;
        if done.rows_affected() == 0 {
            $crate::owner::fenced!($connection, $owner, $crate::owner::LOCK_OWNED_SESSION);
            return Err($crate::StoreError::Refused($crate::event::NOT_RESERVED));
        }
    }};
}
pub(crate) use append;

pub(crate) const NOT_RESERVED: &str = "these numbers are not reserved, or were used before";

/// A batch without its frames.
struct Batch {
    session: Uuid,
    epoch: i64,
    first_seq: i64,
    last_seq: i64,
    at: DateTime<Utc>,
}

impl Batch {
    /// Appends on this thread, if that is possible now.
    fn append_inline(&self, appender: &EventAppender, frames: &str) -> Option<u64> {
        let at = time_text(self.at);
        let session = self.session.as_bytes().as_slice();
        let parameters: [(&str, &dyn ToSql); 6] = [
            ("$1", &session),
            ("$2", &self.epoch),
            ("$3", &self.first_seq),
            ("$4", &self.last_seq),
            ("$5", &frames),
            ("$6", &at),
        ];
        appender.execute(INSERT_SQLITE, &parameters, frames.len())
    }

    async fn append_by(self, writer: &Writer, frames: String) -> Result<u64, StoreError> {
        let append = sqlx::query(INSERT_SQLITE)
            .bind(self.session)
            .bind(self.epoch)
            .bind(self.first_seq)
            .bind(self.last_seq)
            .bind(frames)
            .bind(self.at);
        writer
            .write(Durability::Process, move |connection| {
                Box::pin(async move { Ok(append.execute(connection).await?.rows_affected()) })
            })
            .await
    }
}

/// How many batches are read at a time.
const ROWS_PER_PAGE: i64 = 32;

impl Store {
    /// Appends one batch. It survives a crash of this program; a power cut may lose the last batches.
    pub async fn append_events(
        &self,
        owner: &Owner,
        first_seq: i64,
        last_seq: i64,
        frames: &str,
        at: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let (session, epoch) = owner.key();
        let appended = match &self.db {
            Db::Sqlite(sqlite) => {
                let batch = Batch { session, epoch, first_seq, last_seq, at };
                match batch.append_inline(&sqlite.appender, frames) {
                    Some(appended) => appended,
                    // Boxed because it is rare: every live session would reserve memory for this future.
                    None => Box::pin(batch.append_by(&sqlite.writer, frames.to_owned())).await?,
                }
            }
            Db::Postgres(postgres) => {
                let append = sqlx::query(INSERT_POSTGRES)
                    .bind(session)
                    .bind(epoch)
                    .bind(first_seq)
                    .bind(last_seq)
                    .bind(frames)
                    .bind(at);
                Box::pin(postgres.with_timeout(append.execute(&postgres.pool))).await?.rows_affected()
            }
        };
        if appended == 1 { Ok(()) } else { Err(Box::pin(self.why_not_appended(owner)).await) }
    }

    async fn why_not_appended(&self, owner: &Owner) -> StoreError {
        const SQL: &str = "SELECT count(*) FROM sessions WHERE id = $1 AND owner_epoch = $2";
        let (session, epoch) = owner.key();
        let still_ours: sqlx::Result<i64> =
            read!(self, pool => sqlx::query_scalar(SQL).bind(session).bind(epoch).fetch_one(pool).await);
        match still_ours {
            Ok(0) => StoreError::Fenced,
            Ok(_) => StoreError::Refused(NOT_RESERVED),
            Err(error) => StoreError::Failed(error),
        }
    }

    /// Batches with numbers after `seq`, oldest first, up to `max_bytes` in total but at least one if there is any. The first may
    /// begin at or before `seq`. A batch that does not follow the one before it means a gap: the log was pruned, or numbers were
    /// skipped.
    pub async fn events_after(
        &self,
        session: SessionId,
        seq: i64,
        max_bytes: usize,
    ) -> Result<Vec<EventBatch>, StoreError> {
        const SQL: &str = "SELECT first_seq, last_seq, frames FROM events
            WHERE session_id = $1 AND last_seq > $2 ORDER BY last_seq LIMIT $3";
        let (session, mut after, mut bytes) = (session.uuid(), seq, 0);
        let mut batches: Vec<EventBatch> = Vec::new();
        loop {
            let page: Vec<EventBatch> = read!(self, pool => {
                sqlx::query_as(SQL).bind(session).bind(after).bind(ROWS_PER_PAGE).fetch_all(pool).await
            })?;
            let is_last = page.len() < usize::try_from(ROWS_PER_PAGE).unwrap_or(usize::MAX);
            for batch in page {
                if bytes >= max_bytes && !batches.is_empty() {
                    return Ok(batches);
                }
                bytes += batch.frames.len();
                after = batch.last_seq;
                batches.push(batch);
            }
            if is_last {
                return Ok(batches);
            }
        }
    }

    /// Whether the log is not empty after `seq` and has every number from there to its end.
    pub async fn is_logged_after(&self, session: SessionId, seq: i64) -> Result<bool, StoreError> {
        const SQL: &str =
            "SELECT min(first_seq), max(last_seq), CAST(sum(last_seq - first_seq + 1) AS BIGINT)
            FROM events WHERE session_id = $1 AND last_seq > $2";
        type Found = (Option<i64>, Option<i64>, Option<i64>);
        let session = session.uuid();
        let found: Found =
            read!(self, pool => sqlx::query_as(SQL).bind(session).bind(seq).fetch_one(pool).await)?;
        let (Some(first), Some(last), Some(numbers)) = found else { return Ok(false) };
        Ok(first <= seq.saturating_add(1) && last - first + 1 == numbers)
    }

    /// Deletes batches up to the number `up_to` whose effects are in the transcript. Later batches stay, so that nothing is lost
    /// and the head stays known.
    pub async fn prune_events(&self, owner: &Owner, up_to: i64) -> Result<(), StoreError> {
        const SQL: &str = "DELETE FROM events WHERE session_id = $1 AND last_seq <= $2
            AND last_seq <= (SELECT transcript_seq FROM sessions WHERE id = $1)";
        let owner = *owner;
        write!(self, Process, tx => {
            fenced!(tx, owner, crate::owner::LOCK_OWNED_SESSION);
            sqlx::query(SQL).bind(owner.session().uuid()).bind(up_to).execute(&mut *tx).await?;
            Ok(())
        })
    }

    /// The highest known number of a session; `None` if the session does not exist.
    pub async fn head(&self, session: SessionId) -> Result<Option<i64>, StoreError> {
        const SQL: &str = "SELECT transcript_seq,
            COALESCE((SELECT max(last_seq) FROM events WHERE session_id = $1), 0) FROM sessions WHERE id = $1";
        let session = session.uuid();
        let found: Option<(i64, i64)> =
            read!(self, pool => sqlx::query_as(SQL).bind(session).fetch_optional(pool).await)?;
        Ok(found.map(|(transcript, logged)| transcript.max(logged)))
    }
}
