//! Appends an event in the transaction of an administrative change, which does not pass the gate's queue. The change and its
//! event are committed together or not at all.

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use ledger::Head;
use proto::UserId;
use sqlx::{AssertSqlSafe, PgConnection, Row as _, SqliteConnection};

use super::NewEvent;
use super::plan::{LedgerTail, PlannedEvent, link};
use super::rows::{Cell, ledger_rows};
use crate::ledger_event::{hash, non_negative};
use crate::sqlite::inline_reader::time_text;
use crate::{FoundConfiguration, Store, StoreError};
use crate::{postgres::gate_writer as postgres, sqlite::gate_writer as sqlite};

impl Store {
    /// The same store; an administrative change through it appends this event in its transaction.
    #[must_use]
    pub fn recorded(&self, event: NewEvent) -> Self {
        Self { record: Some(Arc::new(event)), ..self.clone() }
    }

    /// The same store without an event, for repeating a change that was recorded already.
    #[must_use]
    pub fn unrecorded(&self) -> Self {
        Self { record: None, ..self.clone() }
    }
}

/// Runs a block in one transaction, and appends the store's event if the block changed anything.
macro_rules! administer {
    ($store:expr, $connection:ident => $block:expr) => {{
        let record = $store.record.clone();
        $crate::db::write!($store, Disk, $connection => {
            if record.is_some() {
                $crate::gate::LedgerConnection::hold_ledger(&mut *$connection).await?;
            }
            let value = $crate::gate::change(async { $block }).await?;
            if let Some(new) = record.as_deref() && $crate::gate::Changed::changed(&value) {
                let new = new.with_details($crate::gate::Changed::details(&value));
                $crate::gate::LedgerConnection::append_event(&mut *$connection, &new).await?;
            }
            Ok(value)
        })
    }};
}
pub(crate) use administer;

/// Fixes the error type of a block, which `?` alone would leave open.
pub(crate) fn change<T>(
    block: impl Future<Output = Result<T, StoreError>>,
) -> impl Future<Output = Result<T, StoreError>> {
    block
}

/// The result of a change: whether there is anything to record, and details that only the transaction knows.
pub(crate) trait Changed {
    fn changed(&self) -> bool {
        true
    }

    fn details(&self) -> Option<String> {
        None
    }
}

impl Changed for () {}

impl Changed for u64 {}

impl Changed for bool {
    fn changed(&self) -> bool {
        *self
    }
}

impl Changed for UserId {
    fn details(&self) -> Option<String> {
        Some(format!("user {self}"))
    }
}

impl Changed for FoundConfiguration {
    fn changed(&self) -> bool {
        self.is_new
    }

    fn details(&self) -> Option<String> {
        Some(format!("configuration {}", self.configuration.id))
    }
}

impl<T: Changed> Changed for Option<T> {
    fn changed(&self) -> bool {
        self.as_ref().is_some_and(T::changed)
    }

    fn details(&self) -> Option<String> {
        self.as_ref().and_then(T::details)
    }
}

/// A connection inside a transaction.
pub(crate) trait LedgerConnection {
    /// Makes all other writers of the ledger wait. Call it before any row is changed: the gate locks in the same order, and
    /// another order would deadlock.
    fn hold_ledger(&mut self) -> BoxFuture<'_, Result<(), StoreError>>;

    fn append_event<'a>(&'a mut self, new: &'a NewEvent) -> BoxFuture<'a, Result<(), StoreError>>;
}

const TREE_SIZE: &str = "SELECT size FROM ledger_tree WHERE id = 1";

impl LedgerConnection for PgConnection {
    fn hold_ledger(&mut self) -> BoxFuture<'_, Result<(), StoreError>> {
        const LOCK_TREE: &str = "UPDATE ledger_tree SET size = size WHERE id = 1";
        async move { Ok(sqlx::query(LOCK_TREE).execute(self).await.map(drop)?) }.boxed()
    }

    fn append_event<'a>(&'a mut self, new: &'a NewEvent) -> BoxFuture<'a, Result<(), StoreError>> {
        async move {
            let size: i64 = sqlx::query_scalar(TREE_SIZE).fetch_one(&mut *self).await?;
            let (chain, record) = new.to_record()?;
            let event = PlannedEvent { new, unattached: true, chain: &chain, record: &record };
            postgres::append(self, &[event], non_negative(size)?).await
        }
        .boxed()
    }
}

impl LedgerConnection for SqliteConnection {
    /// Does nothing, because SQLite has one writer at a time.
    fn hold_ledger(&mut self) -> BoxFuture<'_, Result<(), StoreError>> {
        async { Ok(()) }.boxed()
    }

    fn append_event<'a>(&'a mut self, new: &'a NewEvent) -> BoxFuture<'a, Result<(), StoreError>> {
        async move {
            let size: i64 = sqlx::query_scalar(TREE_SIZE).fetch_one(&mut *self).await?;
            let size = non_negative(size)?;
            let (chain, record) = new.to_record()?;
            let events = [PlannedEvent { new, unattached: true, chain: &chain, record: &record }];
            let tail = sqlite_tail(self, chain.as_str()).await?;
            let (entries, heads) = link(&events, tail.checked(size)?, size)?;
            for rows in ledger_rows(&events, &entries, &heads, size)? {
                for row in &rows.values {
                    let text = AssertSqlSafe(sqlite::text(&rows.statement, row.len()));
                    row.iter().fold(sqlx::query(text), bind).execute(&mut *self).await?;
                }
            }
            Ok(())
        }
        .boxed()
    }
}

async fn sqlite_tail(connection: &mut SqliteConnection, chain: &str) -> Result<LedgerTail, StoreError> {
    let count: i64 = sqlx::query_scalar(sqlite::SELECT_EVENT_COUNT).fetch_one(&mut *connection).await?;
    let mut tail = LedgerTail { events: non_negative(count)?, ..LedgerTail::default() };
    for (sql, found) in
        [(sqlite::SELECT_HEAD, &mut tail.heads), (sqlite::SELECT_LAST_EVENT, &mut tail.last_events)]
    {
        if let Some(row) = sqlx::query(sql).bind(chain).fetch_optional(&mut *connection).await? {
            let head =
                Head { sequence: non_negative(row.try_get("sequence")?)?, hash: hash(row.try_get("hash")?)? };
            found.insert(chain.to_owned(), head);
        }
    }
    Ok(tail)
}

type Query<'q> = sqlx::query::Query<'q, sqlx::Sqlite, sqlx::sqlite::SqliteArguments>;

fn bind<'q>(query: Query<'q>, cell: &Cell<'_>) -> Query<'q> {
    match cell {
        Cell::Text(text) => query.bind(text.as_ref().map(ToString::to_string)),
        Cell::Json(text) => query.bind(text.as_deref().map(str::to_owned)),
        Cell::Number(number) => query.bind(*number),
        Cell::Flag(flag) => query.bind(*flag),
        Cell::Id(id) => query.bind(*id),
        Cell::Time(at) => query.bind(at.map(time_text)),
        Cell::Bytes(bytes) => query.bind(bytes.to_vec()),
    }
}
