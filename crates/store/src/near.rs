//! Finds rows by their keys on SQLite without leaving the thread that asks.
//!
//! A reader of the pool lives on a thread of its own, and the way to it and back takes ten times as long as the look
//! itself. These connections need no way. Only what a key finds at once is looked for here: nobody else runs on this
//! thread meanwhile. Where anything fails, the pool is asked instead, and says what is wrong.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags, Statement, ToSql};
use serde::de::DeserializeOwned;
use sqlx::types::Json;
use uuid::Uuid;

/// Connections that are opened when they are first needed: never more than threads that ask at once.
#[derive(Clone)]
pub(crate) struct Near(Arc<Mutex<State>>);

/// What came of a look.
pub(crate) enum Look<T> {
    Done(Option<T>),
    AskThePool,
}

struct State {
    file: PathBuf,
    idle: Vec<Connection>,
    closed: bool,
}

impl Near {
    pub(crate) fn new(file: &Path) -> Self {
        Self(Arc::new(Mutex::new(State { file: file.to_owned(), idle: Vec::new(), closed: false })))
    }

    /// The row that a statement finds, or that the pool must be asked.
    pub(crate) fn find<T: FromNear>(&self, sql: &str, parameters: &[&dyn ToSql]) -> Look<T> {
        let Some(connection) = self.take() else { return Look::AskThePool };
        let found = find(&connection, sql, parameters);
        self.give_back(connection);
        found.map_or(Look::AskThePool, Look::Done)
    }

    fn take(&self) -> Option<Connection> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.closed {
            return None;
        }
        let file = state.file.clone();
        state.idle.pop().or_else(|| {
            drop(state);
            open(&file).ok()
        })
    }

    fn give_back(&self, connection: Connection) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.closed {
            state.idle.push(connection);
        }
    }

    /// Closes the connections for good.
    pub(crate) fn close(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.closed = true;
        state.idle.clear();
    }
}

fn open(file: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(file, flags)?;
    connection.busy_timeout(Duration::ZERO)?;
    connection.execute_batch("PRAGMA query_only = ON; PRAGMA cache_size = -256")?;
    Ok(connection)
}

/// The first row that a statement finds. Parameters are `$1`, `$2` and so on, in whichever order the text has them.
pub(crate) fn find<T: FromNear>(
    connection: &Connection,
    sql: &str,
    parameters: &[&dyn ToSql],
) -> sqlx::Result<Option<T>> {
    let mut statement = connection.prepare_cached(sql).map_err(failed)?;
    bind(&mut statement, parameters).map_err(failed)?;
    let mut rows = statement.raw_query();
    match rows.next().map_err(failed)? {
        Some(row) => T::from_near(&NearRow { row, next: Cell::new(0) }).map(Some),
        None => Ok(None),
    }
}

/// Binds values to `$1`, `$2` and so on: SQLite itself counts them in the order of the text.
pub(crate) fn bind(statement: &mut Statement<'_>, parameters: &[&dyn ToSql]) -> rusqlite::Result<()> {
    for (value, name) in parameters.iter().zip(NAMES) {
        if let Some(index) = statement.parameter_index(name)? {
            statement.raw_bind_parameter(index, value)?;
        }
    }
    Ok(())
}

const NAMES: [&str; 8] = ["$1", "$2", "$3", "$4", "$5", "$6", "$7", "$8"];

/// A time as sqlx writes it.
pub(crate) fn time_text(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(chrono::SecondsFormat::AutoSi, false)
}

fn failed(error: rusqlite::Error) -> sqlx::Error {
    sqlx::Error::Decode(error.into())
}

/// What a row of this side becomes; [`from_row!`](crate::row::from_row) implements it beside the other databases'.
pub(crate) trait FromNear: Sized {
    fn from_near(row: &NearRow<'_>) -> sqlx::Result<Self>;
}

/// A row that is read by the names of its columns, as sqlx's are.
pub(crate) struct NearRow<'a> {
    row: &'a rusqlite::Row<'a>,
    /// Whoever reads a row mostly goes on with the next column, so that is looked at before all others.
    next: Cell<usize>,
}

impl NearRow<'_> {
    pub(crate) fn try_get<T: NearValue, N: AsRef<str>>(&self, name: N) -> sqlx::Result<T> {
        let (statement, name) = (self.row.as_ref(), name.as_ref());
        let next = self.next.get();
        let index = match statement.column_name(next) {
            Ok(found) if found == name => next,
            _ => statement.column_index(name).map_err(failed)?,
        };
        self.next.set(index + 1);
        let value = self.row.get_ref(index).map_err(failed)?;
        T::read(value).ok_or_else(|| sqlx::Error::ColumnDecode {
            index: name.to_owned(),
            source: "the value is not of the form that we write".into(),
        })
    }
}

/// A value as SQLite has it.
pub(crate) trait NearValue: Sized {
    fn read(value: ValueRef<'_>) -> Option<Self>;
}

impl<T: NearValue> NearValue for Option<T> {
    fn read(value: ValueRef<'_>) -> Option<Self> {
        match value {
            ValueRef::Null => Some(None),
            other => T::read(other).map(Some),
        }
    }
}

impl NearValue for String {
    fn read(value: ValueRef<'_>) -> Option<Self> {
        value.as_str().ok().map(str::to_owned)
    }
}

impl NearValue for i64 {
    fn read(value: ValueRef<'_>) -> Option<Self> {
        value.as_i64().ok()
    }
}

impl NearValue for bool {
    fn read(value: ValueRef<'_>) -> Option<Self> {
        value.as_i64().ok().map(|number| number != 0)
    }
}

impl NearValue for Vec<u8> {
    fn read(value: ValueRef<'_>) -> Option<Self> {
        value.as_blob().ok().map(<[u8]>::to_vec)
    }
}

impl NearValue for Uuid {
    fn read(value: ValueRef<'_>) -> Option<Self> {
        Self::from_slice(value.as_blob().ok()?).ok()
    }
}

impl NearValue for DateTime<Utc> {
    fn read(value: ValueRef<'_>) -> Option<Self> {
        DateTime::parse_from_rfc3339(value.as_str().ok()?).ok().map(|at| at.to_utc())
    }
}

impl<T: DeserializeOwned> NearValue for Json<T> {
    fn read(value: ValueRef<'_>) -> Option<Self> {
        serde_json::from_str(value.as_str().ok()?).ok().map(Self)
    }
}
