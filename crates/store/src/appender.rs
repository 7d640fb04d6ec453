//! Appends to a session's log on SQLite without leaving the thread that asks.
//!
//! A token is seen by clients only after it is in the log, so every hop on that way is latency that people wait for. The
//! pool's connections live on threads of their own, and the writer is a task: four hops. This connection needs none. It
//! never waits: where somebody else writes, where much is unfolded and where anything fails, it leaves the batch to the
//! writer, which waits, folds and says what is wrong.
//!
//! Folding is moving pages from SQLite's log into the file, and waits for the disk. A thread beside does it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, ToSql};
use tokio::task::{JoinHandle, spawn_blocking};

use crate::writer::Turn;

/// After so many pages the thread beside begins: 16 MiB.
const FOLD: usize = 4 * 1024;
/// SQLite begins its log anew only when all of it is folded, which does not happen while more and more is appended. After
/// so many pages (64 MiB) the thread beside folds again and again, until so little is left (1 MiB) that all who write can
/// wait for it.
const LONG: usize = 16 * 1024;
const LITTLE: usize = 256;
/// What comes while it folds may be more than it folds, but not for ever.
const AGAIN: usize = 16;
/// Where that was not enough, after so many pages (256 MiB) everything goes through the writer until it was.
const MOST: usize = 64 * 1024;
const PAGE: usize = 4096;
/// Pages that a batch changes beside those of its text.
const AROUND: usize = 2;

/// The connection, opened when it is first needed.
#[derive(Clone)]
pub(crate) struct Appender {
    state: Arc<Mutex<State>>,
    turn: Turn,
}

struct State {
    file: PathBuf,
    connection: Option<Connection>,
    closed: bool,
    /// Pages in SQLite's log, as far as we know, and those of them that came since the last folding began.
    unfolded: usize,
    since: usize,
    folding: Option<JoinHandle<()>>,
    /// The last of it is just being folded, and nothing may come between.
    finishing: bool,
}

impl Appender {
    pub(crate) fn new(file: &Path, turn: Turn) -> Self {
        let state = State {
            file: file.to_owned(),
            connection: None,
            closed: false,
            unfolded: 0,
            since: 0,
            folding: None,
            finishing: false,
        };
        Self { state: Arc::new(Mutex::new(state)), turn }
    }

    /// Runs one statement that adds about `bytes`; how many rows it changed, or nothing if the writer must do it.
    /// Parameters go by their names, since SQLite counts them in the order of the text.
    pub(crate) fn execute(&self, sql: &str, parameters: &[(&str, &dyn ToSql)], bytes: usize) -> Option<u64> {
        // Whoever appends now is done before a task could be woken.
        let mut state = self.state();
        if state.closed || state.finishing {
            return None;
        }
        let changed = if state.unfolded > MOST { None } else { state.execute(sql, parameters) };
        let pages = bytes / PAGE + AROUND;
        state.unfolded += pages;
        state.since += pages;
        if state.since > FOLD || state.unfolded > MOST {
            self.fold(&mut state);
        }
        changed
    }

    /// Begins to fold, unless that is under way.
    fn fold(&self, state: &mut State) {
        if state.folding.as_ref().is_some_and(|folding| !folding.is_finished()) {
            return;
        }
        let (this, file) = (self.clone(), state.file.clone());
        state.since = 0;
        state.folding = Some(spawn_blocking(move || {
            // Whatever stands in its way, the next one may do it.
            let _ = this.fold_all(&file);
        }));
    }

    /// Folds what there is while others append; and where that is much, until nothing is left.
    fn fold_all(&self, file: &Path) -> rusqlite::Result<()> {
        let connection = open(file)?;
        for _ in 0..AGAIN {
            let Some((pages, whole)) = fold(&connection)? else { return Ok(()) };
            let mut state = self.state();
            state.unfolded = if whole && state.since == 0 { 0 } else { pages + state.since };
            if whole || pages < LONG {
                return Ok(());
            }
            if state.since < LITTLE {
                drop(state);
                return self.fold_the_rest(&connection);
            }
            state.since = 0;
        }
        Ok(())
    }

    /// Whoever wants to append waits for the writer, and the writer for its turn.
    fn fold_the_rest(&self, connection: &Connection) -> rusqlite::Result<()> {
        let _turn = self.turn.blocking_lock();
        self.state().finishing = true;
        let folded = fold(connection);
        let mut state = self.state();
        state.finishing = false;
        if let Some((pages, whole)) = folded? {
            state.unfolded = if whole { 0 } else { pages };
        }
        Ok(())
    }

    /// Closes the connection for good.
    pub(crate) async fn close(&self) {
        let folding = {
            let mut state = self.state();
            (state.connection, state.closed) = (None, true);
            state.folding.take()
        };
        if let Some(folding) = folding {
            // If it has panicked, it is over as well.
            let _ = folding.await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Folds what there is while others append: how many pages SQLite's log has, and whether all of them are folded. Nothing,
/// while somebody else folds.
fn fold(connection: &Connection) -> rusqlite::Result<Option<(usize, bool)>> {
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", (), |row| {
        let (pages, folded): (i64, i64) = (row.get(1)?, row.get(2)?);
        Ok(usize::try_from(pages).ok().map(|whole| (whole, pages == folded)))
    })
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
        state(store).state().unfolded
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
        assert_eq!(unfolded(&store), AROUND, "it was appended here");
        state(&store).close().await;
        store.append_events(&owner, 2, 2, "{\"ü\":1}", at).await.unwrap();
        let rows = rows(&file).await;
        assert_eq!((rows.len(), &rows[0]), (2, &rows[1]));
    }

    #[tokio::test]
    async fn while_somebody_else_writes_the_writer_does_it() {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("t.db");
        let (store, owner) = owned(&file).await;
        let other = open(&file).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        let append = store.append_events(&owner, 1, 1, "{}", DateTime::UNIX_EPOCH);
        let free = async {
            // The writer waits for its turn; this thread did not.
            other.execute_batch("COMMIT").unwrap();
        };
        let (appended, ()) = tokio::join!(append, free);
        appended.unwrap();
        assert_eq!(rows(&file).await.len(), 1);
    }

    async fn folded(store: &Store) {
        let folding = state(store).state().folding.take().unwrap();
        folding.await.unwrap();
    }

    #[tokio::test]
    async fn what_is_appended_is_folded_beside_and_the_log_does_not_grow_without_end() {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("t.db");
        let (store, owner) = owned(&file).await;
        let at = DateTime::UNIX_EPOCH;
        state(&store).state().since = FOLD;
        store.append_events(&owner, 1, 1, "{}", at).await.unwrap();
        folded(&store).await;
        assert_eq!(unfolded(&store), 0, "all was folded, and nothing came meanwhile");
        // A reader that looks at the past keeps SQLite from beginning its log anew.
        let reader = open(&file).unwrap();
        reader.execute_batch("BEGIN; SELECT * FROM events").unwrap();
        store.append_events(&owner, 2, 2, "{}", at).await.unwrap();
        state(&store).state().unfolded = MOST + 1;
        store.append_events(&owner, 3, 3, "{}", at).await.unwrap();
        assert!(state(&store).state().connection.is_some());
        folded(&store).await;
        assert!(unfolded(&store) > 0, "the reader stands in the way");
        drop(reader);
        state(&store).state().since = FOLD;
        store.append_events(&owner, 4, 4, "{}", at).await.unwrap();
        folded(&store).await;
        assert_eq!((unfolded(&store), rows(&file).await.len()), (0, 4));
        store.close().await;
        assert!(!folder.path().join("t.db-wal").exists(), "the last connection folds everything");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn while_the_last_is_folded_everybody_waits_for_the_turn_and_nothing_is_lost() {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("t.db");
        let (store, owner) = owned(&file).await;
        let at = DateTime::UNIX_EPOCH;
        store.append_events(&owner, 1, 1, "{}", at).await.unwrap();
        // As it is while somebody folds the last of it.
        let turn = state(&store).turn.clone().lock_owned().await;
        state(&store).state().finishing = true;
        let (other, whose) = (store.clone(), owner);
        let appending = tokio::spawn(async move { other.append_events(&whose, 2, 2, "{}", at).await });
        tokio::task::yield_now().await;
        assert!(!appending.is_finished(), "the writer has no turn");
        state(&store).state().finishing = false;
        drop(turn);
        appending.await.unwrap().unwrap();
        let (appender, file_of) = (state(&store).clone(), file.clone());
        let rest = spawn_blocking(move || appender.fold_the_rest(&open(&file_of).unwrap()));
        rest.await.unwrap().unwrap();
        assert_eq!((unfolded(&store), state(&store).state().finishing), (0, false));
        store.append_events(&owner, 3, 3, "{}", at).await.unwrap();
        assert_eq!((unfolded(&store), rows(&file).await.len()), (AROUND, 3), "appended here again");
    }
}
