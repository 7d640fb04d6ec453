//! The log of a session: what clients were sent, in order, written before it is sent.

use chrono::{DateTime, SecondsFormat, Utc};
use proto::SessionId;
use rusqlite::ToSql;
use sqlx::FromRow;
use uuid::Uuid;

use crate::appender::Appender;
use crate::db::{Db, read, write};
use crate::owner::fenced;
use crate::writer::Writer;
use crate::{Durability, Owner, Store, StoreError};

/// Consecutive frames of a session.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct EventBatch {
    pub first_seq: i64,
    pub last_seq: i64,
    /// One JSON frame per line, in order.
    pub frames: String,
}

/// What must hold of the session for a batch to be kept: it is ours, the numbers are reserved, and none was used before.
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

/// A row of values that has no organisation where the fence does not hold, and so is none. As a query like the other one
/// it would first be written to a table of its own, since it reads the table that it writes.
const SQLITE: &str =
    insert!("INSERT OR IGNORE", concat!("VALUES ($1, $3, $4, (SELECT org_id", fence!(), "), $2, $5, $6)"));

/// One round trip instead of four: the statement is the whole transaction and itself says that it need not wait for the
/// disk. The lock keeps a new owner waiting that would else not see this batch.
const POSTGRES: &str = insert!(
    "INSERT",
    concat!(
        "SELECT id, $3, $4, org_id, owner_epoch, $5, $6",
        fence!(),
        " AND set_config('synchronous_commit', 'off', true) = 'off' FOR SHARE OF sessions"
    )
);

/// The same inside a transaction that holds more and waits for the disk.
pub(crate) const WITHIN: &str =
    insert!("INSERT", concat!("SELECT id, $3, $4, org_id, owner_epoch, $5, $6", fence!()));

/// A batch that is appended together with the messages that it finishes.
#[derive(Clone, Debug)]
pub struct NewBatch {
    pub first_seq: i64,
    pub last_seq: i64,
    /// One JSON frame per line, in order.
    pub frames: String,
    pub at: DateTime<Utc>,
}

/// Appends a batch in the transaction at hand; the surrounding block returns why it cannot.
macro_rules! append {
    ($connection:expr, $owner:expr, $batch:expr) => {{
        let ((session, epoch), batch) = ($owner.key(), $batch);
        let done = sqlx::query($crate::event::WITHIN)
            .bind(session)
            .bind(epoch)
            .bind(batch.first_seq)
            .bind(batch.last_seq)
            .bind(batch.frames)
            .bind(batch.at)
            .execute(&mut *$connection)
            .await?;
        if done.rows_affected() == 0 {
            $crate::owner::fenced!($connection, $owner, $crate::owner::HOLD);
            return Err($crate::StoreError::Refused($crate::event::NOT_RESERVED));
        }
    }};
}
pub(crate) use append;

pub(crate) const NOT_RESERVED: &str = "these numbers are not reserved, or were used before";

/// What a batch is beside its frames.
struct Batch {
    session: Uuid,
    epoch: i64,
    first_seq: i64,
    last_seq: i64,
    at: DateTime<Utc>,
}

impl Batch {
    /// Appends without leaving this thread, if that is possible now.
    fn append_here(&self, appender: &Appender, frames: &str) -> Option<u64> {
        // As sqlx writes times.
        let at = self.at.to_rfc3339_opts(SecondsFormat::AutoSi, false);
        let session = self.session.as_bytes().as_slice();
        let parameters: [(&str, &dyn ToSql); 6] = [
            ("$1", &session),
            ("$2", &self.epoch),
            ("$3", &self.first_seq),
            ("$4", &self.last_seq),
            ("$5", &frames),
            ("$6", &at),
        ];
        appender.execute(SQLITE, &parameters, frames.len())
    }

    async fn append_by(self, writer: &Writer, frames: String) -> Result<u64, StoreError> {
        let append = sqlx::query(SQLITE)
            .bind(self.session)
            .bind(self.epoch)
            .bind(self.first_seq)
            .bind(self.last_seq)
            .bind(frames)
            .bind(self.at);
        writer
            .write_statement(Durability::Process, move |connection| {
                Box::pin(async move { Ok(append.execute(connection).await?.rows_affected()) })
            })
            .await
    }
}

/// How many batches are read at a time.
const PAGE: i64 = 32;

impl Store {
    /// Appends one batch. It survives a crash of this program; a power cut may take the last ones.
    pub async fn append_events(
        &self,
        owner: &Owner,
        first_seq: i64,
        last_seq: i64,
        frames: &str,
        at: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let (session, epoch) = owner.key();
        let kept = match &self.db {
            Db::Sqlite { writer, appender, .. } => {
                let batch = Batch { session, epoch, first_seq, last_seq, at };
                match batch.append_here(appender, frames) {
                    Some(kept) => kept,
                    // Boxed as all that is rare, since every live session holds room for what is not.
                    None => Box::pin(batch.append_by(writer, frames.to_owned())).await?,
                }
            }
            Db::Postgres(postgres) => {
                let append = sqlx::query(POSTGRES)
                    .bind(session)
                    .bind(epoch)
                    .bind(first_seq)
                    .bind(last_seq)
                    .bind(frames)
                    .bind(at);
                Box::pin(postgres.in_time(append.execute(&postgres.pool))).await?.rows_affected()
            }
        };
        if kept == 1 { Ok(()) } else { Err(Box::pin(self.why_not_appended(owner)).await) }
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

    /// Batches with numbers after `seq`, oldest first, until they hold `max_bytes` together; at least one if there is
    /// any. The first may begin at or before `seq`. Where a batch does not begin right after the one before it, the
    /// log was pruned or numbers were left out: that is a gap.
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
                sqlx::query_as(SQL).bind(session).bind(after).bind(PAGE).fetch_all(pool).await
            })?;
            let is_last = page.len() < usize::try_from(PAGE).unwrap_or(usize::MAX);
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

    /// Whether the log has every number after `seq` up to its end, and there is one.
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

    /// Forgets batches whose numbers are all `up_to` or lower and whose effects the transcript has: no more, so that
    /// nothing is lost and the head stays known.
    pub async fn prune_events(&self, owner: &Owner, up_to: i64) -> Result<(), StoreError> {
        const SQL: &str = "DELETE FROM events WHERE session_id = $1 AND last_seq <= $2
            AND last_seq <= (SELECT transcript_seq FROM sessions WHERE id = $1)";
        let owner = *owner;
        write!(self, Process, tx => {
            fenced!(tx, owner, crate::owner::HOLD);
            sqlx::query(SQL).bind(owner.session().uuid()).bind(up_to).execute(&mut *tx).await?;
            Ok(())
        })
    }

    /// The highest number of a session that is known to have been used; `None` when there is no such session.
    pub async fn head(&self, session: SessionId) -> Result<Option<i64>, StoreError> {
        const SQL: &str = "SELECT transcript_seq,
            COALESCE((SELECT max(last_seq) FROM events WHERE session_id = $1), 0) FROM sessions WHERE id = $1";
        let session = session.uuid();
        let found: Option<(i64, i64)> =
            read!(self, pool => sqlx::query_as(SQL).bind(session).fetch_optional(pool).await)?;
        Ok(found.map(|(transcript, logged)| transcript.max(logged)))
    }
}
