//! The one way to write runs and the ledger: whatever waits goes into one transaction, as rows and not as calls.
//!
//! A ledger has one end, so its writers stand in line on any database. Here the line is a queue: a call costs a
//! share of a commit and a share of a statement. What belongs together (a claim and the event that allows it, an
//! outcome and the event that tells it) is one [`GateWrite`], and is kept whole or not at all.

mod batch;

use std::collections::HashSet;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use ledger::{Chain, Event};
use proto::OrgId;
use tokio::sync::{mpsc, oneshot};

use crate::db::{Db, Durability, transaction};
use crate::{Ended, NewArtifact, NewRun, OverrideGrant, Run, SafetyLock, Store, StoreError};

/// More than this waits at its sender.
const QUEUE: usize = 1024;
/// More than this goes into the next transaction. Bounded by what PostgreSQL takes as parameters of one statement.
const BATCH: usize = 128;

/// What is written together.
#[derive(Clone, Debug)]
pub struct GateWrite {
    pub change: Change,
    /// Kept only if the change is made. One that is there already stays as it is.
    pub artifacts: Vec<NewArtifact>,
    /// Appended only if the change is made.
    pub events: Vec<NewEvent>,
}

/// An event and the chain it goes to: an organisation's, or the system's.
#[derive(Clone, Debug)]
pub struct NewEvent {
    pub org: Option<OrgId>,
    pub event: Event,
}

/// What happens to runs and to what governs them.
#[derive(Clone, Debug)]
pub enum Change {
    Nothing,
    /// Makes a run: the claim of a call.
    Begin(Box<NewRun>),
    /// Ends a run that is under way, by the instance that executes it if it is a call.
    End {
        org: OrgId,
        run_id: String,
        instance: Option<String>,
        ended: Box<Ended>,
    },
    /// Makes another instance the one that executes a call.
    Take {
        org: OrgId,
        run_id: String,
        from: String,
        to: String,
    },
    Lock(SafetyLock),
    Grant(OverrideGrant),
}

/// What became of a write.
#[derive(Clone, Debug)]
pub enum Written {
    Done,
    /// There is such a run already; nothing was written.
    Known(Box<Run>),
    /// The parent is not under way; nothing was written.
    ParentInactive,
    /// The run is not under way, or another instance executes it; nothing was written.
    NotYours,
}

pub(crate) struct Job {
    write: GateWrite,
    done: oneshot::Sender<Result<Written, StoreError>>,
}

/// Starts the line in front of a database. It ends with the last handle to it.
pub(crate) fn start(db: Db) -> mpsc::Sender<Job> {
    let (sender, queue) = mpsc::channel(QUEUE);
    tokio::spawn(work(db, queue));
    sender
}

impl Store {
    /// Writes, and returns when it is on disk.
    pub async fn gate_write(&self, write: GateWrite) -> Result<Written, StoreError> {
        let stopped = || StoreError::NotCommitted("the gate's writer has stopped".to_owned());
        let (done, answer) = oneshot::channel();
        self.gate.send(Job { write, done }).await.map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?
    }
}

impl NewEvent {
    pub(crate) fn chain(&self) -> Result<Chain, StoreError> {
        let name = self.org.map_or_else(|| "system".to_owned(), |org| org.uuid().to_string());
        Chain::new(name).map_err(|error| StoreError::NotCommitted(error.to_string()))
    }
}

impl Change {
    /// The run it touches. Two writes to one run never share a transaction: each must see what the other did.
    fn run(&self) -> Option<(OrgId, &str)> {
        match self {
            Self::Begin(run) => Some((run.org_id, &run.run_id)),
            Self::End { org, run_id, .. } | Self::Take { org, run_id, .. } => Some((*org, run_id)),
            Self::Nothing | Self::Lock(_) | Self::Grant(_) => None,
        }
    }
}

async fn work(db: Db, mut queue: mpsc::Receiver<Job>) {
    let mut waiting = Vec::new();
    loop {
        if waiting.is_empty() && queue.recv_many(&mut waiting, BATCH).await == 0 {
            return;
        }
        while waiting.len() < BATCH
            && let Ok(job) = queue.try_recv()
        {
            waiting.push(job);
        }
        let (now, later) = apart(std::mem::take(&mut waiting));
        waiting = later;
        commit(&db, now).await;
    }
}

/// The jobs that can go together, and those that must come after them.
fn apart(jobs: Vec<Job>) -> (Vec<Job>, Vec<Job>) {
    let mut seen = HashSet::new();
    jobs.into_iter()
        .partition(|job| job.write.change.run().is_none_or(|(org, run)| seen.insert((org, run.to_owned()))))
}

/// Runs all jobs in one transaction. If that fails, each by itself, so that one that the database refuses costs the
/// others nothing.
async fn commit(db: &Db, jobs: Vec<Job>) {
    let (writes, waiting): (Vec<_>, Vec<_>) = jobs.into_iter().map(|job| (job.write, job.done)).unzip();
    let writes = Arc::new(writes);
    match attempt(db, writes.clone()).await {
        Ok(results) => answer(waiting, results.into_iter().map(Ok)),
        Err(error) if writes.len() == 1 => answer(waiting, [Err(error)]),
        Err(error) if error.is_unavailable() => {
            answer(waiting, (0..writes.len()).map(|_| Err(StoreError::NotCommitted(error.to_string()))));
        }
        Err(_) => {
            for (write, done) in writes.iter().zip(waiting) {
                let result = attempt(db, Arc::new(vec![write.clone()])).await;
                answer(
                    vec![done],
                    result
                        .map(Vec::into_iter)
                        .map_or_else(|error| vec![Err(error)], |results| results.map(Ok).collect()),
                );
            }
        }
    }
}

fn answer(
    waiting: Vec<oneshot::Sender<Result<Written, StoreError>>>,
    results: impl IntoIterator<Item = Result<Written, StoreError>>,
) {
    for (done, result) in waiting.into_iter().zip(results) {
        // Whoever asked may have gone away; what is written stands.
        let _ = done.send(result);
    }
}

async fn attempt(db: &Db, writes: Arc<Vec<GateWrite>>) -> Result<Vec<Written>, StoreError> {
    match db {
        Db::Sqlite { writer, .. } => {
            writer
                .write(Durability::Disk, move |tx| {
                    Box::pin(async move { batch::sqlite::run(tx, &writes).await })
                })
                .await
        }
        Db::Postgres(pool) => {
            transaction(pool, Durability::Disk, move |tx| {
                Box::pin(async move { batch::postgres::run(tx, &writes).await })
            })
            .await
        }
    }
}

/// When an event happened, as the contract writes it.
pub(crate) fn moment(event: &Event) -> Result<DateTime<Utc>, StoreError> {
    DateTime::parse_from_rfc3339(event.timestamp_utc.as_str())
        .map(|at| at.to_utc())
        .map_err(|error| StoreError::NotCommitted(format!("an event's time is not one: {error}")))
}
