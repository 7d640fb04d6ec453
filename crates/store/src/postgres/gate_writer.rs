//! The gate's writer for PostgreSQL: rows are sent as arrays, so that the text of a statement does not depend on their number.

use std::fmt::Write as _;
use std::ops::Range;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use ledger::Head;
use proto::{ConfigurationId, OrgId};
use sqlx::{AssertSqlSafe, PgConnection, Row as _};
use uuid::Uuid;

use super::Postgres;
use crate::gate::completion::{OPEN_RUN_LOCKED, OpenRun};
use crate::gate::decision::{COUNT_WAITING, WAITING_STATE_LOCKED, WaitingCount, WaitingState};
use crate::gate::open_transcript::{MESSAGE_POSITION, MessagePosition, StoredTranscript, TRANSCRIPT_END};
use crate::gate::plan::{
    ExistingRows, LedgerTail, PlannedEvent, automation_run_keys, chain_names, configuration_keys,
    decided_keys, link, plan, reported_messages, run_keys, waiting_requesters,
};
use crate::gate::recent_artifacts::RecentArtifacts;
use crate::gate::rows::{Cell, Rows, Statement, ledger_rows, plan_rows};
use crate::gate::{Inbox, Job, PreparedWrite, Written, reply, split_conflicts};
use crate::ledger_event::{hash, non_negative};
use crate::run::SELECT_RUNS;
use crate::{Durability, Run, StoreError};

/// The tables are analyzed after this many writes, and again each time the number has grown by this factor.
const FIRST_ANALYZE: usize = 256;
const ANALYZE_GROWTH: usize = 8;

/// Runs until the queue is closed. All queued writes become one transaction.
pub(crate) async fn work(server: Postgres, mut inbox: Inbox) {
    let (mut waiting, recent) = (Vec::new(), Arc::new(RecentArtifacts::default()));
    let (mut written, mut next_analyze) = (0, FIRST_ANALYZE);
    loop {
        if waiting.is_empty() {
            let Some(request) = inbox.queue.recv().await else { return };
            inbox.accept(request, &mut waiting);
        }
        inbox.fill(&mut waiting);
        let (now, later) = split_conflicts(std::mem::take(&mut waiting));
        waiting = later;
        if !now.is_empty() {
            written += now.len();
            commit(&server, &recent, now).await;
        }
        if written >= next_analyze {
            next_analyze *= ANALYZE_GROWTH;
            tokio::spawn(analyze_tables(server.clone()));
        }
    }
}

/// Makes the server replan. A prepared plan lives as long as its connection, and for an empty table any index that starts with
/// the organization looks as good as the key: calls would then read that whole index. Autovacuum analyzes only once a minute.
async fn analyze_tables(server: Postgres) {
    // Only the columns that are searched: sampling all our JSON takes the server a second.
    const ANALYZE_TABLES: &str =
        "ANALYZE runs (org_id, run_id, parent_run_id, case_id, status, instance, created_at),
        ledger_events (position, chain, sequence, event_id, run_id, case_id, unattached)";
    let analyze = sqlx::raw_sql(ANALYZE_TABLES).execute(&server.pool);
    if let Err(error) = server.with_timeout(analyze).await {
        tracing::warn!(%error, "PostgreSQL could not analyze the gate's tables: calls may be slow until it does");
    }
}

/// Runs all jobs in one transaction. If it fails, runs each job by itself, so that a job that the database refuses does not
/// fail the others.
async fn commit(server: &Postgres, recent: &Arc<RecentArtifacts>, jobs: Vec<Job>) {
    let (writes, replies): (Vec<_>, Vec<_>) = jobs.into_iter().map(|job| (job.prepared, job.reply)).unzip();
    let writes = Arc::new(writes);
    match attempt(server, recent, &writes, 0..writes.len()).await {
        Err(error) if writes.len() > 1 && !error.is_unavailable() => {
            for (index, sender) in replies.into_iter().enumerate() {
                reply(vec![sender], attempt(server, recent, &writes, index..index + 1).await);
            }
        }
        result => reply(replies, result),
    }
}

async fn attempt(
    server: &Postgres,
    recent: &Arc<RecentArtifacts>,
    writes: &Arc<Vec<Arc<PreparedWrite>>>,
    which: Range<usize>,
) -> Result<Vec<Written>, StoreError> {
    let (all, known, these) = (writes.clone(), recent.clone(), which.clone());
    let results = server
        .transaction(Durability::Disk, move |tx| {
            Box::pin(async move { run(tx, &known, all.get(these).unwrap_or_default()).await })
        })
        .await?;
    recent.add(writes.get(which).unwrap_or_default(), &results);
    Ok(results)
}

async fn run(
    tx: &mut PgConnection,
    recent: &RecentArtifacts,
    writes: &[Arc<PreparedWrite>],
) -> Result<Vec<Written>, StoreError> {
    // First of all, because this row lock makes the writers of the ledger take turns.
    const LOCK_TREE_SIZE: &str = "UPDATE ledger_tree SET size = size WHERE id = 1 RETURNING size";
    let size: i64 = sqlx::query_scalar(LOCK_TREE_SIZE).fetch_one(&mut *tx).await?;
    let existing = read_existing(tx, writes).await?;
    let size = non_negative(size)?;
    let mut plan = plan(writes, &existing, size);
    plan.artifacts.retain(|artifact| !recent.contains(artifact));
    for rows in plan_rows(&plan) {
        execute(tx, &rows).await?;
    }
    if !plan.events.is_empty() {
        append(tx, &plan.events, size).await?;
    }
    Ok(plan.results)
}

async fn read_existing(
    tx: &mut PgConnection,
    writes: &[Arc<PreparedWrite>],
) -> Result<ExistingRows, StoreError> {
    // Locked, so that the rows still exist when they are changed.
    const LOCK_CONFIGURATIONS: &str = "SELECT org_id, id FROM configurations
        WHERE (org_id, id) IN (SELECT * FROM UNNEST($1::uuid[], $2::uuid[])) FOR UPDATE";
    let mut existing = ExistingRows::default();
    let (orgs, ids): (Vec<Uuid>, Vec<&str>) =
        run_keys(writes).into_iter().map(|(org, run)| (org.uuid(), run)).unzip();
    let runs: Vec<Run> = sqlx::query_as(SELECT_RUNS).bind(orgs).bind(ids).fetch_all(&mut *tx).await?;
    existing.runs.extend(runs.into_iter().map(|run| ((run.org_id, run.run_id.clone()), run)));
    let (orgs, ids): (Vec<Uuid>, Vec<Uuid>) =
        configuration_keys(writes).into_iter().map(|(org, id)| (org.uuid(), id.uuid())).unzip();
    if !ids.is_empty() {
        let rows: Vec<(Uuid, Uuid)> =
            sqlx::query_as(LOCK_CONFIGURATIONS).bind(orgs).bind(ids).fetch_all(&mut *tx).await?;
        let key = |(org, id)| (OrgId::from(org), ConfigurationId::from(id));
        existing.configurations.extend(rows.into_iter().map(key));
    }
    // Few runs end in one transaction, so each is read by itself.
    for (org, id) in automation_run_keys(writes) {
        let found =
            sqlx::query_as(OPEN_RUN_LOCKED).bind(org.uuid()).bind(id.uuid()).fetch_optional(&mut *tx).await?;
        existing.automation_runs.extend(found.map(|run: OpenRun| ((org, id), run)));
    }
    for (org, session, ids) in reported_messages(writes) {
        let end = sqlx::query_as(TRANSCRIPT_END)
            .bind(org.uuid())
            .bind(session.uuid())
            .fetch_optional(&mut *tx)
            .await?;
        let Some(end) = end else { continue };
        let mut before = StoredTranscript { end, ..StoredTranscript::default() };
        for id in ids {
            let find = sqlx::query_as(MESSAGE_POSITION).bind(session.uuid()).bind(&id);
            let found: Option<MessagePosition> = find.fetch_optional(&mut *tx).await?;
            before.stored.extend(found.map(|_| id));
        }
        existing.transcripts.insert((org, session), before);
    }
    // Few runs wait for approval, so each is read by itself.
    for (org, run) in decided_keys(writes) {
        let found =
            sqlx::query_as(WAITING_STATE_LOCKED).bind(org.uuid()).bind(run).fetch_optional(&mut *tx).await?;
        existing.waiting_states.extend(found.map(|state: WaitingState| ((org, run.to_owned()), state)));
    }
    for (org, requester, at) in waiting_requesters(writes) {
        let WaitingCount(count) = sqlx::query_as(COUNT_WAITING)
            .bind(org.uuid())
            .bind(requester)
            .bind(at)
            .fetch_one(&mut *tx)
            .await?;
        existing.waiting.insert((org, requester), non_negative(count)?);
    }
    Ok(existing)
}

/// Reads the end of the chains, appends, and writes the new heads. Nothing is cached between transactions.
pub(crate) async fn append(
    tx: &mut PgConnection,
    events: &[PlannedEvent<'_>],
    size: u64,
) -> Result<(), StoreError> {
    // The heads, the last event of each chain and the last of all, in one round trip.
    const SELECT_TAIL: &str = "SELECT 'head' AS kind, chain, sequence, hash FROM ledger_heads WHERE chain = ANY($1)
        UNION ALL SELECT 'event', c.chain, e.sequence, e.hash FROM UNNEST($1::text[]) AS c (chain) CROSS JOIN LATERAL
            (SELECT sequence, hash FROM ledger_events WHERE chain = c.chain ORDER BY sequence DESC LIMIT 1) e
        UNION ALL SELECT 'size', '', COALESCE(max(position) + 1, 0), '' FROM ledger_events";
    let rows = sqlx::query(SELECT_TAIL).bind(chain_names(events)).fetch_all(&mut *tx).await?;
    let mut tail = LedgerTail::default();
    for row in rows {
        let (kind, number): (&str, i64) = (row.try_get("kind")?, row.try_get("sequence")?);
        if kind == "size" {
            tail.events = non_negative(number)?;
            continue;
        }
        let head = Head { sequence: non_negative(number)?, hash: hash(row.try_get("hash")?)? };
        let found = if kind == "head" { &mut tail.heads } else { &mut tail.last_events };
        found.insert(row.try_get("chain")?, head);
    }
    let (entries, heads) = link(events, tail.checked(size)?, size)?;
    for rows in ledger_rows(events, &entries, &heads, size)? {
        execute(tx, &rows).await?;
    }
    Ok(())
}

/// Writes all rows, with one array for each column.
async fn execute(tx: &mut PgConnection, rows: &Rows<'_>) -> sqlx::Result<()> {
    let Some(first) = rows.values.first() else { return Ok(()) };
    let mut query = sqlx::query(AssertSqlSafe(text(rows, first)));
    for (index, kind) in first.iter().enumerate() {
        let column = || rows.values.iter().filter_map(move |row| row.get(index));
        query = match kind {
            Cell::Text(_) | Cell::Json(_) => query.bind(column().map(as_text).collect::<Vec<_>>()),
            Cell::Number(_) => query.bind(column().map(as_number).collect::<Vec<_>>()),
            Cell::Flag(_) => query.bind(column().map(as_flag).collect::<Vec<_>>()),
            Cell::Id(_) => query.bind(column().map(as_id).collect::<Vec<_>>()),
            Cell::Time(_) => query.bind(column().map(as_time).collect::<Vec<_>>()),
            Cell::Bytes(_) => query.bind(column().map(as_bytes).collect::<Vec<_>>()),
        };
    }
    query.execute(&mut *tx).await.map(drop)
}

/// Builds the SQL statement for all rows.
fn text(rows: &Rows<'_>, first: &[Cell<'_>]) -> String {
    let (mut columns, mut arrays, mut names) = (String::new(), String::new(), String::new());
    for (index, cell) in (1..).zip(first) {
        let (array, cast) = match cell {
            Cell::Text(_) => ("text", ""),
            Cell::Json(_) => ("text", "::jsonb"),
            Cell::Number(_) => ("bigint", ""),
            Cell::Flag(_) => ("boolean", ""),
            Cell::Id(_) => ("uuid", ""),
            Cell::Time(_) => ("timestamptz", ""),
            Cell::Bytes(_) => ("bytea", ""),
        };
        let comma = if index == 1 { "" } else { ", " };
        // Writing to a String cannot fail.
        let _ = write!(columns, "{comma}u.c{index}{cast} AS column{index}");
        let _ = write!(arrays, "{comma}${index}::{array}[]");
        let _ = write!(names, "{comma}c{index}");
    }
    let select = format!("SELECT {columns} FROM UNNEST({arrays}) AS u({names})");
    match &rows.statement {
        Statement::Insert { into, conflict } => format!("{into}{select}{conflict}"),
        Statement::Update { table, set, key } => {
            let set: Vec<_> =
                set.iter().map(|(column, number)| format!("{column} = v.column{number}")).collect();
            let key: Vec<_> =
                key.iter().map(|(column, number)| format!("{table}.{column} = v.column{number}")).collect();
            let (set, key) = (set.join(", "), key.join(" AND "));
            format!("UPDATE {table} SET {set} FROM ({select}) AS v WHERE {key}")
        }
    }
}

fn as_text<'a>(cell: &'a Cell<'_>) -> Option<&'a str> {
    match cell {
        Cell::Text(text) | Cell::Json(text) => text.as_deref(),
        _ => None,
    }
}

fn as_number(cell: &Cell<'_>) -> Option<i64> {
    if let Cell::Number(number) = cell { Some(*number) } else { None }
}

fn as_flag(cell: &Cell<'_>) -> Option<bool> {
    if let Cell::Flag(flag) = cell { Some(*flag) } else { None }
}

fn as_id(cell: &Cell<'_>) -> Option<Uuid> {
    if let Cell::Id(id) = cell { *id } else { None }
}

fn as_time(cell: &Cell<'_>) -> Option<DateTime<Utc>> {
    if let Cell::Time(at) = cell { *at } else { None }
}

fn as_bytes<'a>(cell: &'a Cell<'_>) -> Option<&'a [u8]> {
    if let Cell::Bytes(bytes) = cell { Some(bytes) } else { None }
}
