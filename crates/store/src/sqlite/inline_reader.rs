//! Inline reads: finds rows by key on SQLite on the caller's thread.
//!
//! Each connection of the pool lives on a thread of its own, and the hop to it and back takes ten times as long as the query.
//! Only lookups by key and short lists by an index belong here, because they block the caller's async worker. If anything
//! fails or a list is long, the caller uses the pool, which reports the error.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use parking_lot::Mutex;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags, Statement, ToSql};
use serde::de::DeserializeOwned;
use sqlx::types::Json;
use uuid::Uuid;

/// The rows of a list that are read inline. A longer list is read by the pool, from its beginning.
const MAX_LIST: usize = 100;

/// Connections that are opened when needed: never more than there are threads that read at once.
#[derive(Clone)]
pub(crate) struct InlineReader(Arc<Mutex<State>>);

/// The result of an inline read.
pub(crate) enum InlineRead<T> {
    Row(Option<T>),
    UsePool,
}

struct State {
    file: PathBuf,
    idle: Vec<Connection>,
    closed: bool,
}

impl InlineReader {
    pub(crate) fn new(file: &Path) -> Self {
        Self(Arc::new(Mutex::new(State { file: file.to_owned(), idle: Vec::new(), closed: false })))
    }

    /// The row that a statement finds, if it can be read inline.
    pub(crate) fn find<T: FromInlineRow>(&self, sql: &str, parameters: &[&dyn ToSql]) -> InlineRead<T> {
        let Some(connection) = self.take() else { return InlineRead::UsePool };
        let found = find(&connection, sql, parameters);
        self.give_back(connection);
        found.map_or(InlineRead::UsePool, InlineRead::Row)
    }

    /// All rows that a statement finds, if they are few and can be read inline.
    pub(crate) fn list<T: FromInlineRow>(&self, sql: &str, parameters: &[&dyn ToSql]) -> Option<Vec<T>> {
        let connection = self.take()?;
        let found = list(&connection, sql, parameters);
        self.give_back(connection);
        found.ok().flatten()
    }

    fn take(&self) -> Option<Connection> {
        let mut state = self.0.lock();
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
        let mut state = self.0.lock();
        if !state.closed {
            state.idle.push(connection);
        }
    }

    /// Closes the connections; later reads use the pool.
    pub(crate) fn close(&self) {
        let mut state = self.0.lock();
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

/// The first row that a statement finds. Parameters are `$1`, `$2` and so on, in any order of the text.
pub(crate) fn find<T: FromInlineRow>(
    connection: &Connection,
    sql: &str,
    parameters: &[&dyn ToSql],
) -> sqlx::Result<Option<T>> {
    let mut statement = connection.prepare_cached(sql).map_err(sqlite_error)?;
    bind(&mut statement, parameters).map_err(sqlite_error)?;
    let mut rows = statement.raw_query();
    match rows.next().map_err(sqlite_error)? {
        Some(row) => T::from_inline_row(&InlineRow { row, next: Cell::new(0) }).map(Some),
        None => Ok(None),
    }
}

/// All rows that a statement finds; `None` if there are more than [`MAX_LIST`].
fn list<T: FromInlineRow>(
    connection: &Connection,
    sql: &str,
    parameters: &[&dyn ToSql],
) -> sqlx::Result<Option<Vec<T>>> {
    let mut statement = connection.prepare_cached(sql).map_err(sqlite_error)?;
    bind(&mut statement, parameters).map_err(sqlite_error)?;
    let (mut rows, mut found) = (statement.raw_query(), Vec::new());
    while let Some(row) = rows.next().map_err(sqlite_error)? {
        if found.len() == MAX_LIST {
            return Ok(None);
        }
        found.push(T::from_inline_row(&InlineRow { row, next: Cell::new(0) })?);
    }
    Ok(Some(found))
}

/// Binds values to `$1`, `$2` and so on by name, because SQLite numbers them in the order of the text.
fn bind(statement: &mut Statement<'_>, parameters: &[&dyn ToSql]) -> rusqlite::Result<()> {
    for (number, value) in (1..).zip(parameters) {
        let name = format!("${number}");
        let missing = || rusqlite::Error::InvalidParameterName(name.clone());
        let index = statement.parameter_index(&name)?.ok_or_else(missing)?;
        statement.raw_bind_parameter(index, value)?;
    }
    Ok(())
}

/// Formats a time as sqlx does.
pub(crate) fn time_text(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(chrono::SecondsFormat::AutoSi, false)
}

fn sqlite_error(error: rusqlite::Error) -> sqlx::Error {
    sqlx::Error::Decode(error.into())
}

/// Converts an inline row; [`from_row!`](crate::row::from_row) implements it together with sqlx's `FromRow`.
pub(crate) trait FromInlineRow: Sized {
    fn from_inline_row(row: &InlineRow<'_>) -> sqlx::Result<Self>;
}

/// A row that is read by column name, like sqlx's.
pub(crate) struct InlineRow<'a> {
    row: &'a rusqlite::Row<'a>,
    /// Columns are mostly read in order, so the next one is tried first.
    next: Cell<usize>,
}

impl InlineRow<'_> {
    pub(crate) fn try_get<T: InlineValue, N: AsRef<str>>(&self, name: N) -> sqlx::Result<T> {
        let (statement, name) = (self.row.as_ref(), name.as_ref());
        let next = self.next.get();
        let index = match statement.column_name(next) {
            Ok(found) if found == name => next,
            _ => statement.column_index(name).map_err(sqlite_error)?,
        };
        self.next.set(index + 1);
        let value = self.row.get_ref(index).map_err(sqlite_error)?;
        T::read(value).ok_or_else(|| sqlx::Error::ColumnDecode {
            index: name.to_owned(),
            source: "the value does not have the expected type".into(),
        })
    }
}

/// Converts a value of SQLite.
pub(crate) trait InlineValue: Sized {
    fn read(value: ValueRef<'_>) -> Option<Self>;
}

impl<T: InlineValue> InlineValue for Option<T> {
    fn read(value: ValueRef<'_>) -> Option<Self> {
        match value {
            ValueRef::Null => Some(None),
            other => T::read(other).map(Some),
        }
    }
}

impl InlineValue for String {
    fn read(value: ValueRef<'_>) -> Option<Self> {
        value.as_str().ok().map(str::to_owned)
    }
}

impl InlineValue for i64 {
    fn read(value: ValueRef<'_>) -> Option<Self> {
        value.as_i64().ok()
    }
}

impl InlineValue for bool {
    fn read(value: ValueRef<'_>) -> Option<Self> {
        value.as_i64().ok().map(|number| number != 0)
    }
}

impl InlineValue for Vec<u8> {
    fn read(value: ValueRef<'_>) -> Option<Self> {
        value.as_blob().ok().map(<[u8]>::to_vec)
    }
}

impl InlineValue for Uuid {
    fn read(value: ValueRef<'_>) -> Option<Self> {
        Self::from_slice(value.as_blob().ok()?).ok()
    }
}

impl InlineValue for DateTime<Utc> {
    fn read(value: ValueRef<'_>) -> Option<Self> {
        DateTime::parse_from_rfc3339(value.as_str().ok()?).ok().map(|at| at.to_utc())
    }
}

impl<T: DeserializeOwned> InlineValue for Json<T> {
    fn read(value: ValueRef<'_>) -> Option<Self> {
        serde_json::from_str(value.as_str().ok()?).ok().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use clock::Clock;
    use proto::{ClientType, JsonObject, OrgId, RunKind, SessionId, SessionType};
    use serde_json::json;
    use tempfile::TempDir;

    use super::*;
    use crate::db::Db;
    use crate::{
        CallDetails, Change, GateWrite, JsonText, NewOrg, NewRun, NewSandboxToken, NewSession, Store,
    };

    const RUN: &str = "run-00000001";

    async fn filled(file: &Path) -> (Store, OrgId, SessionId) {
        let store = Store::open_sqlite(file, &Clock::system()).await.unwrap();
        let at = DateTime::from_timestamp_nanos(1_750_000_000_123_456_789);
        let (org, session): (OrgId, SessionId) = (Uuid::from_u128(1).into(), Uuid::from_u128(2).into());
        store.create_org(NewOrg { id: org, name: "org".to_owned(), at }).await.unwrap();
        let mut metadata = JsonObject::new();
        metadata.insert("ü".to_owned(), json!([1, null, {"a": "b"}]));
        let new = NewSession {
            client_type: Some(ClientType::Web),
            client_metadata: Some(metadata),
            title: Some("a \"title\"".to_owned()),
            budget_micros: Some(1 << 40),
            ..NewSession::new(session, org, SessionType::Setup, "local", at)
        };
        store.create_session(new).await.unwrap();
        let token = NewSandboxToken { token_hash: [7; 32], session_id: session };
        store.create_sandbox_token(token).await.unwrap();
        let run = NewRun {
            org_id: org,
            run_id: RUN.to_owned(),
            kind: RunKind::ToolGateway,
            lanes_version: "lanes-1".to_owned(),
            roles_version: "roles-1".to_owned(),
            parent_run_id: None,
            root_run_id: RUN.to_owned(),
            run_name: None,
            case_id: Some("case-1".to_owned()),
            session_id: Some(session),
            correlation_id: None,
            actor: JsonText::of(&json!({"actor_id": "ada"})),
            role_id: "OPERATOR".to_owned(),
            lane_id: None,
            call: Some(CallDetails {
                tool: "weather".to_owned(),
                operation: "look".to_owned(),
                request_hash: "f".repeat(64),
                decision: JsonText::of(&json!({})),
                instance: "here".to_owned(),
            }),
            inputs: JsonText::of(&json!([])),
            retry_count: 3,
            retry_reason: None,
            created_at: at,
            waits: false,
            end: None,
        };
        store.gate_write(GateWrite::new(Change::Begin(Box::new(run)), Vec::new())).await.unwrap();
        (store, org, session)
    }

    /// A lookup must return the same row inline and through the pool.
    #[tokio::test]
    async fn an_inline_read_returns_the_same_row_as_the_pool() {
        let directory = TempDir::new().unwrap();
        let (store, org, session) = filled(&directory.path().join("t.db")).await;
        let Db::Sqlite(sqlite) = &store.db else { panic!("SQLite was opened") };
        let inline = &sqlite.inline;
        let read = async || {
            let absent: SessionId = Uuid::from_u128(3).into();
            (
                store.session(org, session).await.unwrap(),
                store.run(org, RUN).await.unwrap(),
                store.session(org, absent).await.unwrap(),
                store.session_of_token(&[7; 32]).await.unwrap(),
            )
        };
        let found = read().await;
        assert!(found.0.is_some() && found.1.is_some() && found.2.is_none());
        assert_eq!(found.3.map(|session| session.id), found.0.as_ref().map(|session| session.id));
        assert_eq!(inline.0.lock().idle.len(), 1, "it was read inline");
        inline.close();
        assert_eq!(read().await, found);
        assert!(inline.0.lock().idle.is_empty(), "a closed reader opens no connection");
    }

    #[test]
    fn a_failed_inline_read_falls_back_to_the_pool() {
        let directory = TempDir::new().unwrap();
        let nowhere = InlineReader::new(&directory.path().join("absent.db"));
        assert!(matches!(nowhere.find::<crate::Run>("SELECT 1", &[]), InlineRead::UsePool));
        let file = directory.path().join("t.db");
        Connection::open(&file).unwrap();
        let inline = InlineReader::new(&file);
        assert!(
            matches!(inline.find::<crate::Run>("SELECT 1 AS org_id", &[]), InlineRead::UsePool),
            "columns are missing"
        );
        let written = inline.find::<crate::Run>("CREATE TABLE t (n)", &[]);
        assert!(matches!(written, InlineRead::UsePool), "the connection is read-only");
    }
}
