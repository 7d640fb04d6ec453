//! The gate's line in front of SQLite: a thread with its own connection, on which a row costs microseconds.

use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ledger::Head;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ErrorCode, OpenFlags, ToSql, TransactionBehavior};

use super::disk::{Committed, Disk, Refused};
use super::kept::Kept;
use super::plan::{Ends, Found, Told, chain_names, configuration_keys, link, plan, run_keys};
use super::rows::{Cell, Rows, What, of_ledger, of_plan};
use super::{Inbox, Job, Ready, Written, answer, apart};
use crate::ledger_event::{hash, whole};
use crate::near::{FromNear, NearRow, find, time_text};
use crate::run::RUN;
use crate::writer::Turn;
use crate::{Run, StoreError};

/// How long another process may hold the file.
const PATIENCE: Duration = Duration::from_secs(5);
/// The log is folded into the file after so many pages (64 MiB): pages of indexes are written again and again, and
/// folding takes each of them once.
const UNFOLDED: u32 = 16_384;

/// Works until the line is closed. Whatever waits becomes one transaction. While one is brought to disk, the next one
/// is made.
pub(super) fn work(file: &Path, turn: &Turn, refused: &Refused, mut inbox: Inbox) {
    let disk = Disk::start(refused.clone());
    let mut line = Line {
        file: file.to_owned(),
        refused: refused.clone(),
        connection: None,
        log: None,
        kept: Kept::default(),
    };
    let mut waiting = Vec::new();
    loop {
        if waiting.is_empty() {
            let Some(asked) = inbox.queue.blocking_recv() else { break };
            inbox.sort(asked, &mut waiting);
        }
        let turn = turn.blocking_lock();
        inbox.add_waiting(&mut waiting);
        let (now, later) = apart(std::mem::take(&mut waiting));
        waiting = later;
        if !now.is_empty() {
            let all = line.commit(now);
            drop(turn);
            match &line.log {
                Some(log) => disk.bring(log.clone(), all),
                None => all.into_iter().for_each(|committed| answer(committed.waiting, committed.result)),
            }
        }
    }
    // Everything is on disk, and then the file alone is closed, before those are told who closed the line: it may be
    // copied away then.
    disk.close();
    drop(line);
}

struct Line {
    file: PathBuf,
    refused: Refused,
    /// Opened when it is first needed, and anew after a failure that left it in the middle of something.
    connection: Option<Connection>,
    /// SQLite's log. It is the same file as long as anybody has the database open.
    log: Option<Arc<File>>,
    kept: Kept,
}

impl Line {
    /// Runs all jobs in one transaction. If that fails, each by itself, so that one that the database refuses costs
    /// the others nothing.
    fn commit(&mut self, jobs: Vec<Job>) -> Vec<Committed> {
        let (writes, waiting): (Vec<_>, Vec<_>) = jobs.into_iter().map(|job| (job.ready, job.done)).unzip();
        match self.attempt(&writes) {
            Err(error) if writes.len() > 1 && !error.is_unavailable() => {
                let alone = |(write, done)| Committed {
                    waiting: vec![done],
                    result: self.attempt(std::slice::from_ref(write)),
                };
                writes.iter().zip(waiting).map(alone).collect()
            }
            result => vec![Committed { waiting, result }],
        }
    }

    fn attempt(&mut self, writes: &[Arc<Ready>]) -> Result<Vec<Written>, StoreError> {
        self.refused.check()?;
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => open(&self.file).map_err(|error| failed(&error))?,
        };
        if self.log.is_none() {
            let log = open_log(&self.file).map_err(|error| StoreError::NotCommitted(error.to_string()))?;
            self.log = Some(Arc::new(log));
        }
        let done = catch_unwind(AssertUnwindSafe(|| run(&mut connection, &self.kept, writes)))
            .unwrap_or_else(|_| Err(StoreError::NotCommitted("the gate's writer fell over".to_owned())));
        self.connection = Some(connection).filter(Connection::is_autocommit);
        done
    }
}

/// The log lies beside the file itself, also where we know the file by a link to it.
fn open_log(file: &Path) -> io::Result<File> {
    let mut name = file.canonicalize()?.into_os_string();
    name.push("-wal");
    File::open(name)
}

fn open(file: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(file, flags)?;
    connection.busy_timeout(PATIENCE)?;
    connection.set_prepared_statement_cache_capacity(32);
    connection.execute_batch(&format!(
        "PRAGMA foreign_keys = ON; PRAGMA synchronous = NORMAL; PRAGMA wal_autocheckpoint = {UNFOLDED};
        PRAGMA cache_size = -4096; PRAGMA temp_store = MEMORY"
    ))?;
    // The first look makes the log, which must be there before anything is committed.
    connection.query_row("SELECT size FROM ledger_tree", (), |_| Ok(()))?;
    Ok(connection)
}

fn run(connection: &mut Connection, kept: &Kept, writes: &[Arc<Ready>]) -> Result<Vec<Written>, StoreError> {
    let tx = connection
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .map_err(|error| failed(&error))?;
    let Number(size) =
        find(&tx, "SELECT size AS number FROM ledger_tree WHERE id = 1", &[])?.unwrap_or(Number(0));
    let found = look(&tx, writes)?;
    let size = whole(size)?;
    let mut plan = plan(writes, &found, size);
    plan.artifacts.retain(|artifact| !kept.has(artifact));
    for rows in of_plan(&plan) {
        execute(&tx, &rows).map_err(|error| failed(&error))?;
    }
    if !plan.events.is_empty() {
        append(&tx, &plan.events, size)?;
    }
    tx.commit().map_err(|error| failed(&error))?;
    kept.note(writes, &plan.results);
    Ok(plan.results)
}

fn look(tx: &Connection, writes: &[Arc<Ready>]) -> Result<Found, StoreError> {
    const CONFIGURATION: &str = "SELECT 1 AS number FROM configurations WHERE org_id = $1 AND id = $2";
    let mut found = Found::default();
    for (org, run) in run_keys(writes) {
        if let Some(known) = find::<Run>(tx, RUN, &[&org.uuid(), &run])? {
            found.runs.insert((org, run.to_owned()), known);
        }
    }
    for (org, id) in configuration_keys(writes) {
        if find::<Number>(tx, CONFIGURATION, &[&org.uuid(), &id.uuid()])?.is_some() {
            found.configurations.insert((org, id));
        }
    }
    Ok(found)
}

pub(super) const HEAD: &str = "SELECT sequence, hash FROM ledger_heads WHERE chain = $1";
pub(super) const LAST: &str =
    "SELECT sequence, hash FROM ledger_events WHERE chain = $1 ORDER BY sequence DESC LIMIT 1";
pub(super) const EVENTS: &str = "SELECT COALESCE(max(position) + 1, 0) AS number FROM ledger_events";

/// Reads where the chains end, appends, and says where they end now: all in here, nothing is remembered.
fn append(tx: &Connection, events: &[Told<'_>], size: u64) -> Result<(), StoreError> {
    let Number(count) = find(tx, EVENTS, &[])?.unwrap_or(Number(0));
    let mut ends = Ends { events: whole(count)?, ..Ends::default() };
    for chain in chain_names(events) {
        if let Some(FoundHead(last)) = find(tx, LAST, &[&chain])? {
            ends.last_events.insert(chain.clone(), last);
        }
        if let Some(FoundHead(head)) = find(tx, HEAD, &[&chain])? {
            ends.heads.insert(chain, head);
        }
    }
    let (entries, heads) = link(events, ends.checked(size)?, size)?;
    for rows in of_ledger(events, &entries, &heads, size)? {
        execute(tx, &rows).map_err(|error| failed(&error))?;
    }
    Ok(())
}

/// One row after the other, by a statement that is prepared once.
fn execute(tx: &Connection, rows: &Rows<'_>) -> rusqlite::Result<()> {
    let Some(first) = rows.values.first() else { return Ok(()) };
    let mut statement = tx.prepare_cached(&text(&rows.what, first.len()))?;
    for row in &rows.values {
        for (index, cell) in (1..).zip(row) {
            statement.raw_bind_parameter(index, cell)?;
        }
        statement.raw_execute()?;
    }
    Ok(())
}

/// The statement for one row.
pub(super) fn text(what: &What, values: usize) -> String {
    match what {
        What::Insert { into, conflict } => {
            format!("{into}VALUES ({}){conflict}", vec!["?"; values].join(","))
        }
        What::Update { table, set, whose } => {
            let equal = |(column, number): &(&str, usize)| format!("{column} = ?{number}");
            let set: Vec<_> = set.iter().map(equal).collect();
            let whose: Vec<_> = whose.iter().map(equal).collect();
            format!("UPDATE {table} SET {} WHERE {}", set.join(", "), whose.join(" AND "))
        }
    }
}

impl ToSql for Cell<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self {
            Cell::Text(Some(value)) => ToSqlOutput::Borrowed(ValueRef::Text(value.as_bytes())),
            Cell::Json(Some(value)) => ToSqlOutput::Borrowed(ValueRef::Text(value.as_bytes())),
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

/// What the file cannot take now is unavailable; what it says no to is a fault of ours.
fn failed(error: &rusqlite::Error) -> StoreError {
    match error.sqlite_error_code() {
        Some(ErrorCode::ConstraintViolation) | None => {
            StoreError::Failed(sqlx::Error::Protocol(error.to_string()))
        }
        Some(ErrorCode::DiskFull) => StoreError::DiskFull,
        Some(_) => StoreError::NotCommitted(error.to_string()),
    }
}

struct Number(i64);

impl FromNear for Number {
    fn from_near(row: &NearRow<'_>) -> sqlx::Result<Self> {
        row.try_get("number").map(Self)
    }
}

struct FoundHead(Head);

impl FromNear for FoundHead {
    fn from_near(row: &NearRow<'_>) -> sqlx::Result<Self> {
        let text: String = row.try_get("hash")?;
        Ok(Self(Head { sequence: whole(row.try_get("sequence")?)?, hash: hash(&text)? }))
    }
}
