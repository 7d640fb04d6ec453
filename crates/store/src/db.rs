//! Opens a database and runs one query text on whichever it is.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use clock::Clock;
use sqlx::Connection as _;
use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool, SqlitePoolOptions,
};

use crate::appender::Appender;
use crate::gate::{Line, NewEvent};
use crate::near::Near;
use crate::postgres::{self, Postgres};
use crate::together::Together;
pub use crate::writer::Durability;
use crate::writer::Writer;
use crate::{StoreError, migrate};

/// How long a connection may take, and how long SQLite waits for another process that writes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// Between two attempts at a file that somebody else is just making.
const PAUSE: Duration = Duration::from_millis(10);
const SQLITE_READERS: u32 = 4;

/// The open database. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    pub(crate) db: Db,
    pub(crate) gate: Line,
    /// Where there is a way to the database that looks can share.
    pub(crate) together: Option<Arc<Together>>,
    /// The event that an administrative change through this handle is recorded by.
    pub(crate) record: Option<Arc<NewEvent>>,
}

#[derive(Clone)]
pub(crate) enum Db {
    Sqlite { readers: SqlitePool, near: Near, writer: Writer, appender: Appender },
    Postgres(Postgres),
}

/// Runs the same query expression on a pool of whichever database is open.
macro_rules! read {
    ($store:expr, $pool:ident => $query:expr) => {
        match &$store.db {
            $crate::db::Db::Sqlite { readers: $pool, .. } => $query,
            $crate::db::Db::Postgres(postgres) => {
                let $pool = &postgres.pool;
                postgres.in_time(async { $query }).await
            }
        }
    };
}

/// Runs the same block in one transaction of whichever database is open. What it uses is moved into it.
macro_rules! write {
    ($store:expr, $durability:ident, $connection:ident => $block:expr) => {
        match &$store.db {
            $crate::db::Db::Sqlite { writer, .. } => {
                writer
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

/// Finds one row by its key: on SQLite without leaving this thread, if that is possible now; on PostgreSQL together with
/// others who look for such a row, where these looks and the key are named.
macro_rules! find {
    ($store:expr, together $looks:ident $key:expr, $sql:expr $(, $value:expr)* $(,)?) => {{
        let shared = match &$store.together {
            Some(together) => together.$looks.find($key).await,
            None => None,
        };
        match shared {
            Some(found) => Ok(found),
            None => $crate::db::find!($store, $sql $(, $value)*),
        }
    }};
    ($store:expr, $sql:expr $(, $value:expr)* $(,)?) => {
        match &$store.db {
            $crate::db::Db::Sqlite { readers, near, .. } => {
                let found = near.find($sql, &[$(&$value),*]);
                match found {
                    $crate::near::Look::Done(found) => Ok(found),
                    $crate::near::Look::AskThePool => sqlx::query_as($sql)$(.bind($value))*.fetch_optional(readers).await,
                }
            }
            $crate::db::Db::Postgres(postgres) => {
                postgres.in_time(sqlx::query_as($sql)$(.bind($value))*.fetch_optional(&postgres.pool)).await
            }
        }
    };
}
pub(crate) use {find, read, write};

impl Store {
    /// Opens the SQLite database in `file`, making it when it is not there, and brings it up to date.
    pub async fn open_sqlite(file: &Path, clock: &Clock) -> Result<Self, StoreError> {
        let unreachable = |error: sqlx::Error| StoreError::Unreachable {
            target: file.display().to_string(),
            reason: error.to_string(),
            remedy: "Check that the data dir exists, is writable and is not full.",
        };
        make_private(file).map_err(|error| unreachable(error.into()))?;
        let options = sqlite_options(file).create_if_missing(true);
        let mut connection = connect_first(&options).await.map_err(unreachable)?;
        migrate::sqlite(&mut connection, clock).await?;
        Ok(Self::sqlite(file, connection))
    }

    /// Writes that wait for SQLite's one writer; PostgreSQL has none to wait for.
    pub fn waiting_writes(&self) -> usize {
        match &self.db {
            Db::Sqlite { writer, .. } => writer.waiting(),
            Db::Postgres(_) => 0,
        }
    }

    /// The store of an open file whose schema is known to be ours.
    pub(crate) fn sqlite(file: &Path, connection: SqliteConnection) -> Self {
        let readers = SqlitePoolOptions::new()
            .max_connections(SQLITE_READERS)
            .min_connections(0)
            .acquire_timeout(PATIENCE)
            .connect_lazy_with(sqlite_options(file).pragma("query_only", "on"));
        let (writer, near) = (Writer::start(connection), Near::new(file));
        let appender = Appender::new(file, writer.turn());
        let gate = Line::sqlite(file, writer.turn());
        Self { gate, together: None, record: None, db: Db::Sqlite { readers, near, writer, appender } }
    }

    /// Connects to PostgreSQL and brings the database up to date.
    pub async fn open_postgres(url: &str, clock: &Clock) -> Result<Self, StoreError> {
        let (options, mut connection) = postgres::connect(url).await?;
        migrate::postgres(&mut connection, clock).await.map_err(|error| migrate::stuck(error, url))?;
        connection.close().await?;
        Ok(Self::postgres(options))
    }

    /// The store of a server's database whose schema is known to be ours.
    pub(crate) fn postgres(options: PgConnectOptions) -> Self {
        let postgres = Postgres::new(options);
        let together = Some(Arc::new(Together::start(&postgres)));
        Self { gate: Line::postgres(postgres.clone()), together, record: None, db: Db::Postgres(postgres) }
    }

    /// Closes the database for every clone of this store, after the writes that wait. A SQLite file then holds
    /// everything alone; a later write is told that the writer has stopped.
    pub async fn close(self) {
        self.gate.close().await;
        match self.db {
            Db::Sqlite { readers, near, writer, appender } => {
                appender.close().await;
                near.close();
                // SQLite folds the log into the file when the last connection closes: that must be the writer's,
                // for only its end is waited for.
                readers.close().await;
                writer.close().await;
            }
            Db::Postgres(postgres) => postgres.pool.close().await,
        }
    }

    /// Answers when the database can be read and written. On SQLite the writer is a part of its own, which may be
    /// dead while every read still works.
    pub async fn ping(&self) -> Result<(), StoreError> {
        self.gate.refused.check()?;
        read!(self, pool => sqlx::query("SELECT 1").execute(pool).await.map(drop))?;
        match &self.db {
            Db::Sqlite { writer, .. } => {
                writer.write(Durability::Process, |_| Box::pin(async { Ok(()) })).await
            }
            Db::Postgres(_) => Ok(()),
        }
    }

    /// What the open database is, for people.
    pub fn backend(&self) -> &'static str {
        match &self.db {
            Db::Sqlite { .. } => "SQLite",
            Db::Postgres(_) => "PostgreSQL",
        }
    }
}

pub(crate) fn sqlite_options(file: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(file)
        .foreign_keys(true)
        .busy_timeout(PATIENCE)
        // Each connection keeps its own cache of pages; idle memory is counted in a few MiB.
        .pragma("cache_size", "-1024")
        .optimize_on_close(true, 400)
}

/// SQLite would make the file readable by everybody; its log takes over whatever the file has.
fn make_private(file: &Path) -> std::io::Result<()> {
    OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(file).map(drop)
}

/// Connects to a file that may be new, and makes it write ahead. SQLite gives up at once when two connections do
/// that to a file together, so the waiting is done here.
pub(crate) async fn connect_first(options: &SqliteConnectOptions) -> sqlx::Result<SqliteConnection> {
    const BUSY: &str = "5";
    let options = options.clone().journal_mode(SqliteJournalMode::Wal);
    let connecting = async {
        loop {
            match SqliteConnection::connect_with(&options).await {
                Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some(BUSY) => {
                    tokio::time::sleep(PAUSE).await;
                }
                done => return done,
            }
        }
    };
    let locked = || std::io::Error::new(std::io::ErrorKind::TimedOut, "another process keeps it locked");
    tokio::time::timeout(PATIENCE, connecting).await.unwrap_or_else(|_| Err(sqlx::Error::Io(locked())))
}

/// Credentials that expired before this are deleted when the next one of their organisation is made, so that their
/// tables do not grow for ever. A day, so that one which has just expired can still be looked into.
pub(crate) fn long_before(now: DateTime<Utc>) -> DateTime<Utc> {
    now - TimeDelta::days(1)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sqlx::{query_scalar, raw_sql};
    use tempfile::TempDir;

    use super::*;

    #[tokio::test]
    async fn readers_and_the_writer_keep_the_rules_and_readers_only_read() {
        let folder = TempDir::new().unwrap();
        let store = Store::open_sqlite(&folder.path().join("t.db"), &Clock::system()).await.unwrap();
        let Db::Sqlite { readers, writer, .. } = &store.db else { panic!("SQLite was opened") };
        let settings = async |connection: &mut SqliteConnection| {
            let journal: String =
                query_scalar("PRAGMA journal_mode").fetch_one(&mut *connection).await.unwrap();
            let keys: i64 = query_scalar("PRAGMA foreign_keys").fetch_one(&mut *connection).await.unwrap();
            let patience: i64 =
                query_scalar("PRAGMA busy_timeout").fetch_one(&mut *connection).await.unwrap();
            (journal, keys, patience)
        };
        let expected = ("wal".to_owned(), 1, 5_000);
        // All of them at once, so that each one is looked at.
        let mut held = Vec::new();
        for _ in 0..SQLITE_READERS {
            held.push(readers.acquire().await.unwrap());
        }
        for reader in &mut held {
            assert_eq!(settings(reader).await, expected);
            let error = raw_sql("CREATE TABLE t (n INTEGER)").execute(&mut **reader).await.unwrap_err();
            assert!(error.to_string().contains("readonly"), "{error}");
        }
        let written =
            writer.write(Durability::Disk, move |tx| Box::pin(async move { Ok(settings(tx).await) }));
        assert_eq!(written.await.unwrap(), expected);
    }

    #[tokio::test]
    async fn a_ping_notices_a_dead_writer() {
        let folder = TempDir::new().unwrap();
        let store = Store::open_sqlite(&folder.path().join("t.db"), &Clock::system()).await.unwrap();
        store.ping().await.unwrap();
        let Db::Sqlite { writer, .. } = &store.db else { panic!("SQLite was opened") };
        writer.close().await;
        assert!(store.orgs().await.unwrap().is_empty(), "reads still work");
        let error = store.ping().await.unwrap_err().to_string();
        assert!(error.contains("the writer has stopped"), "{error}");
    }

    /// Who loses this race is a matter of luck, so it is run often enough to be lost.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_new_file_may_be_made_by_several_at_once() {
        for _ in 0..150 {
            let folder = TempDir::new().unwrap();
            let options = sqlite_options(&folder.path().join("t.db")).create_if_missing(true);
            let start = Arc::new(tokio::sync::Barrier::new(6));
            let connecting: Vec<_> = (0..6)
                .map(|_| {
                    let (options, start) = (options.clone(), start.clone());
                    tokio::spawn(async move {
                        start.wait().await;
                        connect_first(&options).await
                    })
                })
                .collect();
            for connection in connecting {
                connection.await.unwrap().unwrap();
            }
        }
    }
}
