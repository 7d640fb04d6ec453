//! Appends to a session's log on SQLite without leaving the thread that asks.
//!
//! A token is seen by clients only after it is in the log, so every hop on that way is latency that people wait for. The
//! pool's connections live on threads of their own, and the writer is a task: four hops. This connection needs none. It
//! never waits: where somebody else writes, where much is unfolded and where anything fails, it leaves the batch to the
//! writer, which waits, folds and says what is wrong.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, ToSql};

/// After so many bytes one batch goes through the writer, whose commits fold SQLite's log into the file.
const UNFOLDED: usize = 64 * 1024 * 1024;

/// The connection, opened when it is first needed.
#[derive(Clone)]
pub(crate) struct Appender(Arc<Mutex<State>>);

struct State {
    file: PathBuf,
    connection: Option<Connection>,
    closed: bool,
    /// Bytes that were appended since the writer had its turn.
    unfolded: usize,
}

impl Appender {
    pub(crate) fn new(file: &Path) -> Self {
        let state = State { file: file.to_owned(), connection: None, closed: false, unfolded: 0 };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Runs one statement that adds about `bytes`; how many rows it changed, or nothing if the writer must do it.
    /// Parameters go by their names, since SQLite counts them in the order of the text.
    pub(crate) fn execute(&self, sql: &str, parameters: &[(&str, &dyn ToSql)], bytes: usize) -> Option<u64> {
        // Whoever appends now is done before a task could be woken.
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.closed || state.unfolded + bytes > UNFOLDED {
            state.unfolded = 0;
            return None;
        }
        if state.connection.is_none() {
            state.connection = open(&state.file).ok();
        }
        let mut statement = state.connection.as_ref()?.prepare_cached(sql).ok()?;
        let changed = statement.execute(parameters).ok()?;
        drop(statement);
        state.unfolded += bytes;
        u64::try_from(changed).ok()
    }

    /// Closes the connection for good.
    pub(crate) fn close(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (state.connection, state.closed) = (None, true);
    }
}

/// A connection that keeps the rules of the others, and neither waits nor folds.
fn open(file: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(file, flags)?;
    connection.busy_timeout(Duration::ZERO)?;
    connection.execute_batch(
        "PRAGMA foreign_keys = ON; PRAGMA synchronous = NORMAL; PRAGMA wal_autocheckpoint = 0; PRAGMA cache_size = -256",
    )?;
    Ok(connection)
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, Utc};
    use clock::Clock;
    use proto::SessionType;
    use sqlx::{SqliteConnection, query_as};
    use tempfile::TempDir;
    use uuid::Uuid;

    use super::*;
    use crate::db::Db;
    use crate::{NewOrg, NewSession, Owner, Store};

    async fn owned(file: &Path) -> (Store, Owner) {
        let (store, at) = (Store::open_sqlite(file, &Clock::system()).await.unwrap(), DateTime::UNIX_EPOCH);
        let (org, session) = (Uuid::from_u128(1).into(), Uuid::from_u128(2).into());
        store.create_org(NewOrg { id: org, name: "org".to_owned(), at }).await.unwrap();
        let new = NewSession::new(session, org, SessionType::Coding, "local", at);
        store.create_session(new).await.unwrap();
        let owner = store.own_session(session, "one").await.unwrap().owner;
        store.reserve_numbers(&owner, 1_000).await.unwrap();
        (store, owner)
    }

    fn state(store: &Store) -> &Appender {
        let Db::Sqlite { appender, .. } = &store.db else { panic!("SQLite was opened") };
        appender
    }

    fn unfolded(store: &Store) -> usize {
        state(store).0.lock().unwrap().unfolded
    }

    type Row = (Vec<u8>, Vec<u8>, i64, String, String);

    async fn rows(file: &Path) -> Vec<Row> {
        let url = format!("sqlite://{}", file.display());
        let mut connection = <SqliteConnection as sqlx::Connection>::connect(&url).await.unwrap();
        let sql = "SELECT session_id, org_id, epoch, frames, created_at FROM events ORDER BY last_seq";
        query_as(sql).fetch_all(&mut connection).await.unwrap()
    }

    #[tokio::test]
    async fn a_batch_is_the_same_whoever_appends_it() {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("t.db");
        let (store, owner) = owned(&file).await;
        let at: DateTime<Utc> = DateTime::from_timestamp_nanos(1_750_000_000_123_456_789);
        store.append_events(&owner, 1, 1, "{\"ü\":1}", at).await.unwrap();
        assert_eq!(unfolded(&store), 8, "it was appended here");
        state(&store).close();
        store.append_events(&owner, 2, 2, "{\"ü\":1}", at).await.unwrap();
        let rows = rows(&file).await;
        assert_eq!((rows.len(), &rows[0]), (2, &rows[1]));
    }

    #[tokio::test]
    async fn while_somebody_else_writes_and_when_much_is_unfolded_the_writer_does_it() {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("t.db");
        let (store, owner) = owned(&file).await;
        let at = DateTime::UNIX_EPOCH;
        let other = open(&file).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        let append = store.append_events(&owner, 1, 1, "{}", at);
        let free = async {
            // The writer waits for its turn; this thread did not.
            assert_eq!(unfolded(&store), 0);
            other.execute_batch("COMMIT").unwrap();
        };
        let (appended, ()) = tokio::join!(append, free);
        appended.unwrap();
        assert_eq!((unfolded(&store), rows(&file).await.len()), (0, 1));
        state(&store).0.lock().unwrap().unfolded = UNFOLDED;
        store.append_events(&owner, 2, 2, "{}", at).await.unwrap();
        assert_eq!(unfolded(&store), 0, "the writer has folded");
        store.append_events(&owner, 3, 3, "{}", at).await.unwrap();
        assert_eq!((unfolded(&store), rows(&file).await.len()), (2, 3));
        drop(other);
        store.close().await;
        assert!(!folder.path().join("t.db-wal").exists(), "the last connection folds everything");
    }
}
