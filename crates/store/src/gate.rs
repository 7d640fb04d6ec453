//! The one way to write runs and the ledger: whatever waits goes into one transaction, as rows and not as calls.
//!
//! A ledger has one end, so its writers stand in line on any database. Here the line is a queue: a call costs a
//! share of a commit. What belongs together (a claim and the event that allows it, an outcome and the event that
//! tells it, an effect on our own rows) is one [`GateWrite`], and is kept whole or not at all.

mod disk;
mod kept;
mod plan;
mod postgres;
mod record;
mod rows;
mod sqlite;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use ledger::{Chain, Event, Text};
use proto::{ConfigurationId, OrgId};
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use self::disk::Refused;
pub(crate) use self::record::{Changed, LedgerConnection, administer, change};
use crate::postgres::Postgres;
use crate::row::JsonText;
use crate::row_hash::add_run_hash;
use crate::writer::Turn;
use crate::{Ended, NewArtifact, NewRun, OrgActionMode, OverrideGrant, Run, SafetyLock, Store, StoreError};

/// More than this waits at its sender.
const QUEUE: usize = 1024;
/// More than this goes into the next transaction, so that the first one is not kept waiting.
const BATCH: usize = 128;

/// What is written together.
#[derive(Clone, Debug)]
pub struct GateWrite {
    pub change: Change,
    /// Happens only if the change is made.
    pub effect: Option<Effect>,
    /// Kept only if the change is made. One that is there already stays as it is.
    pub artifacts: Vec<NewArtifact>,
    /// Appended only if the change is made.
    pub events: Vec<NewEvent>,
}

impl GateWrite {
    /// A change and what is told of it.
    pub fn new(change: Change, events: Vec<NewEvent>) -> Self {
        Self { change, effect: None, artifacts: Vec::new(), events }
    }
}

/// An event and the chain it goes to: an organisation's, or the system's.
#[derive(Clone, Debug)]
pub struct NewEvent {
    pub org: Option<OrgId>,
    pub event: Event,
}

/// What a tool does to rows of ours. It happens together with its claim and its outcome.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    SaveServiceCommands {
        org: OrgId,
        configuration: ConfigurationId,
        commands: JsonText,
        by: String,
        at: DateTime<Utc>,
    },
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
    SetMode(OrgActionMode),
    RevokeGrant {
        id: Uuid,
        by: String,
        at: DateTime<Utc>,
    },
}

/// What became of a write.
#[derive(Clone, Debug)]
pub enum Written {
    Done,
    /// There is such a run already; nothing was written.
    Known(Box<Run>),
    /// The parent is not under way; nothing was written.
    ParentInactive,
    /// What the effect is for does not exist; nothing was written.
    Gone,
    /// The run is not under way, or another instance executes it; nothing was written.
    NotYours,
}

/// A write, and who waits for it.
struct Job {
    /// Whoever asks keeps it too, and longer: what is made on one thread and freed on another costs both.
    ready: Arc<Ready>,
    done: Waiting,
}

/// A write whose events are records already: that is the work of whoever asks, and not of the line.
struct Ready {
    write: GateWrite,
    records: Vec<(Chain, String)>,
}

impl Ready {
    fn new(mut write: GateWrite) -> Result<Self, StoreError> {
        add_run_hash(&write.change, &mut write.events);
        let records = write.events.iter().map(NewEvent::to_record).collect::<Result<_, _>>()?;
        Ok(Self { write, records })
    }
}

type Waiting = oneshot::Sender<Result<Written, StoreError>>;

enum Asked {
    Write(Job),
    Close(oneshot::Sender<()>),
}

/// The line in front of a database. It ends when it is closed or the last handle is gone.
#[derive(Clone)]
pub(crate) struct Line {
    queue: mpsc::Sender<Asked>,
    pub(crate) refused: Refused,
}

impl Line {
    /// Starts the line in front of a file, whose other writer takes turns with it.
    pub(crate) fn sqlite(file: &Path, turn: Turn) -> Self {
        let (line, queue) = mpsc::channel(QUEUE);
        let (file, refused) = (file.to_owned(), Refused::default());
        let line = Self { queue: line, refused: refused.clone() };
        std::thread::spawn(move || {
            sqlite::work(&file, &turn, &refused, Inbox { queue, closers: Vec::new() });
        });
        line
    }

    /// Starts the line in front of a server.
    pub(crate) fn postgres(server: Postgres) -> Self {
        let (line, queue) = mpsc::channel(QUEUE);
        tokio::spawn(postgres::work(server, Inbox { queue, closers: Vec::new() }));
        Self { queue: line, refused: Refused::default() }
    }

    /// Takes no more writes, does those that wait, and returns when the line has ended.
    pub(crate) async fn close(&self) {
        let (done, closed) = oneshot::channel();
        // Either may fail only because the line has ended already, and then there is nothing to wait for.
        if self.queue.send(Asked::Close(done)).await.is_ok() {
            let _ = closed.await;
        }
    }
}

/// What the line is asked. Whoever closes it is told when this is dropped, which is the last thing that it does.
struct Inbox {
    queue: mpsc::Receiver<Asked>,
    closers: Vec<oneshot::Sender<()>>,
}

impl Inbox {
    /// Adds whatever else has come by now.
    fn add_waiting(&mut self, jobs: &mut Vec<Job>) {
        while jobs.len() < BATCH
            && let Ok(asked) = self.queue.try_recv()
        {
            self.sort(asked, jobs);
        }
    }

    fn sort(&mut self, asked: Asked, jobs: &mut Vec<Job>) {
        match asked {
            Asked::Write(job) => jobs.push(job),
            Asked::Close(closer) => {
                self.queue.close();
                self.closers.push(closer);
            }
        }
    }
}

impl Store {
    /// Writes, and returns when it is on disk.
    pub async fn gate_write(&self, write: GateWrite) -> Result<Written, StoreError> {
        let stopped = || StoreError::NotCommitted("the gate's writer has stopped".to_owned());
        let (done, answer) = oneshot::channel();
        let ready = Arc::new(Ready::new(write)?);
        self.gate
            .queue
            .send(Asked::Write(Job { ready: ready.clone(), done }))
            .await
            .map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?
    }
}

impl NewEvent {
    /// The chain that it goes to, and its record.
    fn to_record(&self) -> Result<(Chain, String), StoreError> {
        let unwritable = |error: serde_json::Error| StoreError::NotCommitted(error.to_string());
        Ok((self.chain()?, serde_json::to_string(&self.event).map_err(unwritable)?))
    }

    /// The same event, whose notes say this too.
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
    /// What it changes.
    fn key(&self) -> (OrgId, ConfigurationId) {
        let Self::SaveServiceCommands { org, configuration, .. } = self;
        (*org, *configuration)
    }
}

impl Change {
    /// The run it changes. Two writes to one run never share a transaction: each must see what the other did.
    fn run(&self) -> Option<(OrgId, &str)> {
        match self {
            Self::Begin(run) => Some((run.org_id, &run.run_id)),
            Self::End { org, run_id, .. } | Self::Take { org, run_id, .. } => Some((*org, run_id)),
            Self::Nothing | Self::Lock(_) | Self::Grant(_) | Self::SetMode(_) | Self::RevokeGrant { .. } => {
                None
            }
        }
    }

    /// The run that the one it makes is below, which must be seen as it is by then.
    fn parent(&self) -> Option<(OrgId, &str)> {
        match self {
            Self::Begin(run) => run.parent_run_id.as_deref().map(|parent| (run.org_id, parent)),
            _ => None,
        }
    }

    /// Whether the run that this makes or ends will say where the event is.
    pub(crate) fn tells(&self, new: &NewEvent) -> bool {
        let event = (new.org, new.event.run_id.as_ref().map(Text::as_str));
        match self {
            Self::Begin(run) => {
                let case = new.event.case_id.as_ref().map(Text::as_str);
                event == (Some(run.org_id), Some(&run.run_id)) && case == run.case_id.as_deref()
            }
            Self::End { org, run_id, .. } => event == (Some(*org), Some(run_id)),
            _ => false,
        }
    }
}

/// The jobs that can go together, and those that must come after them.
fn apart(jobs: Vec<Job>) -> (Vec<Job>, Vec<Job>) {
    let mut seen = HashSet::new();
    jobs.into_iter().partition(|job| {
        let change = &job.ready.write.change;
        let parent_changes = change.parent().is_some_and(|(org, run)| seen.contains(&(org, run.to_owned())));
        let alone = change.run().is_none_or(|(org, run)| seen.insert((org, run.to_owned())));
        alone && !parent_changes
    })
}

/// Tells all what became of their transaction.
fn answer(waiting: Vec<Waiting>, result: Result<Vec<Written>, StoreError>) {
    match result {
        Err(error) if waiting.len() > 1 => {
            let lost = || Err(StoreError::NotCommitted(error.to_string()));
            tell(waiting.into_iter().map(|done| (done, lost())));
        }
        result => answer_each(waiting, result),
    }
}

/// Tells each what became of its own write; a failure is told to the one who waits.
fn answer_each(waiting: impl IntoIterator<Item = Waiting>, result: Result<Vec<Written>, StoreError>) {
    match result {
        Ok(results) => tell(waiting.into_iter().zip(results.into_iter().map(Ok))),
        Err(error) => tell(waiting.into_iter().zip([Err(error)])),
    }
}

fn tell(answers: impl IntoIterator<Item = (Waiting, Result<Written, StoreError>)>) {
    for (done, result) in answers {
        // Whoever asked may have gone away; what is written stands.
        let _ = done.send(result);
    }
}

/// When an event happened, as the contract writes it.
pub(crate) fn moment(event: &Event) -> Result<DateTime<Utc>, StoreError> {
    DateTime::parse_from_rfc3339(event.timestamp_utc.as_str())
        .map(|at| at.to_utc())
        .map_err(|error| StoreError::NotCommitted(format!("an event's time is not one: {error}")))
}
