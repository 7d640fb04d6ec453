//! The gate's line in front of PostgreSQL: rows go as arrays, so that a statement is one text however many there are.

use std::fmt::Write as _;
use std::ops::Range;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use ledger::Head;
use proto::{ConfigurationId, OrgId};
use sqlx::{AssertSqlSafe, PgConnection, Row as _};
use uuid::Uuid;

use super::kept::Kept;
use super::plan::{Ends, Found, Told, chain_names, configuration_keys, link, plan, run_keys};
use super::rows::{Cell, Rows, What, of_ledger, of_plan};
use super::{Inbox, Job, Ready, Written, answer, answer_each, apart};
use crate::ledger_event::{hash, whole};
use crate::postgres::Postgres;
use crate::run::MANY;
use crate::{Durability, Run, StoreError};

/// After so many writes the server is told to look at the tables, and then whenever there are this many times as many.
const FIRST_LOOK: usize = 256;
const NEXT_LOOK: usize = 8;

/// Works until the line is closed. Whatever waits becomes one transaction.
pub(super) async fn work(server: Postgres, mut inbox: Inbox) {
    let (mut waiting, kept) = (Vec::new(), Arc::new(Kept::default()));
    let (mut written, mut look) = (0, FIRST_LOOK);
    loop {
        if waiting.is_empty() {
            let Some(asked) = inbox.queue.recv().await else { return };
            inbox.sort(asked, &mut waiting);
        }
        inbox.add_waiting(&mut waiting);
        let (now, later) = apart(std::mem::take(&mut waiting));
        waiting = later;
        if !now.is_empty() {
            written += now.len();
            commit(&server, &kept, now).await;
        }
        if written >= look {
            look *= NEXT_LOOK;
            tokio::spawn(look_at_tables(server.clone()));
        }
    }
}

/// Makes the server plan anew. A plan is kept as long as its connection, and while a table is empty any index that begins
/// with the organisation is as good as the key: that one would be read whole for every call. The server itself looks only
/// once a minute.
async fn look_at_tables(server: Postgres) {
    // What rows are found by, and no more: to sort a sample of all our JSON takes it a second.
    const LOOK: &str = "ANALYZE runs (org_id, run_id, parent_run_id, case_id, status, instance, created_at),
        ledger_events (position, chain, sequence, event_id, run_id, case_id, unattached)";
    let look = sqlx::raw_sql(LOOK).execute(&server.pool);
    if let Err(error) = server.in_time(look).await {
        tracing::warn!(%error, "PostgreSQL could not look at the gate's tables: calls may be slow until it does");
    }
}

/// Runs all jobs in one transaction. If that fails, each by itself, so that one that the database refuses costs the
/// others nothing.
async fn commit(server: &Postgres, kept: &Arc<Kept>, jobs: Vec<Job>) {
    let (writes, waiting): (Vec<_>, Vec<_>) = jobs.into_iter().map(|job| (job.ready, job.done)).unzip();
    let writes = Arc::new(writes);
    match attempt(server, kept, &writes, 0..writes.len()).await {
        Err(error) if writes.len() > 1 && !error.is_unavailable() => {
            for (index, done) in waiting.into_iter().enumerate() {
                answer_each([done], attempt(server, kept, &writes, index..index + 1).await);
            }
        }
        result => answer(waiting, result),
    }
}

async fn attempt(
    server: &Postgres,
    kept: &Arc<Kept>,
    writes: &Arc<Vec<Arc<Ready>>>,
    which: Range<usize>,
) -> Result<Vec<Written>, StoreError> {
    let (asked, known, these) = (writes.clone(), kept.clone(), which.clone());
    let results = server
        .transaction(Durability::Disk, move |tx| {
            Box::pin(async move { run(tx, &known, asked.get(these).unwrap_or_default()).await })
        })
        .await?;
    kept.note(writes.get(which).unwrap_or_default(), &results);
    Ok(results)
}

async fn run(tx: &mut PgConnection, kept: &Kept, writes: &[Arc<Ready>]) -> Result<Vec<Written>, StoreError> {
    // First of all: whoever changes this row writes alone.
    const SIZE: &str = "UPDATE ledger_tree SET size = size WHERE id = 1 RETURNING size";
    let size: i64 = sqlx::query_scalar(SIZE).fetch_one(&mut *tx).await?;
    let found = look(tx, writes).await?;
    let size = whole(size)?;
    let mut plan = plan(writes, &found, size);
    plan.artifacts.retain(|artifact| !kept.has(artifact));
    for rows in of_plan(&plan) {
        execute(tx, &rows).await?;
    }
    if !plan.events.is_empty() {
        append(tx, &plan.events, size).await?;
    }
    Ok(plan.results)
}

async fn look(tx: &mut PgConnection, writes: &[Arc<Ready>]) -> Result<Found, StoreError> {
    // Locked, so that what is found is there when it is changed.
    const CONFIGURATIONS: &str = "SELECT org_id, id FROM configurations
        WHERE (org_id, id) IN (SELECT * FROM UNNEST($1::uuid[], $2::uuid[])) FOR UPDATE";
    let mut found = Found::default();
    let (orgs, ids): (Vec<Uuid>, Vec<&str>) =
        run_keys(writes).into_iter().map(|(org, run)| (org.uuid(), run)).unzip();
    let runs: Vec<Run> = sqlx::query_as(MANY).bind(orgs).bind(ids).fetch_all(&mut *tx).await?;
    found.runs.extend(runs.into_iter().map(|run| ((run.org_id, run.run_id.clone()), run)));
    let (orgs, ids): (Vec<Uuid>, Vec<Uuid>) =
        configuration_keys(writes).into_iter().map(|(org, id)| (org.uuid(), id.uuid())).unzip();
    if !ids.is_empty() {
        let rows: Vec<(Uuid, Uuid)> =
            sqlx::query_as(CONFIGURATIONS).bind(orgs).bind(ids).fetch_all(&mut *tx).await?;
        let key = |(org, id)| (OrgId::from(org), ConfigurationId::from(id));
        found.configurations.extend(rows.into_iter().map(key));
    }
    Ok(found)
}

/// Reads where the chains end, appends, and says where they end now: all in here, nothing is remembered.
pub(super) async fn append(tx: &mut PgConnection, events: &[Told<'_>], size: u64) -> Result<(), StoreError> {
    // The last event of each chain and of all, and the heads: one way there and back.
    const ENDS: &str = "SELECT 'head' AS kind, chain, sequence, hash FROM ledger_heads WHERE chain = ANY($1)
        UNION ALL SELECT 'event', c.chain, e.sequence, e.hash FROM UNNEST($1::text[]) AS c (chain) CROSS JOIN LATERAL
            (SELECT sequence, hash FROM ledger_events WHERE chain = c.chain ORDER BY sequence DESC LIMIT 1) e
        UNION ALL SELECT 'size', '', COALESCE(max(position) + 1, 0), '' FROM ledger_events";
    let rows = sqlx::query(ENDS).bind(chain_names(events)).fetch_all(&mut *tx).await?;
    let mut ends = Ends::default();
    for row in rows {
        let (kind, number): (&str, i64) = (row.try_get("kind")?, row.try_get("sequence")?);
        if kind == "size" {
            ends.events = whole(number)?;
            continue;
        }
        let head = Head { sequence: whole(number)?, hash: hash(row.try_get("hash")?)? };
        let found = if kind == "head" { &mut ends.heads } else { &mut ends.last_events };
        found.insert(row.try_get("chain")?, head);
    }
    let (entries, heads) = link(events, ends.checked(size)?, size)?;
    for rows in of_ledger(events, &entries, &heads, size)? {
        execute(tx, &rows).await?;
    }
    Ok(())
}

/// All rows as one array for each column.
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

/// The statement for all rows.
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
        // A String takes whatever is written to it.
        let _ = write!(columns, "{comma}u.c{index}{cast} AS column{index}");
        let _ = write!(arrays, "{comma}${index}::{array}[]");
        let _ = write!(names, "{comma}c{index}");
    }
    let rows_of_it = format!("SELECT {columns} FROM UNNEST({arrays}) AS u({names})");
    match &rows.what {
        What::Insert { into, conflict } => format!("{into}{rows_of_it}{conflict}"),
        What::Update { table, set, whose } => {
            let set: Vec<_> =
                set.iter().map(|(column, number)| format!("{column} = v.column{number}")).collect();
            let whose: Vec<_> =
                whose.iter().map(|(column, number)| format!("{table}.{column} = v.column{number}")).collect();
            let (set, whose) = (set.join(", "), whose.join(" AND "));
            format!("UPDATE {table} SET {set} FROM ({rows_of_it}) AS v WHERE {whose}")
        }
    }
}

fn as_text<'a>(cell: &'a Cell<'_>) -> Option<&'a str> {
    match cell {
        Cell::Text(text) => text.as_deref(),
        Cell::Json(text) => *text,
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
