//! Appends to a session's log on SQLite on the caller's thread.
//!
//! Clients see a token only after it is in the log, so every thread hop on that path is latency that people feel. Through the
//! writer there are four: to its task, to the connection's thread, and back. Here there is none. The appender never blocks:
//! if another connection writes, if the WAL is too long or if anything fails, the caller hands the batch to the writer, which
//! waits, checkpoints and reports errors.
//!
//! A checkpoint moves pages from the WAL into the database file and waits for the disk, so a background thread does it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rusqlite::{Connection, OpenFlags, ToSql};
use tokio::task::{JoinHandle, spawn_blocking};

use crate::sqlite::writer::WriteLock;

/// A checkpoint starts after this many new pages (16 MiB).
const CHECKPOINT_PAGES: usize = 4 * 1024;
/// SQLite restarts its WAL only when all of it is checkpointed, which never happens under a constant load. Beyond this many
/// pages (64 MiB) the background thread checkpoints repeatedly, until so few are left (1 MiB) that all writers can wait for
/// the last checkpoint.
const LONG_WAL: usize = 16 * 1024;
const SHORT_REST: usize = 256;
/// New pages may arrive faster than they are checkpointed; the background thread gives up after this many rounds.
const MAX_ROUNDS: usize = 16;
/// Beyond this many pages (256 MiB) every batch goes through the writer until a checkpoint catches up.
const MAX_WAL: usize = 64 * 1024;
const PAGE_BYTES: usize = 4096;
/// Pages that a batch changes besides those of its text.
const OVERHEAD_PAGES: usize = 2;

/// Holds one connection, opened at the first append.
#[derive(Clone)]
pub(crate) struct EventAppender {
    state: Arc<Mutex<State>>,
    lock: WriteLock,
}

struct State {
    file: PathBuf,
    connection: Option<Connection>,
    closed: bool,
    /// Pages in the WAL, as far as we know.
    wal_pages: usize,
    /// The number of them that were appended since the last checkpoint began.
    new_pages: usize,
    checkpoint: Option<JoinHandle<()>>,
    /// The last checkpoint of a long WAL is running, and nothing may be appended meanwhile.
    finishing: bool,
}

impl EventAppender {
    pub(crate) fn new(file: &Path, lock: WriteLock) -> Self {
        let state = State {
            file: file.to_owned(),
            connection: None,
            closed: false,
            wal_pages: 0,
            new_pages: 0,
            checkpoint: None,
            finishing: false,
        };
        Self { state: Arc::new(Mutex::new(state)), lock }
    }

    /// Runs one statement that adds about `bytes`. Returns how many rows it changed, or `None` if the writer must run it.
    /// Parameters are bound by name, because SQLite numbers them in the order of the text.
    pub(crate) fn execute(&self, sql: &str, parameters: &[(&str, &dyn ToSql)], bytes: usize) -> Option<u64> {
        // A blocking lock: another append finishes sooner than a task could be woken.
        let mut state = self.state();
        if state.closed || state.finishing {
            return None;
        }
        let changed = if state.wal_pages > MAX_WAL { None } else { state.execute(sql, parameters) };
        let pages = bytes / PAGE_BYTES + OVERHEAD_PAGES;
        state.wal_pages += pages;
        state.new_pages += pages;
        if state.new_pages > CHECKPOINT_PAGES || state.wal_pages > MAX_WAL {
            self.start_checkpoint(&mut state);
        }
        changed
    }

    /// Starts a checkpoint in the background, unless one is running.
    fn start_checkpoint(&self, state: &mut State) {
        if state.checkpoint.as_ref().is_some_and(|checkpoint| !checkpoint.is_finished()) {
            return;
        }
        let (this, file) = (self.clone(), state.file.clone());
        state.new_pages = 0;
        state.checkpoint = Some(spawn_blocking(move || {
            // If it fails, the next one does its work.
            let _ = this.checkpoint(&file);
        }));
    }

    /// Checkpoints while others append. A long WAL is checkpointed until nothing is left.
    fn checkpoint(&self, file: &Path) -> rusqlite::Result<()> {
        let connection = open(file)?;
        for _ in 0..MAX_ROUNDS {
            let Some((pages, complete)) = passive_checkpoint(&connection)? else { return Ok(()) };
            let mut state = self.state();
            state.wal_pages = if complete && state.new_pages == 0 { 0 } else { pages + state.new_pages };
            if complete || pages < LONG_WAL {
                return Ok(());
            }
            if state.new_pages < SHORT_REST {
                drop(state);
                return self.checkpoint_rest(&connection);
            }
            state.new_pages = 0;
        }
        Ok(())
    }

    /// Checkpoints the rest while nobody writes: appends go to the writer, and the writer waits for the lock.
    fn checkpoint_rest(&self, connection: &Connection) -> rusqlite::Result<()> {
        let _locked = self.lock.blocking_lock();
        self.state().finishing = true;
        let done = passive_checkpoint(connection);
        let mut state = self.state();
        state.finishing = false;
        if let Some((pages, complete)) = done? {
            state.wal_pages = if complete { 0 } else { pages };
        }
        Ok(())
    }

    /// Closes the connection for good.
    pub(crate) async fn close(&self) {
        let checkpoint = {
            let mut state = self.state();
            (state.connection, state.closed) = (None, true);
            state.checkpoint.take()
        };
        if let Some(checkpoint) = checkpoint {
            // A panic also ends it.
            let _ = checkpoint.await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    fn execute(&mut self, sql: &str, parameters: &[(&str, &dyn ToSql)]) -> Option<u64> {
        if self.connection.is_none() {
            self.connection = open(&self.file).ok();
        }
        let mut statement = self.connection.as_ref()?.prepare_cached(sql).ok()?;
        u64::try_from(statement.execute(parameters).ok()?).ok()
    }
}

/// Checkpoints while others append. Returns how many pages the WAL has and whether all are checkpointed, or `None` while
/// another connection checkpoints.
fn passive_checkpoint(connection: &Connection) -> rusqlite::Result<Option<(usize, bool)>> {
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", (), |row| {
        let (pages, done): (i64, i64) = (row.get(1)?, row.get(2)?);
        Ok(usize::try_from(pages).ok().map(|all| (all, pages == done)))
    })
}

/// A connection that neither waits for locks nor checkpoints by itself.
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

    fn state(store: &Store) -> &EventAppender {
        let Db::Sqlite(sqlite) = &store.db else { panic!("SQLite was opened") };
        &sqlite.appender
    }

    fn wal_pages(store: &Store) -> usize {
        state(store).state().wal_pages
    }

    type Row = (Vec<u8>, Vec<u8>, i64, String, String);

    async fn rows(file: &Path) -> Vec<Row> {
        let url = format!("sqlite://{}", file.display());
        let mut connection = <SqliteConnection as sqlx::Connection>::connect(&url).await.unwrap();
        let sql = "SELECT session_id, org_id, epoch, frames, created_at FROM events ORDER BY last_seq";
        query_as(sql).fetch_all(&mut connection).await.unwrap()
    }

    #[tokio::test]
    async fn the_appender_and_the_writer_store_the_same_row() {
        let directory = TempDir::new().unwrap();
        let file = directory.path().join("t.db");
        let (store, owner) = owned(&file).await;
        let at: DateTime<Utc> = DateTime::from_timestamp_nanos(1_750_000_000_123_456_789);
        store.append_events(&owner, 1, 1, "{\"ü\":1}", at).await.unwrap();
        assert_eq!(wal_pages(&store), OVERHEAD_PAGES, "the appender ran it");
        state(&store).close().await;
        store.append_events(&owner, 2, 2, "{\"ü\":1}", at).await.unwrap();
        let rows = rows(&file).await;
        assert_eq!((rows.len(), &rows[0]), (2, &rows[1]));
    }

    #[tokio::test]
    async fn while_another_connection_writes_the_writer_appends() {
        let directory = TempDir::new().unwrap();
        let file = directory.path().join("t.db");
        let (store, owner) = owned(&file).await;
        let other = open(&file).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        let append = store.append_events(&owner, 1, 1, "{}", DateTime::UNIX_EPOCH);
        let free = async {
            // The writer waits for the lock; the appender does not.
            other.execute_batch("COMMIT").unwrap();
        };
        let (appended, ()) = tokio::join!(append, free);
        appended.unwrap();
        assert_eq!(rows(&file).await.len(), 1);
    }

    async fn checkpointed(store: &Store) {
        let checkpoint = state(store).state().checkpoint.take().unwrap();
        checkpoint.await.unwrap();
    }

    #[tokio::test]
    async fn the_wal_is_checkpointed_in_the_background_and_does_not_grow_for_ever() {
        let directory = TempDir::new().unwrap();
        let file = directory.path().join("t.db");
        let (store, owner) = owned(&file).await;
        let at = DateTime::UNIX_EPOCH;
        state(&store).state().new_pages = CHECKPOINT_PAGES;
        store.append_events(&owner, 1, 1, "{}", at).await.unwrap();
        checkpointed(&store).await;
        assert_eq!(wal_pages(&store), 0, "everything is checkpointed, and nothing was appended meanwhile");
        // A reader with an old snapshot keeps SQLite from restarting the WAL.
        let reader = open(&file).unwrap();
        reader.execute_batch("BEGIN; SELECT * FROM events").unwrap();
        store.append_events(&owner, 2, 2, "{}", at).await.unwrap();
        state(&store).state().wal_pages = MAX_WAL + 1;
        store.append_events(&owner, 3, 3, "{}", at).await.unwrap();
        assert!(state(&store).state().connection.is_some());
        checkpointed(&store).await;
        assert!(wal_pages(&store) > 0, "the reader blocks the checkpoint");
        drop(reader);
        state(&store).state().new_pages = CHECKPOINT_PAGES;
        store.append_events(&owner, 4, 4, "{}", at).await.unwrap();
        checkpointed(&store).await;
        assert_eq!((wal_pages(&store), rows(&file).await.len()), (0, 4));
        store.close().await;
        assert!(!directory.path().join("t.db-wal").exists(), "the last connection checkpoints everything");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn during_the_last_checkpoint_every_append_waits_and_none_is_lost() {
        let directory = TempDir::new().unwrap();
        let file = directory.path().join("t.db");
        let (store, owner) = owned(&file).await;
        let at = DateTime::UNIX_EPOCH;
        store.append_events(&owner, 1, 1, "{}", at).await.unwrap();
        // The state during the last checkpoint.
        let locked = state(&store).lock.clone().lock_owned().await;
        state(&store).state().finishing = true;
        let (other, whose) = (store.clone(), owner);
        let appending = tokio::spawn(async move { other.append_events(&whose, 2, 2, "{}", at).await });
        tokio::task::yield_now().await;
        assert!(!appending.is_finished(), "the writer does not have the lock");
        state(&store).state().finishing = false;
        drop(locked);
        appending.await.unwrap().unwrap();
        let (appender, file_of) = (state(&store).clone(), file.clone());
        let rest = spawn_blocking(move || appender.checkpoint_rest(&open(&file_of).unwrap()));
        rest.await.unwrap().unwrap();
        assert_eq!((wal_pages(&store), state(&store).state().finishing), (0, false));
        store.append_events(&owner, 3, 3, "{}", at).await.unwrap();
        assert_eq!(
            (wal_pages(&store), rows(&file).await.len()),
            (OVERHEAD_PAGES, 3),
            "the appender works again"
        );
    }
}
