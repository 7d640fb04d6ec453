//! Tests the writer against a model, and its replies when things go wrong.

use std::collections::BTreeSet;

use futures_util::future::poll_immediate;
use proptest::prelude::*;
use sqlx::sqlite::SqliteConnectOptions;
use tempfile::TempDir;

use super::*;

/// One write to the table `t`, which holds a number once.
#[derive(Clone, Copy, Debug, PartialEq)]
enum TestWrite {
    /// Fails if the number exists.
    Insert(i64),
    Delete(i64),
    /// Writes and then fails.
    InsertAndFail(i64),
    /// Writes and then panics.
    InsertAndPanic(i64),
    /// Makes SQLite roll back the whole transaction, as a full disk does.
    LoseTransaction,
}

/// The result that a caller sees.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Seen {
    Done,
    Failed,
    NotCommitted,
}

async fn start() -> (Writer, TempDir) {
    let directory = TempDir::new().unwrap();
    let options = SqliteConnectOptions::new().filename(directory.path().join("t.db")).create_if_missing(true);
    let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
    execute(&mut connection, "CREATE TABLE t (n INTEGER PRIMARY KEY)").await.unwrap();
    (Writer::start(connection), directory)
}

async fn act(writer: &Writer, durability: Durability, act: TestWrite) -> Seen {
    let done = writer.write(durability, move |tx| Box::pin(run(tx, act))).await;
    match done {
        Ok(()) => Seen::Done,
        Err(StoreError::NotCommitted(_)) => Seen::NotCommitted,
        Err(_) => Seen::Failed,
    }
}

async fn run(tx: &mut SqliteConnection, act: TestWrite) -> Result<(), StoreError> {
    let (sql, n) = match act {
        TestWrite::Insert(n) | TestWrite::InsertAndFail(n) | TestWrite::InsertAndPanic(n) => {
            ("INSERT INTO t VALUES ($1)", n)
        }
        TestWrite::Delete(n) => ("DELETE FROM t WHERE n = $1", n),
        TestWrite::LoseTransaction => ("ROLLBACK", 0),
    };
    let query = sqlx::query(sql);
    if act == TestWrite::LoseTransaction { query } else { query.bind(n) }.execute(tx).await?;
    assert!(!matches!(act, TestWrite::InsertAndPanic(_)), "a bug in a write");
    match act {
        TestWrite::Insert(_) | TestWrite::Delete(_) => Ok(()),
        _ => Err(StoreError::Refused("no")),
    }
}

/// Queues the acts behind a blocked write, so that they become exactly one transaction.
async fn in_one_batch(writer: &Writer, durability: Durability, acts: &[TestWrite]) -> Vec<Seen> {
    let (release, released) = oneshot::channel();
    let mut held = Box::pin(writer.write(durability, move |_| {
        Box::pin(async move {
            released.await.unwrap();
            Ok(())
        })
    }));
    assert!(poll_immediate(&mut held).await.is_none());
    // The writer must have taken the blocked write alone before the others are queued.
    while writer.jobs.capacity() < QUEUE_CAPACITY {
        tokio::task::yield_now().await;
    }
    let mut waiting: Vec<_> = acts.iter().map(|one| Box::pin(act(writer, durability, *one))).collect();
    for one in &mut waiting {
        assert!(poll_immediate(one).await.is_none());
    }
    assert_eq!(writer.jobs.capacity(), QUEUE_CAPACITY - acts.len());
    release.send(()).unwrap();
    held.await.unwrap();
    let mut seen = Vec::new();
    for one in waiting {
        seen.push(one.await);
    }
    seen
}

async fn numbers(writer: &Writer) -> BTreeSet<i64> {
    let all = writer.write(Durability::Disk, |tx| {
        Box::pin(async move { Ok(sqlx::query_scalar("SELECT n FROM t").fetch_all(tx).await?) })
    });
    let all: Vec<i64> = all.await.unwrap();
    all.into_iter().collect()
}

/// The expected results of acts that share a transaction, or have one alone.
fn model(table: &mut BTreeSet<i64>, acts: &[TestWrite]) -> Vec<Seen> {
    let before = table.clone();
    let mut seen: Vec<_> = acts.iter().map(|act| model_one(table, *act)).collect();
    if let Some(lost) = acts.iter().position(|act| *act == TestWrite::LoseTransaction) {
        *table = before;
        // Acts that had succeeded or had not run yet get the transaction's error; a failed act keeps its own.
        for (at, seen) in seen.iter_mut().enumerate() {
            if at > lost || *seen == Seen::Done {
                *seen = Seen::NotCommitted;
            }
        }
    }
    seen
}

fn model_one(table: &mut BTreeSet<i64>, act: TestWrite) -> Seen {
    match act {
        TestWrite::Insert(n) if table.insert(n) => Seen::Done,
        TestWrite::Delete(n) => {
            table.remove(&n);
            Seen::Done
        }
        TestWrite::InsertAndPanic(n) if !table.contains(&n) => Seen::NotCommitted,
        _ => Seen::Failed,
    }
}

fn acts() -> impl Strategy<Value = Vec<TestWrite>> {
    let one = prop_oneof![
        6 => (0..6_i64).prop_map(TestWrite::Insert),
        3 => (0..6_i64).prop_map(TestWrite::Delete),
        3 => (0..6_i64).prop_map(TestWrite::InsertAndFail),
        1 => (0..6_i64).prop_map(TestWrite::InsertAndPanic),
        1 => Just(TestWrite::LoseTransaction),
    ];
    prop::collection::vec(one, 1..8)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_batch_behaves_like_the_model(batches in prop::collection::vec(acts(), 1..5)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (writer, _directory) = start().await;
            let mut table = BTreeSet::new();
            for batch in &batches {
                let expected = model(&mut table, batch);
                prop_assert_eq!(in_one_batch(&writer, Durability::Process, batch).await, expected);
                prop_assert_eq!(&numbers(&writer).await, &table);
            }
            Ok(())
        })?;
    }
}

#[tokio::test]
async fn a_failed_single_write_is_rolled_back_and_the_next_succeeds() {
    let (writer, _directory) = start().await;
    let all = [
        TestWrite::InsertAndFail(1),
        TestWrite::InsertAndPanic(2),
        TestWrite::LoseTransaction,
        TestWrite::Insert(3),
        TestWrite::Insert(3),
    ];
    let mut seen = Vec::new();
    for one in all {
        seen.push(act(&writer, Durability::Disk, one).await);
    }
    assert_eq!(seen, [Seen::Failed, Seen::NotCommitted, Seen::Failed, Seen::Done, Seen::Failed]);
    assert_eq!(numbers(&writer).await, BTreeSet::from([3]));
}

#[tokio::test]
async fn a_write_happens_although_its_caller_is_gone() {
    let (writer, _directory) = start().await;
    let mut abandoned = Box::pin(act(&writer, Durability::Disk, TestWrite::Insert(1)));
    assert!(poll_immediate(&mut abandoned).await.is_none(), "it waits for its commit");
    drop(abandoned);
    // Writes keep their order, so this read comes after it.
    assert_eq!(numbers(&writer).await, BTreeSet::from([1]));
}

#[tokio::test]
async fn only_durable_writes_are_fsynced() {
    const SYNCHRONOUS_NORMAL: i64 = 1;
    const SYNCHRONOUS_FULL: i64 = 2;
    let (writer, _directory) = start().await;
    let synchronous = |durability| {
        writer.write(durability, |tx| {
            Box::pin(async move { Ok(sqlx::query_scalar("PRAGMA synchronous").fetch_one(tx).await?) })
        })
    };
    let order = [Durability::Disk, Durability::Process, Durability::Process, Durability::Disk];
    let mut seen: Vec<i64> = Vec::new();
    for durability in order {
        seen.push(synchronous(durability).await.unwrap());
    }
    assert_eq!(seen, [SYNCHRONOUS_FULL, SYNCHRONOUS_NORMAL, SYNCHRONOUS_NORMAL, SYNCHRONOUS_FULL]);

    let mut mixed =
        [Durability::Process, Durability::Disk, Durability::Process].map(|d| Box::pin(synchronous(d)));
    for one in &mut mixed {
        assert!(poll_immediate(one).await.is_none());
    }
    for one in mixed {
        assert_eq!(one.await.unwrap(), SYNCHRONOUS_FULL, "one that must wait makes its whole batch wait");
    }
}

#[tokio::test]
async fn a_durable_batch_is_not_committed_without_fsync() {
    let directory = TempDir::new().unwrap();
    let options = SqliteConnectOptions::new().filename(directory.path().join("t.db")).create_if_missing(true);
    let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
    execute(&mut connection, "CREATE TABLE t (n INTEGER PRIMARY KEY)").await.unwrap();
    let mut set = Some(Durability::Process);
    // SQLite refuses this pragma inside a transaction.
    execute(&mut connection, "BEGIN").await.unwrap();
    let not_ready = set_synchronous(&mut connection, &mut set, Some(Durability::Disk)).await;
    assert!(not_ready.is_err());
    assert_eq!(set, None, "the next batch tries again");
    set_synchronous(&mut connection, &mut set, Some(Durability::Process)).await.unwrap();
    assert_eq!(set, None);
    execute(&mut connection, "COMMIT").await.unwrap();

    // Jobs of the writer, run in a batch that is not ready.
    let (jobs, mut queue) = mpsc::channel(1);
    let (stop, _stops) = mpsc::channel(1);
    let writer = Writer { jobs, stop, lock: WriteLock::default() };
    let mut insert = Box::pin(act(&writer, Durability::Disk, TestWrite::Insert(1)));
    assert!(poll_immediate(&mut insert).await.is_none());
    let job = queue.recv().await.unwrap();
    commit(&mut connection, not_ready, vec![job].into_iter()).await;
    assert_eq!(insert.await, Seen::NotCommitted);
    let kept: i64 = sqlx::query_scalar("SELECT count(*) FROM t").fetch_one(&mut connection).await.unwrap();
    assert_eq!(kept, 0);
    set_synchronous(&mut connection, &mut set, Some(Durability::Disk)).await.unwrap();
    assert_eq!(set, Some(Durability::Disk), "the failed batch left the connection in order");
}
