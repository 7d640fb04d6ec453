//! Measures each special way to SQLite against the ordinary one, for the table in [`super`]. Both sides take turns in one
//! process, so that the load of the machine cancels out; only the ratios count. `make bench` runs it.

use std::sync::Arc;
use std::time::Duration;

use chrono::DateTime;
use clock::Clock;
use ledger::{ActionType, Actor, ActorType, Event, Outcome, PolicyVersions, Text, Timestamp};
use proto::{OrgId, SessionId, SessionType};
use rusqlite::Connection;
use tempfile::TempDir;
use uuid::Uuid;

use super::Sqlite;
use super::wal_sync::{CommittedBatch, SyncFailure, WalSync};
use crate::db::Db;
use crate::gate::record::LedgerConnection as _;
use crate::{Change, Durability, GateWrite, NewEvent, NewOrg, NewSession, Owner, Store, Written};

const MEASURED_ROUNDS: usize = 41;
/// Callers that write at the same time.
const CONCURRENT_CALLERS: usize = 16;
const COUNT_FRAMES: &str =
    r#"{"type":"token","payload":{"content":"a few words of an answer, as an agent streams them"}}"#;

/// A store with a session; one of two takes the special ways, the other the ordinary ones.
struct Side {
    store: Store,
    org: OrgId,
    owner: Owner,
    next: i64,
    _directory: TempDir,
}

impl Side {
    async fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let store = Store::open_sqlite(&directory.path().join("t.db"), &Clock::system()).await.unwrap();
        let at = DateTime::UNIX_EPOCH;
        let (org, session): (OrgId, SessionId) = (Uuid::from_u128(1).into(), Uuid::from_u128(2).into());
        store.create_org(NewOrg { id: org, name: "org".to_owned(), at }).await.unwrap();
        let new = NewSession::new(session, org, SessionType::Coding, "local", at);
        store.create_session(new).await.unwrap();
        let owner = store.own_session(session, "one").await.unwrap().owner;
        store.reserve_numbers(&owner, 1_000_000).await.unwrap();
        Self { store, org, owner, next: 1, _directory: directory }
    }

    /// The same, whose shortcuts are closed, so that everything falls back to the ordinary ways.
    async fn ordinary() -> Self {
        let side = Self::new().await;
        side.sqlite().inline.close();
        side.sqlite().appender.close().await;
        side
    }

    fn sqlite(&self) -> &Sqlite {
        let Db::Sqlite(sqlite) = &self.store.db else { panic!("SQLite was opened") };
        sqlite
    }

    async fn read(&mut self, count: usize) {
        for _ in 0..count {
            assert!(self.store.session(self.org, self.owner.session()).await.unwrap().is_some());
        }
    }

    async fn append(&mut self, count: usize) {
        for _ in 0..count {
            let seq = self.next;
            self.next += 1;
            self.store
                .append_events(&self.owner, seq, seq, COUNT_FRAMES, DateTime::UNIX_EPOCH)
                .await
                .unwrap();
        }
    }

    /// Appends events to the ledger, as many callers at a time.
    async fn record(&mut self, count: usize, by_gate: bool) {
        let first = self.next;
        self.next += i64::try_from(count).unwrap();
        let writing = (0..CONCURRENT_CALLERS).map(|caller| {
            let (store, org) = (self.store.clone(), self.org);
            tokio::spawn(async move {
                for number in (caller..count).step_by(CONCURRENT_CALLERS) {
                    let event = event(org, first + i64::try_from(number).unwrap());
                    if by_gate {
                        let write = GateWrite::new(Change::Nothing, vec![event]);
                        assert!(matches!(store.gate_write(write).await, Ok(Written::Done)));
                    } else {
                        let Db::Sqlite(sqlite) = &store.db else { panic!("SQLite was opened") };
                        let write = sqlite.writer.write(Durability::Disk, move |connection| {
                            Box::pin(async move { connection.append_event(&event).await })
                        });
                        write.await.unwrap();
                    }
                }
            })
        });
        for writer in writing.collect::<Vec<_>>() {
            writer.await.unwrap();
        }
    }
}

fn event(org: OrgId, number: i64) -> NewEvent {
    fn text<const MIN: usize, const MAX: usize>(text: &str) -> Text<MIN, MAX> {
        Text::new(text).unwrap()
    }
    let actor =
        Actor { actor_id: text("ada"), actor_type: ActorType::Human, agent_name: None, user_display: None };
    let pins = PolicyVersions { lanes: text("lanes-1"), roles: text("roles-1") };
    let at = Timestamp::try_from("2026-11-15T08:30:00.000Z".to_owned()).unwrap();
    let id = text(&format!("event-{number:08}"));
    let event = Event::new(id, at, ActionType::ToolCall, Outcome::Success, actor, pins);
    NewEvent { org: Some(org), event }
}

/// Prints the medians of both sides, and the median of their ratios.
fn report(name: &str, count: usize, rounds: &[[Duration; 2]]) {
    let micros = |time: Duration| time.as_secs_f64() * 1e6 / f64::from(u32::try_from(count).unwrap());
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values.swap_remove(values.len() / 2)
    };
    let side = |side: usize| median(rounds.iter().map(|round| micros(round[side])).collect());
    let ratio = median(rounds.iter().map(|round| round[1].as_secs_f64() / round[0].as_secs_f64()).collect());
    println!("{name:28} {:9.1} µs, ordinary {:9.1} µs: {ratio:.1} times as long", side(0), side(1));
}

/// Runs both sides in turns, and each first in every second round.
macro_rules! measure {
    ($name:expr, $count:expr, $special:expr, $ordinary:expr) => {{
        let (mut rounds, clock) = (Vec::new(), Clock::system());
        for round in 0..MEASURED_ROUNDS {
            let mut times = [Duration::ZERO; 2];
            for turn in [round % 2, 1 - round % 2] {
                let start = clock.elapsed();
                if turn == 0 {
                    $special
                } else {
                    $ordinary
                }
                times[turn] = clock.elapsed().saturating_sub(start);
            }
            rounds.push(times);
        }
        report($name, $count, &rounds);
    }};
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by make bench"]
async fn ways_to_sqlite() {
    let (mut special, mut ordinary) = (Side::new().await, Side::ordinary().await);
    measure!("inline_reader: a lookup", 500, special.read(500).await, ordinary.read(500).await);
    measure!("event_appender: a batch", 500, special.append(500).await, ordinary.append(500).await);
    measure!(
        "gate_writer: 16 callers",
        480,
        special.record(480, true).await,
        ordinary.record(480, false).await
    );
    let (overlapping, blocking) = (Batches::new("NORMAL"), Batches::new("FULL"));
    measure!("wal_sync: batches of 16", 40, overlapping.commit_overlapping(40), blocking.commit(40));
}

/// Commits batches of rows as large as events.
struct Batches {
    connection: Connection,
    wal: Arc<std::fs::File>,
    _directory: TempDir,
}

impl Batches {
    fn new(synchronous: &str) -> Self {
        let directory = TempDir::new().unwrap();
        let connection = Connection::open(directory.path().join("t.db")).unwrap();
        let setup = format!(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = {synchronous}; PRAGMA wal_autocheckpoint = 16384;
            CREATE TABLE rows (number INTEGER PRIMARY KEY, content TEXT)"
        );
        connection.execute_batch(&setup).unwrap();
        let wal = Arc::new(std::fs::File::open(directory.path().join("t.db-wal")).unwrap());
        Self { connection, wal, _directory: directory }
    }

    fn batch(&self) {
        self.connection.execute_batch("BEGIN IMMEDIATE").unwrap();
        let mut insert = self.connection.prepare_cached("INSERT INTO rows (content) VALUES (?)").unwrap();
        for _ in 0..CONCURRENT_CALLERS {
            insert.execute(["x".repeat(700)]).unwrap();
        }
        self.connection.execute_batch("COMMIT").unwrap();
    }

    fn commit(&self, count: usize) {
        (0..count).for_each(|_| self.batch());
    }

    fn commit_overlapping(&self, count: usize) {
        let sync = WalSync::start(SyncFailure::default());
        for _ in 0..count {
            self.batch();
            let done = CommittedBatch { replies: Vec::new(), result: Ok(vec![Written::Done]) };
            sync.sync(self.wal.clone(), vec![done]);
        }
        sync.close();
    }
}
