//! The one writer of a SQLite database: takes everything that waits, runs it in one transaction, commits once.
//!
//! SQLite has one writer anyway. Queueing in front of it turns the cost of a commit (an fsync) into a share of
//! one, and a write can never fail because another one of ours holds the lock.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use sqlx::sqlite::SqliteConnection;
use sqlx::{AssertSqlSafe, Connection as _, Row as _, raw_sql};
use tokio::sync::{Mutex, mpsc, oneshot};

use crate::StoreError;
use crate::error::is_disk_full;

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

/// Why a transaction was not kept, for every caller whose write was in it.
#[derive(Clone)]
enum NotKept {
    DiskFull,
    Failed(String),
}

impl From<&sqlx::Error> for NotKept {
    fn from(error: &sqlx::Error) -> Self {
        if is_disk_full(error) { Self::DiskFull } else { Self::Failed(error.to_string()) }
    }
}

impl From<NotKept> for StoreError {
    fn from(why: NotKept) -> Self {
        match why {
            NotKept::DiskFull => Self::DiskFull,
            NotKept::Failed(why) => Self::NotCommitted(why),
        }
    }
}

/// Tells a waiting caller how the transaction that carried its write ended.
type Reply = Box<dyn FnOnce(Result<(), NotKept>) + Send>;
/// What a write leaves behind: whether to keep it, and whom to tell.
type Ran = (bool, Reply);
/// A write, given the transaction or the reason why there is none.
type Run = Box<dyn for<'c> FnOnce(Result<&'c mut SqliteConnection, NotKept>) -> BoxFuture<'c, Ran> + Send>;

struct Job {
    durability: Durability,
    /// It is one statement, which is a transaction by itself where nothing else waits.
    single: bool,
    run: Run,
}

/// A handle to the writer; the writer ends when it is closed or the last handle is gone.
#[derive(Clone)]
pub(crate) struct Writer {
    jobs: mpsc::Sender<Job>,
    stop: mpsc::Sender<oneshot::Sender<()>>,
    turn: Turn,
}

/// Whoever holds it writes. SQLite itself would let one of two writers sleep and look again, which takes longer than
/// the writing.
pub(crate) type Turn = Arc<Mutex<()>>;

impl Writer {
    /// Starts the writer on its own connection.
    pub(crate) fn start(connection: SqliteConnection) -> Self {
        let (jobs, queue) = mpsc::channel(QUEUE);
        let (stop, stops) = mpsc::channel(1);
        let turn = Turn::default();
        tokio::spawn(work(connection, queue, stops, turn.clone()));
        Self { jobs, stop, turn }
    }

    /// Writes that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.jobs.max_capacity() - self.jobs.capacity()
    }

    /// For another writer of the same file.
    pub(crate) fn turn(&self) -> Turn {
        self.turn.clone()
    }

    /// Takes no more writes, does those that wait, and returns when the connection is closed.
    pub(crate) async fn close(&self) {
        let (done, closed) = oneshot::channel();
        // Either may fail only because the writer has ended already, and then there is nothing to wait for.
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
        self.queue(durability, false, write).await
    }

    /// The same for a write that is a single statement: alone it needs neither a beginning nor a commit of ours, which
    /// are two thirds of what it takes.
    pub(crate) async fn write_statement<T, F>(
        &self,
        durability: Durability,
        write: F,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T, StoreError>> + Send + 'static,
    {
        self.queue(durability, true, write).await
    }

    async fn queue<T, F>(&self, durability: Durability, single: bool, write: F) -> Result<T, StoreError>
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
                    // The caller may have gone away; the write stands all the same.
                    let _ = sender.send(answer);
                });
                (keep, reply)
            })
        });
        let gone = |why: &str| StoreError::NotCommitted(why.to_owned());
        self.jobs.send(Job { durability, single, run }).await.map_err(|_| gone("the writer has stopped"))?;
        receiver.await.map_err(|_| gone("the write did not come to its end"))?
    }
}

async fn work(
    mut connection: SqliteConnection,
    mut queue: mpsc::Receiver<Job>,
    mut stops: mpsc::Receiver<oneshot::Sender<()>>,
    turn: Turn,
) {
    let mut synchronous = None;
    let mut batch = Vec::with_capacity(BATCH);
    let mut closers = Vec::new();
    loop {
        tokio::select! {
            // What was queued before the queue closed still comes out of it, so it is done.
            taken = queue.recv_many(&mut batch, BATCH) => {
                if taken == 0 {
                    break;
                }
                let _turn = turn.lock().await;
                let wanted = batch.iter().map(|job| job.durability).max();
                let ready = set_synchronous(&mut connection, &mut synchronous, wanted).await;
                match batch.pop_if(|job| taken == 1 && job.single && ready.is_ok()) {
                    Some(job) => statement(&mut connection, job).await,
                    None => commit(&mut connection, ready, batch.drain(..)).await,
                }
            }
            Some(closer) = stops.recv() => {
                queue.close();
                closers.push(closer);
            }
        }
    }
    // Only now may the file be copied away: the log is folded into it. The last one to close does that as well, but who
    // was cut off while connecting closes later.
    let folded = raw_sql("PRAGMA wal_checkpoint(TRUNCATE)").fetch_one(&mut connection).await;
    if folded.and_then(|row| row.try_get::<i64, _>("busy")).is_ok_and(|busy| busy != 0) {
        tracing::warn!("somebody else reads the database: a part of it is still in its log");
    }
    if let Err(error) = connection.close().await {
        tracing::warn!(%error, "the database did not close cleanly");
    }
    for closer in closers {
        // Whoever asked may have gone away.
        let _ = closer.send(());
    }
}

/// `synchronous` can only be set between transactions. FULL waits for the disk, NORMAL for the kernel. An error
/// means that the batch may not be committed: it would be reported as on disk and might not be.
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
    // After a failure nobody knows which one holds, so the next batch sets it again.
    *set = if done.is_ok() { wanted } else { None };
    // Waiting for the disk without need harms nobody.
    if needs_disk { done } else { Ok(()) }
}

/// Runs a job that is one statement: SQLite itself keeps it whole or not at all.
async fn statement(connection: &mut SqliteConnection, job: Job) {
    if let Ok((_, reply)) = AssertUnwindSafe((job.run)(Ok(connection))).catch_unwind().await {
        reply(Ok(()));
    }
}

/// Runs all jobs of a batch in one transaction, unless it is not `ready`; a job that fails is undone alone.
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
    let outcome = end.and(closed).map_err(|error| NotKept::from(&error));
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
        return ((job.run)(Err((&error).into())).await.1, Err(error));
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
mod tests;
