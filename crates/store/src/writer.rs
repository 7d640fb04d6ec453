//! The one writer of a SQLite database: takes everything that waits, runs it in one transaction, commits once.
//!
//! SQLite has one writer anyway. Queueing in front of it turns the cost of a commit (an fsync) into a share of
//! one, and a write can never fail because another one of ours holds the lock.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use sqlx::sqlite::SqliteConnection;
use sqlx::{AssertSqlSafe, Connection as _, raw_sql};
use tokio::sync::{mpsc, oneshot};

use crate::StoreError;

/// How much must be on disk before a write is reported as done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// Survives a crash of this program, but perhaps not one of the machine: streamed events.
    Process,
    /// Survives a power cut: claims, ledger, approvals, identity, state of sessions.
    Disk,
}

/// More than this waits at its sender; the queue must not grow without bound.
const QUEUE: usize = 1024;
/// More than this goes into the next transaction, so that the first one is not kept waiting.
const BATCH: usize = 256;

/// Tells a waiting caller how the transaction that carried its write ended.
type Reply = Box<dyn FnOnce(Result<(), String>) + Send>;
/// What a write leaves behind: whether to keep it, and whom to tell.
type Ran = (bool, Reply);
/// A write, given the transaction or the reason why there is none.
type Run = Box<dyn for<'c> FnOnce(Result<&'c mut SqliteConnection, String>) -> BoxFuture<'c, Ran> + Send>;

struct Job {
    durability: Durability,
    run: Run,
}

/// A handle to the writer; the writer ends when the last handle is gone.
#[derive(Clone)]
pub(crate) struct Writer(mpsc::Sender<Job>);

impl Writer {
    /// Starts the writer on its own connection.
    pub(crate) fn start(connection: SqliteConnection) -> Self {
        let (sender, receiver) = mpsc::channel(QUEUE);
        tokio::spawn(work(connection, receiver));
        Self(sender)
    }

    /// Runs `write` inside the next transaction and returns after the commit.
    pub(crate) async fn write<T, F>(&self, durability: Durability, write: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T, StoreError>> + Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        let run: Run = Box::new(move |transaction| {
            Box::pin(async move {
                let result = match transaction {
                    Ok(connection) => write(connection).await,
                    Err(why) => Err(StoreError::NotCommitted(why)),
                };
                let keep = result.is_ok();
                let reply: Reply = Box::new(move |commit| {
                    let answer = result.and_then(|value| match commit {
                        Ok(()) => Ok(value),
                        Err(why) => Err(StoreError::NotCommitted(why)),
                    });
                    // The caller may have gone away; the write stands all the same.
                    let _ = sender.send(answer);
                });
                (keep, reply)
            })
        });
        let gone = |why: &str| StoreError::NotCommitted(why.to_owned());
        self.0.send(Job { durability, run }).await.map_err(|_| gone("the writer has stopped"))?;
        receiver.await.map_err(|_| gone("the write did not come to its end"))?
    }
}

async fn work(mut connection: SqliteConnection, mut queue: mpsc::Receiver<Job>) {
    let mut synchronous = None;
    let mut batch = Vec::with_capacity(BATCH);
    while queue.recv_many(&mut batch, BATCH).await > 0 {
        let wanted = batch.iter().map(|job| job.durability).max();
        if synchronous != wanted && set_synchronous(&mut connection, wanted).await.is_ok() {
            synchronous = wanted;
        }
        commit(&mut connection, batch.drain(..)).await;
    }
    // Only now may the file be copied away: the log is folded into it.
    if let Err(error) = connection.close().await {
        tracing::warn!(%error, "the database did not close cleanly");
    }
}

/// `synchronous` can only be set between transactions. FULL waits for the disk, NORMAL for the kernel.
async fn set_synchronous(connection: &mut SqliteConnection, wanted: Option<Durability>) -> sqlx::Result<()> {
    let sql = match wanted {
        Some(Durability::Process) => "PRAGMA synchronous = NORMAL",
        _ => "PRAGMA synchronous = FULL",
    };
    execute(connection, sql).await
}

/// Runs all jobs of a batch in one transaction; a job that fails is undone alone.
async fn commit(connection: &mut SqliteConnection, batch: impl ExactSizeIterator<Item = Job>) {
    let alone = batch.len() == 1;
    let mut replies = Vec::with_capacity(batch.len());
    let mut end = execute(connection, "BEGIN IMMEDIATE").await;
    for job in batch {
        let reply = match &end {
            Ok(()) => {
                let (reply, ended) = step(connection, job, alone).await;
                end = ended;
                reply
            }
            Err(error) => (job.run)(Err(error.to_string())).await.1,
        };
        replies.push(reply);
    }
    let last = if end.is_ok() { "COMMIT" } else { "ROLLBACK" };
    let closed = execute(connection, last).await;
    let outcome = end.and(closed).map_err(|error| error.to_string());
    if outcome.is_err() && last == "COMMIT" {
        let _ = execute(connection, "ROLLBACK").await;
    }
    for reply in replies {
        reply(outcome.clone());
    }
}

/// One job inside the transaction, and whether the transaction can go on after it.
/// A batch of one needs no savepoint: undoing it is undoing the batch.
async fn step(connection: &mut SqliteConnection, job: Job, alone: bool) -> (Reply, sqlx::Result<()>) {
    let begin = if alone { Ok(()) } else { execute(connection, "SAVEPOINT job").await };
    if let Err(error) = begin {
        return ((job.run)(Err(error.to_string())).await.1, Err(error));
    }
    // A panic undoes its own job: the writer must outlive it, or nothing is ever written again.
    let ran = AssertUnwindSafe((job.run)(Ok(&mut *connection))).catch_unwind().await;
    let (keep, reply) = ran.unwrap_or_else(|_| (false, Box::new(drop)));
    let end = match (alone, keep) {
        (true, true) => Ok(()),
        (true, false) => execute(connection, "ROLLBACK; BEGIN IMMEDIATE").await,
        (false, true) => execute(connection, "RELEASE job").await,
        (false, false) => execute(connection, "ROLLBACK TO job; RELEASE job").await,
    };
    (reply, end)
}

async fn execute(connection: &mut SqliteConnection, sql: &'static str) -> sqlx::Result<()> {
    raw_sql(AssertSqlSafe(sql)).execute(connection).await.map(drop)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use futures_util::future::poll_immediate;
    use proptest::prelude::*;
    use sqlx::sqlite::SqliteConnectOptions;
    use tempfile::TempDir;

    use super::*;

    /// One write to the table `t`, which holds a number once.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Act {
        /// Fails when the number is there.
        Insert(i64),
        Delete(i64),
        /// Writes, and then finds a reason to fail.
        InsertAndFail(i64),
        /// The same, and much worse.
        InsertAndPanic(i64),
        /// What a full disk does: SQLite itself ends the whole transaction.
        LoseTransaction,
    }

    /// What a caller sees.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Seen {
        Done,
        Failed,
        NotCommitted,
    }

    async fn start() -> (Writer, TempDir) {
        let folder = TempDir::new().unwrap();
        let options =
            SqliteConnectOptions::new().filename(folder.path().join("t.db")).create_if_missing(true);
        let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
        execute(&mut connection, "CREATE TABLE t (n INTEGER PRIMARY KEY)").await.unwrap();
        (Writer::start(connection), folder)
    }

    async fn act(writer: &Writer, durability: Durability, act: Act) -> Seen {
        let done = writer.write(durability, move |tx| Box::pin(run(tx, act))).await;
        match done {
            Ok(()) => Seen::Done,
            Err(StoreError::NotCommitted(_)) => Seen::NotCommitted,
            Err(_) => Seen::Failed,
        }
    }

    async fn run(tx: &mut SqliteConnection, act: Act) -> Result<(), StoreError> {
        let (sql, n) = match act {
            Act::Insert(n) | Act::InsertAndFail(n) | Act::InsertAndPanic(n) => {
                ("INSERT INTO t VALUES ($1)", n)
            }
            Act::Delete(n) => ("DELETE FROM t WHERE n = $1", n),
            Act::LoseTransaction => ("ROLLBACK", 0),
        };
        let query = sqlx::query(sql);
        if act == Act::LoseTransaction { query } else { query.bind(n) }.execute(tx).await?;
        assert!(!matches!(act, Act::InsertAndPanic(_)), "a bug in a write");
        match act {
            Act::Insert(_) | Act::Delete(_) => Ok(()),
            _ => Err(StoreError::Refused("no")),
        }
    }

    /// Lets the acts wait behind a write that is held, so that they become exactly one transaction.
    async fn in_one_batch(writer: &Writer, durability: Durability, acts: &[Act]) -> Vec<Seen> {
        let (release, released) = oneshot::channel();
        let mut held = Box::pin(writer.write(durability, move |_| {
            Box::pin(async move {
                released.await.unwrap();
                Ok(())
            })
        }));
        assert!(poll_immediate(&mut held).await.is_none());
        // The writer must have taken the held write alone before the others queue up.
        while writer.0.capacity() < QUEUE {
            tokio::task::yield_now().await;
        }
        let mut waiting: Vec<_> = acts.iter().map(|one| Box::pin(act(writer, durability, *one))).collect();
        for one in &mut waiting {
            assert!(poll_immediate(one).await.is_none());
        }
        assert_eq!(writer.0.capacity(), QUEUE - acts.len());
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

    /// What must come of acts that share a transaction, or have one alone.
    fn model(table: &mut BTreeSet<i64>, acts: &[Act]) -> Vec<Seen> {
        let before = table.clone();
        let mut seen: Vec<_> = acts.iter().map(|act| model_one(table, *act)).collect();
        if let Some(lost) = acts.iter().position(|act| *act == Act::LoseTransaction) {
            *table = before;
            // Whoever had succeeded or was still to come is told; a failure keeps its own reason.
            for (at, seen) in seen.iter_mut().enumerate() {
                if at > lost || *seen == Seen::Done {
                    *seen = Seen::NotCommitted;
                }
            }
        }
        seen
    }

    fn model_one(table: &mut BTreeSet<i64>, act: Act) -> Seen {
        match act {
            Act::Insert(n) if table.insert(n) => Seen::Done,
            Act::Delete(n) => {
                table.remove(&n);
                Seen::Done
            }
            Act::InsertAndPanic(n) if !table.contains(&n) => Seen::NotCommitted,
            _ => Seen::Failed,
        }
    }

    fn acts() -> impl Strategy<Value = Vec<Act>> {
        let one = prop_oneof![
            6 => (0..6_i64).prop_map(Act::Insert),
            3 => (0..6_i64).prop_map(Act::Delete),
            3 => (0..6_i64).prop_map(Act::InsertAndFail),
            1 => (0..6_i64).prop_map(Act::InsertAndPanic),
            1 => Just(Act::LoseTransaction),
        ];
        prop::collection::vec(one, 1..8)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn each_batch_does_what_the_model_says(batches in prop::collection::vec(acts(), 1..5)) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let (writer, _folder) = start().await;
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
    async fn a_write_alone_that_fails_is_undone_and_the_next_goes_on() {
        let (writer, _folder) = start().await;
        let all = [
            Act::InsertAndFail(1),
            Act::InsertAndPanic(2),
            Act::LoseTransaction,
            Act::Insert(3),
            Act::Insert(3),
        ];
        let mut seen = Vec::new();
        for one in all {
            seen.push(act(&writer, Durability::Disk, one).await);
        }
        assert_eq!(seen, [Seen::Failed, Seen::NotCommitted, Seen::Failed, Seen::Done, Seen::Failed]);
        assert_eq!(numbers(&writer).await, BTreeSet::from([3]));
    }

    #[tokio::test]
    async fn a_write_happens_though_its_caller_has_gone() {
        let (writer, _folder) = start().await;
        let mut abandoned = Box::pin(act(&writer, Durability::Disk, Act::Insert(1)));
        assert!(poll_immediate(&mut abandoned).await.is_none(), "it waits for its commit");
        drop(abandoned);
        // Writes keep their order, so this read comes after it.
        assert_eq!(numbers(&writer).await, BTreeSet::from([1]));
    }

    #[tokio::test]
    async fn a_write_waits_for_the_disk_only_when_it_must() {
        const NORMAL: i64 = 1;
        const FULL: i64 = 2;
        let (writer, _folder) = start().await;
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
        assert_eq!(seen, [FULL, NORMAL, NORMAL, FULL]);

        let mut mixed =
            [Durability::Process, Durability::Disk, Durability::Process].map(|d| Box::pin(synchronous(d)));
        for one in &mut mixed {
            assert!(poll_immediate(one).await.is_none());
        }
        for one in mixed {
            assert_eq!(one.await.unwrap(), FULL, "one that must wait makes its whole batch wait");
        }
    }
}
