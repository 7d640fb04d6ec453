//! The writer of a SQLite database: a group commit that runs all queued writes in one transaction.
//!
//! SQLite allows one writer at a time anyway. With a queue in front of it, writes share the cost of a commit (an fsync), and
//! no write fails because another one of ours holds the lock.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use sqlx::sqlite::SqliteConnection;
use sqlx::{AssertSqlSafe, Connection as _, Row as _, raw_sql};
use tokio::sync::{Mutex, mpsc, oneshot};

use crate::error::is_disk_full;
use crate::{Durability, StoreError};

/// Callers wait when more writes than this are queued.
const QUEUE_CAPACITY: usize = 1024;
/// The most writes of one transaction, so that the first caller does not wait too long.
const MAX_BATCH: usize = 256;

/// Why a transaction failed, for every caller whose write was in it.
#[derive(Clone)]
enum CommitFailure {
    DiskFull,
    Failed(String),
}

impl From<&sqlx::Error> for CommitFailure {
    fn from(error: &sqlx::Error) -> Self {
        if is_disk_full(error) { Self::DiskFull } else { Self::Failed(error.to_string()) }
    }
}

impl From<CommitFailure> for StoreError {
    fn from(why: CommitFailure) -> Self {
        match why {
            CommitFailure::DiskFull => Self::DiskFull,
            CommitFailure::Failed(why) => Self::NotCommitted(why),
        }
    }
}

/// Tells a caller how the transaction of its write ended.
type Reply = Box<dyn FnOnce(Result<(), CommitFailure>) + Send>;
/// The result of a write: whether to commit it, and the reply to its caller.
type WriteResult = (bool, Reply);
/// A write; it gets the transaction, or the reason why there is none.
type Run = Box<
    dyn for<'c> FnOnce(Result<&'c mut SqliteConnection, CommitFailure>) -> BoxFuture<'c, WriteResult> + Send,
>;

struct Job {
    durability: Durability,
    run: Run,
}

/// A handle to the writer, which ends when it is closed or the last handle is dropped.
#[derive(Clone)]
pub(crate) struct Writer {
    jobs: mpsc::Sender<Job>,
    stop: mpsc::Sender<oneshot::Sender<()>>,
    lock: WriteLock,
}

/// Our writers of one file take turns by this lock. SQLite itself would let the second one sleep and retry, which takes
/// longer than the write.
pub(crate) type WriteLock = Arc<Mutex<()>>;

impl Writer {
    /// Starts the writer on its own connection.
    pub(crate) fn start(connection: SqliteConnection) -> Self {
        let (jobs, queue) = mpsc::channel(QUEUE_CAPACITY);
        let (stop, stops) = mpsc::channel(1);
        let lock = WriteLock::default();
        tokio::spawn(work(connection, queue, stops, lock.clone()));
        Self { jobs, stop, lock }
    }

    /// How many writes are queued.
    pub(crate) fn queued(&self) -> usize {
        self.jobs.max_capacity() - self.jobs.capacity()
    }

    /// The lock, for another writer of the same file.
    pub(crate) fn lock(&self) -> WriteLock {
        self.lock.clone()
    }

    /// Accepts no more writes, runs those that are queued, and returns when the connection is closed.
    pub(crate) async fn close(&self) {
        let (done, closed) = oneshot::channel();
        // Both fail only if the writer has already ended.
        if self.stop.send(done).await.is_ok() {
            let _ = closed.await;
        }
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
                    Err(why) => Err(why.into()),
                };
                let keep = result.is_ok();
                let reply: Reply = Box::new(move |commit| {
                    let answer = result.and_then(|value| match commit {
                        Ok(()) => Ok(value),
                        Err(why) => Err(why.into()),
                    });
                    // The caller may be gone; the write is committed anyway.
                    let _ = sender.send(answer);
                });
                (keep, reply)
            })
        });
        let gone = |why: &str| StoreError::NotCommitted(why.to_owned());
        self.jobs.send(Job { durability, run }).await.map_err(|_| gone("the writer has stopped"))?;
        receiver.await.map_err(|_| gone("the writer panicked during the write"))?
    }
}

async fn work(
    mut connection: SqliteConnection,
    mut queue: mpsc::Receiver<Job>,
    mut stops: mpsc::Receiver<oneshot::Sender<()>>,
    lock: WriteLock,
) {
    let mut synchronous = None;
    let mut batch = Vec::with_capacity(MAX_BATCH);
    let mut closers = Vec::new();
    loop {
        tokio::select! {
            // A closed queue still yields the writes that were queued before.
            taken = queue.recv_many(&mut batch, MAX_BATCH) => {
                if taken == 0 {
                    break;
                }
                let _locked = lock.lock().await;
                let wanted = batch.iter().map(|job| job.durability).max();
                let ready = set_synchronous(&mut connection, &mut synchronous, wanted).await;
                commit(&mut connection, ready, batch.drain(..)).await;
            }
            Some(closer) = stops.recv() => {
                queue.close();
                closers.push(closer);
            }
        }
    }
    // After this checkpoint the file is complete without its WAL and may be copied. SQLite also does it when the last
    // connection closes, but a connection that was cancelled while it was opened may close later than this one.
    let checkpoint = raw_sql("PRAGMA wal_checkpoint(TRUNCATE)").fetch_one(&mut connection).await;
    if checkpoint.and_then(|row| row.try_get::<i64, _>("busy")).is_ok_and(|busy| busy != 0) {
        tracing::warn!("another process reads the database, so a part of it is still in the WAL");
    }
    if let Err(error) = connection.close().await {
        tracing::warn!(%error, "the database did not close cleanly");
    }
    for closer in closers {
        // The caller may be gone.
        let _ = closer.send(());
    }
}

/// Sets `synchronous`, which SQLite allows only between transactions. FULL fsyncs at each commit, NORMAL does not. After an
/// error the batch must not be committed: its callers would be told that it is on disk, and it might not be.
async fn set_synchronous(
    connection: &mut SqliteConnection,
    set: &mut Option<Durability>,
    wanted: Option<Durability>,
) -> sqlx::Result<()> {
    if *set == wanted {
        return Ok(());
    }
    let needs_disk = wanted != Some(Durability::Process);
    let sql = if needs_disk { "PRAGMA synchronous = FULL" } else { "PRAGMA synchronous = NORMAL" };
    let done = execute(connection, sql).await;
    // After a failure the value is unknown, so the next batch sets it again.
    *set = if done.is_ok() { wanted } else { None };
    // An unneeded fsync is harmless.
    if needs_disk { done } else { Ok(()) }
}

/// Runs all jobs of a batch in one transaction, if `ready` is `Ok`. A job that fails is rolled back alone.
async fn commit(
    connection: &mut SqliteConnection,
    ready: sqlx::Result<()>,
    batch: impl ExactSizeIterator<Item = Job>,
) {
    let alone = batch.len() == 1;
    let mut replies = Vec::with_capacity(batch.len());
    let mut end = match ready {
        Ok(()) => execute(connection, "BEGIN IMMEDIATE").await,
        not_ready => not_ready,
    };
    for job in batch {
        let reply = match &end {
            Ok(()) => {
                let (reply, ended) = step(connection, job, alone).await;
                end = ended;
                reply
            }
            Err(error) => (job.run)(Err(error.into())).await.1,
        };
        replies.push(reply);
    }
    let last = if end.is_ok() { "COMMIT" } else { "ROLLBACK" };
    let closed = execute(connection, last).await;
    let outcome = end.and(closed).map_err(|error| CommitFailure::from(&error));
    if outcome.is_err() && last == "COMMIT" {
        let _ = execute(connection, "ROLLBACK").await;
    }
    for reply in replies {
        reply(outcome.clone());
    }
}

/// Runs one job inside the transaction; the second result says whether the transaction can continue.
/// A batch of one needs no savepoint, because rolling it back is rolling back the transaction.
async fn step(connection: &mut SqliteConnection, job: Job, alone: bool) -> (Reply, sqlx::Result<()>) {
    let begin = if alone { Ok(()) } else { execute(connection, "SAVEPOINT job").await };
    if let Err(error) = begin {
        return ((job.run)(Err((&error).into())).await.1, Err(error));
    }
    // A panic rolls back its own job only: if the writer died, nothing could be written any more.
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
mod tests;
