//! The gate's writer for SQLite: a thread with its own connection, where a row takes microseconds.

use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ledger::Head;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ErrorCode, OpenFlags, ToSql, TransactionBehavior};

use super::inline_reader::{FromInlineRow, InlineRow, find, time_text};
use super::wal_sync::{CommittedBatch, SyncFailure, WalSync};
use super::writer::WriteLock;
use crate::gate::completion::{OPEN_RUN, OpenRun};
use crate::gate::decision::{COUNT_WAITING, WAITING_STATE, WaitingCount, WaitingState};
use crate::gate::open_transcript::{MESSAGE_POSITION, MessagePosition, StoredTranscript, TRANSCRIPT_END};
use crate::gate::plan::{
    ExistingRows, LedgerTail, PlannedEvent, automation_run_keys, chain_names, configuration_keys,
    decided_keys, link, plan, reported_messages, run_keys, waiting_requesters,
};
use crate::gate::recent_artifacts::RecentArtifacts;
use crate::gate::rows::{Cell, Rows, Statement, ledger_rows, plan_rows};
use crate::gate::{Inbox, Job, PreparedWrite, Written, reply, split_conflicts};
use crate::ledger_event::{hash, non_negative};
use crate::run::SELECT_RUN;
use crate::{Run, StoreError};

/// How long another process may lock the file.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// SQLite checkpoints the WAL after this many pages (64 MiB). Index pages are written again and again, and a checkpoint writes
/// each of them once, so rare checkpoints are cheaper.
const CHECKPOINT_PAGES: u32 = 16_384;

/// Runs until the queue is closed. All queued writes become one transaction; while its commit is fsynced, the next one runs.
pub(crate) fn work(file: &Path, lock: &WriteLock, failure: &SyncFailure, mut inbox: Inbox) {
    let sync = WalSync::start(failure.clone());
    let mut writer = GateWriter {
        file: file.to_owned(),
        failure: failure.clone(),
        connection: None,
        wal: None,
        recent: RecentArtifacts::default(),
    };
    let mut waiting = Vec::new();
    loop {
        if waiting.is_empty() {
            let Some(request) = inbox.queue.blocking_recv() else { break };
            inbox.accept(request, &mut waiting);
        }
        let locked = lock.blocking_lock();
        inbox.fill(&mut waiting);
        let (now, later) = split_conflicts(std::mem::take(&mut waiting));
        waiting = later;
        if !now.is_empty() {
            let commits = writer.commit(now);
            drop(locked);
            match &writer.wal {
                Some(wal) => sync.sync(wal.clone(), commits),
                None => commits.into_iter().for_each(|batch| reply(batch.replies, batch.result)),
            }
        }
    }
    // Everything must be on disk and the connection closed before `inbox` is dropped: whoever closed the queue may copy the
    // file from then on.
    sync.close();
    drop(writer);
}

struct GateWriter {
    file: PathBuf,
    failure: SyncFailure,
    /// Opened at the first write, and again after a failure that left a transaction open.
    connection: Option<Connection>,
    /// SQLite's WAL, which stays the same file while any connection is open.
    wal: Option<Arc<File>>,
    recent: RecentArtifacts,
}

impl GateWriter {
    /// Runs all jobs in one transaction. If it fails, runs each job by itself, so that a job that the database refuses does
    /// not fail the others.
    fn commit(&mut self, jobs: Vec<Job>) -> Vec<CommittedBatch> {
        let (writes, replies): (Vec<_>, Vec<_>) =
            jobs.into_iter().map(|job| (job.prepared, job.reply)).unzip();
        match self.attempt(&writes) {
            Err(error) if writes.len() > 1 && !error.is_unavailable() => {
                let alone = |(write, reply)| CommittedBatch {
                    replies: vec![reply],
                    result: self.attempt(std::slice::from_ref(write)),
                };
                writes.iter().zip(replies).map(alone).collect()
            }
            result => vec![CommittedBatch { replies, result }],
        }
    }

    fn attempt(&mut self, writes: &[Arc<PreparedWrite>]) -> Result<Vec<Written>, StoreError> {
        self.failure.check()?;
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => open(&self.file).map_err(|error| sqlite_error(&error))?,
        };
        if self.wal.is_none() {
            let wal = open_wal(&self.file).map_err(|error| StoreError::NotCommitted(error.to_string()))?;
            self.wal = Some(Arc::new(wal));
        }
        let done = catch_unwind(AssertUnwindSafe(|| run(&mut connection, &self.recent, writes)))
            .unwrap_or_else(|_| Err(StoreError::NotCommitted("the gate's writer panicked".to_owned())));
        self.connection = Some(connection).filter(Connection::is_autocommit);
        done
    }
}

/// The WAL is next to the real file, also if our path is a symbolic link.
fn open_wal(file: &Path) -> io::Result<File> {
    let mut name = file.canonicalize()?.into_os_string();
    name.push("-wal");
    File::open(name)
}

fn open(file: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(file, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(32);
    connection.execute_batch(&format!(
        "PRAGMA foreign_keys = ON; PRAGMA synchronous = NORMAL; PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES};
        PRAGMA cache_size = -4096; PRAGMA temp_store = MEMORY"
    ))?;
    // The first query creates the WAL, which must exist before anything is committed.
    connection.query_row("SELECT size FROM ledger_tree", (), |_| Ok(()))?;
    Ok(connection)
}

fn run(
    connection: &mut Connection,
    recent: &RecentArtifacts,
    writes: &[Arc<PreparedWrite>],
) -> Result<Vec<Written>, StoreError> {
    let tx = connection
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .map_err(|error| sqlite_error(&error))?;
    let Number(size) =
        find(&tx, "SELECT size AS number FROM ledger_tree WHERE id = 1", &[])?.unwrap_or(Number(0));
    let existing = read_existing(&tx, writes)?;
    let size = non_negative(size)?;
    let mut plan = plan(writes, &existing, size);
    plan.artifacts.retain(|artifact| !recent.contains(artifact));
    for rows in plan_rows(&plan) {
        execute(&tx, &rows).map_err(|error| sqlite_error(&error))?;
    }
    if !plan.events.is_empty() {
        append(&tx, &plan.events, size)?;
    }
    tx.commit().map_err(|error| sqlite_error(&error))?;
    recent.add(writes, &plan.results);
    Ok(plan.results)
}

fn read_existing(tx: &Connection, writes: &[Arc<PreparedWrite>]) -> Result<ExistingRows, StoreError> {
    const COUNT_CONFIGURATION: &str = "SELECT 1 AS number FROM configurations WHERE org_id = $1 AND id = $2";
    let mut existing = ExistingRows::default();
    for (org, run) in run_keys(writes) {
        if let Some(known) = find::<Run>(tx, SELECT_RUN, &[&org.uuid(), &run])? {
            existing.runs.insert((org, run.to_owned()), known);
        }
    }
    for (org, id) in configuration_keys(writes) {
        if find::<Number>(tx, COUNT_CONFIGURATION, &[&org.uuid(), &id.uuid()])?.is_some() {
            existing.configurations.insert((org, id));
        }
    }
    for (org, id) in automation_run_keys(writes) {
        if let Some(run) = find::<OpenRun>(tx, OPEN_RUN, &[&org.uuid(), &id.uuid()])? {
            existing.automation_runs.insert((org, id), run);
        }
    }
    for (org, session, ids) in reported_messages(writes) {
        let Some(end) = find(tx, TRANSCRIPT_END, &[&org.uuid(), &session.uuid()])? else { continue };
        let mut before = StoredTranscript { end, ..StoredTranscript::default() };
        for id in ids {
            let found = find::<MessagePosition>(tx, MESSAGE_POSITION, &[&session.uuid(), &id])?;
            before.stored.extend(found.map(|_| id));
        }
        existing.transcripts.insert((org, session), before);
    }
    for (org, run) in decided_keys(writes) {
        if let Some(state) = find::<WaitingState>(tx, WAITING_STATE, &[&org.uuid(), &run])? {
            existing.waiting_states.insert((org, run.to_owned()), state);
        }
    }
    for (org, requester, at) in waiting_requesters(writes) {
        let at = time_text(at);
        let WaitingCount(count) =
            find(tx, COUNT_WAITING, &[&org.uuid(), &requester, &at])?.unwrap_or(WaitingCount(0));
        existing.waiting.insert((org, requester), non_negative(count)?);
    }
    Ok(existing)
}

pub(crate) const SELECT_HEAD: &str = "SELECT sequence, hash FROM ledger_heads WHERE chain = $1";
pub(crate) const SELECT_LAST_EVENT: &str =
    "SELECT sequence, hash FROM ledger_events WHERE chain = $1 ORDER BY sequence DESC LIMIT 1";
pub(crate) const SELECT_EVENT_COUNT: &str =
    "SELECT COALESCE(max(position) + 1, 0) AS number FROM ledger_events";

/// Reads where the chains end, appends, and says where they end now: all in here, nothing is remembered.
fn append(tx: &Connection, events: &[PlannedEvent<'_>], size: u64) -> Result<(), StoreError> {
    let Number(count) = find(tx, SELECT_EVENT_COUNT, &[])?.unwrap_or(Number(0));
    let mut ends = LedgerTail { events: non_negative(count)?, ..LedgerTail::default() };
    for chain in chain_names(events) {
        if let Some(FoundHead(last)) = find(tx, SELECT_LAST_EVENT, &[&chain])? {
            ends.last_events.insert(chain.clone(), last);
        }
        if let Some(FoundHead(head)) = find(tx, SELECT_HEAD, &[&chain])? {
            ends.heads.insert(chain, head);
        }
    }
    let (entries, heads) = link(events, ends.checked(size)?, size)?;
    for rows in ledger_rows(events, &entries, &heads, size)? {
        execute(tx, &rows).map_err(|error| sqlite_error(&error))?;
    }
    Ok(())
}

/// Writes the rows one after the other with a prepared statement.
fn execute(tx: &Connection, rows: &Rows<'_>) -> rusqlite::Result<()> {
    let Some(first) = rows.values.first() else { return Ok(()) };
    let mut statement = tx.prepare_cached(&text(&rows.statement, first.len()))?;
    for row in &rows.values {
        for (index, cell) in (1..).zip(row) {
            statement.raw_bind_parameter(index, cell)?;
        }
        statement.raw_execute()?;
    }
    Ok(())
}

/// The statement for one row.
pub(crate) fn text(statement: &Statement, values: usize) -> String {
    match statement {
        Statement::Insert { into, conflict } => {
            format!("{into}VALUES ({}){conflict}", vec!["?"; values].join(","))
        }
        Statement::Update { table, set, key } => {
            let equal = |(column, number): &(&str, usize)| format!("{column} = ?{number}");
            let set: Vec<_> = set.iter().map(equal).collect();
            let key: Vec<_> = key.iter().map(equal).collect();
            format!("UPDATE {table} SET {} WHERE {}", set.join(", "), key.join(" AND "))
        }
    }
}

impl ToSql for Cell<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self {
            Cell::Text(Some(value)) | Cell::Json(Some(value)) => {
                ToSqlOutput::Borrowed(ValueRef::Text(value.as_bytes()))
            }
            Cell::Number(number) => ToSqlOutput::from(*number),
            Cell::Flag(flag) => ToSqlOutput::from(*flag),
            Cell::Id(Some(id)) => ToSqlOutput::Borrowed(ValueRef::Blob(id.as_bytes())),
            Cell::Time(Some(at)) => ToSqlOutput::from(time_text(*at)),
            Cell::Bytes(bytes) => ToSqlOutput::Borrowed(ValueRef::Blob(bytes)),
            Cell::Text(None) | Cell::Json(None) | Cell::Id(None) | Cell::Time(None) => {
                ToSqlOutput::from(rusqlite::types::Null)
            }
        })
    }
}

/// A violated constraint is a bug of ours; any other error means that the database is unavailable now.
fn sqlite_error(error: &rusqlite::Error) -> StoreError {
    match error.sqlite_error_code() {
        Some(ErrorCode::ConstraintViolation) | None => {
            StoreError::Failed(sqlx::Error::Protocol(error.to_string()))
        }
        Some(ErrorCode::DiskFull) => StoreError::DiskFull,
        Some(_) => StoreError::NotCommitted(error.to_string()),
    }
}

struct Number(i64);

impl FromInlineRow for Number {
    fn from_inline_row(row: &InlineRow<'_>) -> sqlx::Result<Self> {
        row.try_get("number").map(Self)
    }
}

struct FoundHead(Head);

impl FromInlineRow for FoundHead {
    fn from_inline_row(row: &InlineRow<'_>) -> sqlx::Result<Self> {
        let text: String = row.try_get("hash")?;
        Ok(Self(Head { sequence: non_negative(row.try_get("sequence")?)?, hash: hash(&text)? }))
    }
}
