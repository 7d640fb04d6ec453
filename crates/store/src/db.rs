//! The open database, and macros that run one query text on whichever it is.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use crate::StoreError;
use crate::gate::{NewEvent, WriteQueue};
use crate::postgres::Postgres;
use crate::postgres::lookup_batcher::LookupBatchers;
use crate::sqlite::Sqlite;

/// How long opening a connection may take, and how long SQLite waits for another process that writes.
pub(crate) const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);

/// The open database. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    pub(crate) db: Db,
    pub(crate) gate: WriteQueue,
    /// The batched lookups, with PostgreSQL only.
    pub(crate) lookups: Option<Arc<LookupBatchers>>,
    /// The ledger event that is appended with an administrative change through this handle.
    pub(crate) record: Option<Arc<NewEvent>>,
}

#[derive(Clone)]
pub(crate) enum Db {
    Sqlite(Sqlite),
    Postgres(Postgres),
}

/// The durability that a write must have before it is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// The write survives a crash of this program, but perhaps not one of the machine: streamed events.
    Process,
    /// The write survives a power cut: claims, ledger, approvals, identity, session state.
    Disk,
}

/// Runs the same query expression on a pool of whichever database is open.
macro_rules! read {
    ($store:expr, $pool:ident => $query:expr) => {
        match &$store.db {
            $crate::db::Db::Sqlite(sqlite) => {
                let $pool = &sqlite.readers;
                $query
            }
            $crate::db::Db::Postgres(postgres) => {
                let $pool = &postgres.pool;
                postgres.with_timeout(async { $query }).await
            }
        }
    };
}

/// Runs the same block in one transaction of whichever database is open. The block owns what it uses.
macro_rules! write {
    ($store:expr, $durability:ident, $connection:ident => $block:expr) => {
        match &$store.db {
            $crate::db::Db::Sqlite(sqlite) => {
                sqlite
                    .writer
                    .write($crate::Durability::$durability, move |$connection| {
                        Box::pin(async move { $block })
                    })
                    .await
            }
            $crate::db::Db::Postgres(postgres) => {
                postgres
                    .transaction($crate::Durability::$durability, move |$connection| {
                        Box::pin(async move { $block })
                    })
                    .await
            }
        }
    };
}

/// Finds one row by its key: on SQLite inline, without leaving this thread, if possible; on PostgreSQL in a batched lookup,
/// if a batcher and the key are named.
macro_rules! find {
    ($store:expr, batched $batcher:ident $key:expr, $sql:expr $(, $value:expr)* $(,)?) => {{
        let shared = match &$store.lookups {
            Some(lookups) => lookups.$batcher.find($key).await,
            None => None,
        };
        match shared {
            Some(row) => Ok(row),
            None => $crate::db::find!($store, $sql $(, $value)*),
        }
    }};
    ($store:expr, $sql:expr $(, $value:expr)* $(,)?) => {
        match &$store.db {
            $crate::db::Db::Sqlite(sqlite) => {
                let read = sqlite.inline.find($sql, &[$(&$value),*]);
                match read {
                    $crate::sqlite::inline_reader::InlineRead::Row(row) => Ok(row),
                    $crate::sqlite::inline_reader::InlineRead::UsePool => {
                        sqlx::query_as($sql)$(.bind($value))*.fetch_optional(&sqlite.readers).await
                    }
                }
            }
            $crate::db::Db::Postgres(postgres) => {
                postgres.with_timeout(sqlx::query_as($sql)$(.bind($value))*.fetch_optional(&postgres.pool)).await
            }
        }
    };
}
/// Finds the rows of a short list: inline with SQLite, if they are few.
macro_rules! list {
    ($store:expr, $sql:expr $(, $value:expr)* $(,)?) => {
        match &$store.db {
            $crate::db::Db::Sqlite(sqlite) => {
                let read = sqlite.inline.list($sql, &[$(&$value),*]);
                match read {
                    Some(rows) => Ok(rows),
                    None => sqlx::query_as($sql)$(.bind($value))*.fetch_all(&sqlite.readers).await,
                }
            }
            $crate::db::Db::Postgres(postgres) => {
                postgres.with_timeout(sqlx::query_as($sql)$(.bind($value))*.fetch_all(&postgres.pool)).await
            }
        }
    };
}
pub(crate) use {find, list, read, write};

impl Store {
    /// Writes that are queued for SQLite's one writer; PostgreSQL has no such queue.
    pub fn waiting_writes(&self) -> usize {
        match &self.db {
            Db::Sqlite(sqlite) => sqlite.writer.queued(),
            Db::Postgres(_) => 0,
        }
    }

    /// Closes the database for every clone of this store, after the queued writes. Afterwards a SQLite file is complete
    /// without its WAL, and a later write fails because the writer has stopped.
    pub async fn close(self) {
        self.gate.close().await;
        match self.db {
            Db::Sqlite(sqlite) => sqlite.close().await,
            Db::Postgres(postgres) => postgres.pool.close().await,
        }
    }

    /// Succeeds if the database can be read and written. On SQLite the writer is checked by itself, because it may be dead
    /// while every read still works.
    pub async fn ping(&self) -> Result<(), StoreError> {
        self.gate.sync_failure.check()?;
        read!(self, pool => sqlx::query("SELECT 1").execute(pool).await.map(drop))?;
        match &self.db {
            Db::Sqlite(sqlite) => {
                sqlite.writer.write(Durability::Process, |_| Box::pin(async { Ok(()) })).await
            }
            Db::Postgres(_) => Ok(()),
        }
    }

    /// The name of the open database, for people.
    pub fn backend(&self) -> &'static str {
        match &self.db {
            Db::Sqlite(_) => "SQLite",
            Db::Postgres(_) => "PostgreSQL",
        }
    }
}

/// Credentials that expired before this are deleted when the next one of their organization is made, so that their tables
/// do not grow for ever. A day, so that one which has just expired can still be investigated.
pub(crate) fn long_before(now: DateTime<Utc>) -> DateTime<Utc> {
    now - TimeDelta::days(1)
}
