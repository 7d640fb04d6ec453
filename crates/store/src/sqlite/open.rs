//! Opens a SQLite file: creates and migrates it for a gateway, or takes it as it is for commands that only use it.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use clock::Clock;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePoolOptions};
use sqlx::{Connection as _, query_as, query_scalar};

use super::Sqlite;
use super::event_appender::EventAppender;
use super::inline_reader::InlineReader;
use super::writer::Writer;
use crate::db::{ACQUIRE_TIMEOUT, Db};
use crate::gate::WriteQueue;
use crate::migrate::{self, AppliedMigrations};
use crate::{Schema, Store, StoreError};

/// Between two attempts to open a file that another process is just creating.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);
const READER_CONNECTIONS: u32 = 4;

impl Store {
    /// Opens the SQLite database in `file`, creates it if it does not exist, and migrates it.
    pub async fn open_sqlite(file: &Path, clock: &Clock) -> Result<Self, StoreError> {
        let unreachable = |error: sqlx::Error| StoreError::Unreachable {
            target: file.display().to_string(),
            reason: error.to_string(),
            remedy: "Check that the data dir exists, is writable and is not full.",
        };
        create_private(file).map_err(|error| unreachable(error.into()))?;
        let options = options(file).create_if_missing(true);
        let mut connection = connect_wal(&options).await.map_err(unreachable)?;
        migrate::sqlite(&mut connection, clock).await?;
        Ok(Self::sqlite(file, connection))
    }

    /// Opens the SQLite database in `file` if it exists and has the schema of this program.
    pub async fn open_existing_sqlite(file: &Path) -> Result<Self, StoreError> {
        let target = || file.display().to_string();
        if !file.try_exists().unwrap_or(true) {
            return Err(StoreError::Absent { target: target() });
        }
        let unreachable = |error: sqlx::Error| StoreError::Unreachable {
            target: target(),
            reason: error.to_string(),
            remedy: remedy(file),
        };
        // Before WAL mode is switched on, which would write a first page into an empty file.
        migrate::require_latest(read_applied(file).await.map_err(unreachable)?, target)?;
        let connection = connect_wal(&options(file)).await.map_err(unreachable)?;
        Ok(Self::sqlite(file, connection))
    }

    /// The store of an open file with the right schema.
    fn sqlite(file: &Path, connection: SqliteConnection) -> Self {
        let readers = SqlitePoolOptions::new()
            .max_connections(READER_CONNECTIONS)
            .min_connections(0)
            .acquire_timeout(ACQUIRE_TIMEOUT)
            // A ping is a hop to the connection's thread and back, as expensive as the query itself; a file does not go away.
            .test_before_acquire(false)
            .connect_lazy_with(options(file).pragma("query_only", "on"));
        let (writer, inline) = (Writer::start(connection), InlineReader::new(file));
        let appender = EventAppender::new(file, writer.lock());
        let gate = WriteQueue::sqlite(file, writer.lock());
        Self {
            gate,
            lookups: None,
            record: None,
            db: Db::Sqlite(Sqlite { readers, inline, writer, appender }),
        }
    }
}

/// Reads the schema version of a file without changing it.
pub async fn probe_sqlite(file: &Path) -> Result<Schema, StoreError> {
    if !file.exists() {
        return Ok(Schema::Absent);
    }
    let unreachable = |error: sqlx::Error| StoreError::Unreachable {
        target: file.display().to_string(),
        reason: error.to_string(),
        remedy: remedy(file),
    };
    migrate::schema_of(read_applied(file).await.map_err(unreachable)?)
}

/// Reads the applied migrations of a file without changing it. The connection may write, because the last connection of a
/// file in WAL mode removes the WAL when it closes, which a read-only one cannot do. With `query_only` it does not wait for
/// a server that writes.
async fn read_applied(file: &Path) -> sqlx::Result<AppliedMigrations> {
    let options = options(file).optimize_on_close(false, None).pragma("query_only", "on");
    let mut connection = SqliteConnection::connect_with(&options).await?;
    let applied = applied_migrations(&mut connection).await;
    connection.close().await?;
    applied
}

async fn applied_migrations(connection: &mut SqliteConnection) -> sqlx::Result<AppliedMigrations> {
    let ours = "SELECT count(*) > 0 FROM sqlite_schema WHERE type = 'table' AND name = 'schema_migrations'";
    if !query_scalar::<_, bool>(ours).fetch_one(&mut *connection).await? {
        return Ok(None);
    }
    query_as(migrate::SELECT_APPLIED).fetch_all(connection).await.map(Some)
}

/// The advice for a file that cannot be opened. A backup helps against damage, not against missing permissions.
fn remedy(file: &Path) -> &'static str {
    match std::fs::File::options().read(true).write(true).open(file).map_err(|error| error.kind()) {
        Err(ErrorKind::PermissionDenied) => {
            "You have no permission: run this as the user who owns the data dir, or choose another with --data-dir."
        }
        Err(ErrorKind::ReadOnlyFilesystem) => {
            "It is on a read-only file system: choose another data dir with --data-dir."
        }
        Err(_) => "Check that it is a file in the data dir.",
        Ok(_) => "If it is damaged, restore it from a backup: `proliferate db restore FILE`.",
    }
}

fn options(file: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(file)
        .foreign_keys(true)
        .busy_timeout(ACQUIRE_TIMEOUT)
        // Each connection has its own page cache, and an idle gateway should take a few MiB only.
        .pragma("cache_size", "-1024")
        .optimize_on_close(true, 400)
}

/// SQLite would create the file readable by everybody. The WAL inherits the file's permissions.
fn create_private(file: &Path) -> std::io::Result<()> {
    OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(file).map(drop)
}

/// Connects to a file that may be new, and switches WAL mode on. SQLite reports BUSY at once when two connections do that
/// together, whatever the busy timeout, so this retries.
async fn connect_wal(options: &SqliteConnectOptions) -> sqlx::Result<SqliteConnection> {
    const SQLITE_BUSY: &str = "5";
    let options = options.clone().journal_mode(SqliteJournalMode::Wal);
    let connecting = async {
        loop {
            match SqliteConnection::connect_with(&options).await {
                Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some(SQLITE_BUSY) => {
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
                done => return done,
            }
        }
    };
    let locked = || std::io::Error::new(ErrorKind::TimedOut, "another process keeps it locked");
    tokio::time::timeout(ACQUIRE_TIMEOUT, connecting).await.unwrap_or_else(|_| Err(sqlx::Error::Io(locked())))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sqlx::raw_sql;
    use tempfile::TempDir;

    use super::*;
    use crate::Durability;

    #[tokio::test]
    async fn all_connections_have_the_same_settings_and_readers_cannot_write() {
        let directory = TempDir::new().unwrap();
        let store = Store::open_sqlite(&directory.path().join("t.db"), &Clock::system()).await.unwrap();
        let Db::Sqlite(Sqlite { readers, writer, .. }) = &store.db else { panic!("SQLite was opened") };
        let settings = async |connection: &mut SqliteConnection| {
            let journal: String =
                query_scalar("PRAGMA journal_mode").fetch_one(&mut *connection).await.unwrap();
            let keys: i64 = query_scalar("PRAGMA foreign_keys").fetch_one(&mut *connection).await.unwrap();
            let timeout: i64 = query_scalar("PRAGMA busy_timeout").fetch_one(&mut *connection).await.unwrap();
            (journal, keys, timeout)
        };
        let expected = ("wal".to_owned(), 1, 5_000);
        // All at once, so that each connection of the pool is checked.
        let mut held = Vec::new();
        for _ in 0..READER_CONNECTIONS {
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
        let directory = TempDir::new().unwrap();
        let store = Store::open_sqlite(&directory.path().join("t.db"), &Clock::system()).await.unwrap();
        store.ping().await.unwrap();
        let Db::Sqlite(sqlite) = &store.db else { panic!("SQLite was opened") };
        sqlite.writer.close().await;
        assert!(store.orgs().await.unwrap().is_empty(), "reads still work");
        let error = store.ping().await.unwrap_err().to_string();
        assert!(error.contains("the writer has stopped"), "{error}");
    }

    /// The race is rare, so it is run many times.
    #[tokio::test(flavor = "multi_thread")]
    async fn several_processes_may_create_a_file_at_once() {
        for _ in 0..150 {
            let directory = TempDir::new().unwrap();
            let options = options(&directory.path().join("t.db")).create_if_missing(true);
            let start = Arc::new(tokio::sync::Barrier::new(6));
            let connecting: Vec<_> = (0..6)
                .map(|_| {
                    let (options, start) = (options.clone(), start.clone());
                    tokio::spawn(async move {
                        start.wait().await;
                        connect_wal(&options).await
                    })
                })
                .collect();
            for connection in connecting {
                connection.await.unwrap().unwrap();
            }
        }
    }
}
