//! Writes runs and the ledger: a group commit that turns all queued writes into the rows of one transaction.
//!
//! A ledger has one end, so its writers queue up on any database; with a group commit they share the cost of one. What belongs
//! together (a claim and the event that allows it, an outcome and its event, an effect on our own rows) is one [`GateWrite`],
//! which is committed completely or not at all.

pub(crate) mod completion;
pub(crate) mod decision;
pub(crate) mod open_transcript;
pub(crate) mod plan;
pub(crate) mod recent_artifacts;
pub(crate) mod record;
pub(crate) mod rows;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use ledger::{Chain, Event, Text};
use proto::{ConfigurationId, OrgId};
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

pub use self::completion::RunCompletion;
pub use self::decision::{RequestEdit, RunDecision, RunVerdict, SeenRequest};
pub use self::open_transcript::OpenTranscript;
pub(crate) use self::record::{Changed, LedgerConnection, administer, change};
use crate::postgres::Postgres;
use crate::row::JsonText;
use crate::row_hash::add_run_hash;
use crate::sqlite::wal_sync::SyncFailure;
use crate::sqlite::writer::WriteLock;
use crate::{
    Ended, NewArtifact, NewInvocation, NewRun, OrgActionMode, OverrideGrant, Run, SafetyLock, Store,
    StoreError, postgres, sqlite,
};

/// Callers wait when more writes than this are queued.
const QUEUE_CAPACITY: usize = 1024;
/// The most writes of one transaction, so that the first caller does not wait too long.
const MAX_BATCH: usize = 128;

/// Changes that are committed together.
#[derive(Clone, Debug)]
pub struct GateWrite {
    pub change: Change,
    /// Happens only if the change is made.
    pub effect: Option<Effect>,
    /// Stored only if the change is made. An existing artifact stays as it is.
    pub artifacts: Vec<NewArtifact>,
    /// The invocation of a new run.
    pub invocation: Option<Box<NewInvocation>>,
    /// Appended only if the change is made.
    pub events: Vec<NewEvent>,
}

impl GateWrite {
    /// A change and its events.
    pub fn new(change: Change, events: Vec<NewEvent>) -> Self {
        Self { change, effect: None, artifacts: Vec::new(), invocation: None, events }
    }
}

/// An event, for the chain of an organization or of the system.
#[derive(Clone, Debug)]
pub struct NewEvent {
    pub org: Option<OrgId>,
    pub event: Event,
}

/// A change that a tool makes to our own rows, in the transaction of its claim and outcome.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    SaveServiceCommands(ConfigurationEffect),
    SaveEnvFiles(ConfigurationEffect),
    /// The agent of an automation reports the end of its run.
    CompleteRun(Box<RunCompletion>),
}

/// The new value of one column of a configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigurationEffect {
    pub org: OrgId,
    pub configuration: ConfigurationId,
    pub value: JsonText,
    pub by: String,
    pub at: DateTime<Utc>,
}

/// A change to runs, or to what governs them.
#[derive(Clone, Debug)]
pub enum Change {
    Nothing,
    /// Creates a run: the claim of a call.
    Begin(Box<NewRun>),
    /// Ends a run in flight. A call is ended by the instance that executes it.
    End {
        org: OrgId,
        run_id: String,
        instance: Option<String>,
        ended: Box<Ended>,
    },
    /// Makes another instance execute a call.
    Take {
        org: OrgId,
        run_id: String,
        from: String,
        to: String,
    },
    /// Starts or ends a run that waits for approval.
    Decide(Box<RunDecision>),
    Lock(SafetyLock),
    Grant(OverrideGrant),
    SetMode(OrgActionMode),
    RevokeGrant {
        id: Uuid,
        by: String,
        at: DateTime<Utc>,
    },
}

/// The outcome of a write.
#[derive(Clone, Debug)]
pub enum Written {
    Done,
    /// The run exists already; nothing was written.
    Known(Box<Run>),
    /// The parent is not in flight; nothing was written.
    ParentInactive,
    /// The row that the effect changes does not exist; nothing was written.
    Gone,
    /// The run is not in flight or does not wait any more, or another instance executes it; nothing was written.
    NotYours,
    /// The run waited for longer than it may; nothing was written.
    Overdue,
    /// Too many runs of the session wait for approval; nothing was written.
    TooManyWaiting,
}

/// A queued write.
pub(crate) struct Job {
    /// The caller keeps a reference for longer than the writer does: memory that one thread allocates and another frees slows
    /// both down.
    pub(crate) prepared: Arc<PreparedWrite>,
    pub(crate) reply: ReplySender,
}

/// A write whose events are serialized already. The caller does that, so that the writer does not have to.
pub(crate) struct PreparedWrite {
    pub(crate) write: GateWrite,
    pub(crate) records: Vec<(Chain, String)>,
}

impl PreparedWrite {
    fn new(mut write: GateWrite) -> Result<Self, StoreError> {
        add_run_hash(&write.change, &mut write.events);
        let records = write.events.iter().map(NewEvent::to_record).collect::<Result<_, _>>()?;
        Ok(Self { write, records })
    }
}

pub(crate) type ReplySender = oneshot::Sender<Result<Written, StoreError>>;

pub(crate) enum Request {
    Write(Job),
    Close(oneshot::Sender<()>),
}

/// The queue in front of the gate's writer, which ends when the queue is closed or the last handle is dropped.
#[derive(Clone)]
pub(crate) struct WriteQueue {
    queue: mpsc::Sender<Request>,
    /// The failure of an fsync; never set on PostgreSQL.
    pub(crate) sync_failure: SyncFailure,
}

impl WriteQueue {
    /// Starts the writer of a file, which takes turns with the general writer by the lock.
    pub(crate) fn sqlite(file: &Path, lock: WriteLock) -> Self {
        let (sender, queue) = mpsc::channel(QUEUE_CAPACITY);
        let (file, failure) = (file.to_owned(), SyncFailure::default());
        let this = Self { queue: sender, sync_failure: failure.clone() };
        std::thread::spawn(move || {
            sqlite::gate_writer::work(&file, &lock, &failure, Inbox { queue, closers: Vec::new() });
        });
        this
    }

    /// Starts the writer of a PostgreSQL database.
    pub(crate) fn postgres(server: Postgres) -> Self {
        let (sender, queue) = mpsc::channel(QUEUE_CAPACITY);
        tokio::spawn(postgres::gate_writer::work(server, Inbox { queue, closers: Vec::new() }));
        Self { queue: sender, sync_failure: SyncFailure::default() }
    }

    /// Accepts no more writes, runs those that are queued, and returns when the writer has ended.
    pub(crate) async fn close(&self) {
        let (done, closed) = oneshot::channel();
        // Both fail only if the writer has already ended.
        if self.queue.send(Request::Close(done)).await.is_ok() {
            let _ = closed.await;
        }
    }
}

/// The writer's side of the queue. The writer drops it last, which completes every `close`.
pub(crate) struct Inbox {
    pub(crate) queue: mpsc::Receiver<Request>,
    closers: Vec<oneshot::Sender<()>>,
}

impl Inbox {
    /// Adds the writes that have been queued meanwhile, up to a full batch.
    pub(crate) fn fill(&mut self, jobs: &mut Vec<Job>) {
        while jobs.len() < MAX_BATCH
            && let Ok(request) = self.queue.try_recv()
        {
            self.accept(request, jobs);
        }
    }

    pub(crate) fn accept(&mut self, request: Request, jobs: &mut Vec<Job>) {
        match request {
            Request::Write(job) => jobs.push(job),
            Request::Close(closer) => {
                self.queue.close();
                self.closers.push(closer);
            }
        }
    }
}

impl Store {
    /// Writes, and returns when the write is on disk.
    pub async fn gate_write(&self, write: GateWrite) -> Result<Written, StoreError> {
        let stopped = || StoreError::NotCommitted("the gate's writer has stopped".to_owned());
        let (reply, received) = oneshot::channel();
        let prepared = Arc::new(PreparedWrite::new(write)?);
        self.gate
            .queue
            .send(Request::Write(Job { prepared: prepared.clone(), reply }))
            .await
            .map_err(|_| stopped())?;
        received.await.map_err(|_| stopped())?
    }
}

impl NewEvent {
    /// The chain of the event, and its record.
    fn to_record(&self) -> Result<(Chain, String), StoreError> {
        let unwritable = |error: serde_json::Error| StoreError::NotCommitted(error.to_string());
        Ok((self.chain()?, serde_json::to_string(&self.event).map_err(unwritable)?))
    }

    /// The same event with these details added to its notes.
    pub(crate) fn with_details(&self, details: Option<String>) -> Self {
        let mut new = self.clone();
        if let Some(details) = details {
            let notes = new.event.notes.as_ref().map(Text::as_str).unwrap_or_default();
            let gap = if notes.is_empty() { "" } else { ", " };
            new.event.notes = Some(Text::cut(&format!("{notes}{gap}{details}")));
        }
        new
    }

    pub(crate) fn chain(&self) -> Result<Chain, StoreError> {
        let name = self.org.map_or_else(|| "system".to_owned(), |org| org.uuid().to_string());
        Chain::new(name).map_err(|error| StoreError::NotCommitted(error.to_string()))
    }
}

impl Effect {
    /// The configuration that it changes.
    pub(crate) fn configuration(&self) -> Option<(OrgId, ConfigurationId)> {
        match self {
            Self::SaveServiceCommands(change) | Self::SaveEnvFiles(change) => {
                Some((change.org, change.configuration))
            }
            Self::CompleteRun(_) => None,
        }
    }

    /// The report of an agent, if it is one.
    pub(crate) fn report(&self) -> Option<&RunCompletion> {
        match self {
            Self::CompleteRun(report) => Some(report),
            Self::SaveServiceCommands(_) | Self::SaveEnvFiles(_) => None,
        }
    }

    /// Whether a later effect replaces this one: it changes the same column of the same row.
    pub(crate) fn is_replaced_by(&self, later: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(later)
            && self.configuration().is_some()
            && self.configuration() == later.configuration()
    }
}

impl Change {
    /// The run that it changes. Two writes to one run never share a transaction, because each must see what the other did.
    pub(crate) fn run(&self) -> Option<(OrgId, &str)> {
        match self {
            Self::Begin(run) => Some((run.org_id, &run.run_id)),
            Self::Decide(decision) => Some((decision.org, &decision.run_id)),
            Self::End { org, run_id, .. } | Self::Take { org, run_id, .. } => Some((*org, run_id)),
            Self::Nothing | Self::Lock(_) | Self::Grant(_) | Self::SetMode(_) | Self::RevokeGrant { .. } => {
                None
            }
        }
    }

    /// The parent of the run that it creates. A write that changes the parent comes first, in its own transaction.
    pub(crate) fn parent(&self) -> Option<(OrgId, &str)> {
        match self {
            Self::Begin(run) => run.parent_run_id.as_deref().map(|parent| (run.org_id, parent)),
            _ => None,
        }
    }

    /// Whether the run that this creates or ends references the event by its position.
    pub(crate) fn references(&self, new: &NewEvent) -> bool {
        let event = (new.org, new.event.run_id.as_ref().map(Text::as_str));
        match self {
            Self::Begin(run) => {
                let case = new.event.case_id.as_ref().map(Text::as_str);
                event == (Some(run.org_id), Some(&run.run_id)) && case == run.case_id.as_deref()
            }
            Self::End { org, run_id, .. } => event == (Some(*org), Some(run_id)),
            Self::Decide(decision) => {
                decision.ended().is_some() && event == (Some(decision.org), Some(&decision.run_id))
            }
            _ => false,
        }
    }
}

/// Splits jobs into those that can share a transaction and those that must come after them.
pub(crate) fn split_conflicts(jobs: Vec<Job>) -> (Vec<Job>, Vec<Job>) {
    let mut seen = HashSet::new();
    jobs.into_iter().partition(|job| {
        let change = &job.prepared.write.change;
        let parent_changes = change.parent().is_some_and(|(org, run)| seen.contains(&(org, run.to_owned())));
        let alone = change.run().is_none_or(|(org, run)| seen.insert((org, run.to_owned())));
        alone && !parent_changes
    })
}

/// Replies to all callers of a transaction.
pub(crate) fn reply(senders: Vec<ReplySender>, result: Result<Vec<Written>, StoreError>) {
    match result {
        Ok(results) => send(senders.into_iter().zip(results.into_iter().map(Ok))),
        // Only one caller can get the original error.
        Err(error) if senders.len() > 1 => {
            let lost = || Err(StoreError::NotCommitted(error.to_string()));
            send(senders.into_iter().map(|sender| (sender, lost())));
        }
        Err(error) => send(senders.into_iter().zip([Err(error)])),
    }
}

fn send(replies: impl IntoIterator<Item = (ReplySender, Result<Written, StoreError>)>) {
    for (sender, result) in replies {
        // The caller may be gone; the write is committed anyway.
        let _ = sender.send(result);
    }
}

/// The time of an event.
pub(crate) fn event_time(event: &Event) -> Result<DateTime<Utc>, StoreError> {
    DateTime::parse_from_rfc3339(event.timestamp_utc.as_str())
        .map(|at| at.to_utc())
        .map_err(|error| StoreError::NotCommitted(format!("the time of an event is invalid: {error}")))
}
