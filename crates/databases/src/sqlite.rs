//! Queries on SQLite files. The file is opened for reading, below a directory that the operator has chosen; an authorizer
//! refuses whatever is not a query, before it is compiled. Sorting happens in memory, which is limited, and never in files.

mod functions;
mod memory;

use std::panic::AssertUnwindSafe;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::config::DbConfig;
use rusqlite::ffi::ErrorCode;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit;
use rusqlite::types::{Value as SqlValue, ValueRef};
use rusqlite::{Connection, Error, OpenFlags, Statement};
use serde_json::{Value, json};
use tokio::time::timeout;

use self::memory::{Budget, PER_QUERY_MIB};
use crate::rows::{Collector, float, integer};
use crate::{Limits, Problem, Query, Rows, bounded, check_statement};

/// How many instructions of a query are executed between two checks of whether it is late.
/// Few, because one call of a function may take long.
const CHECK_EVERY: i32 = 20;
/// The limits of SQLite's manual for statements from strangers, with more room where real queries need it.
const LIMITS: [(Limit, i32); 10] = [
    (Limit::SQLITE_LIMIT_SQL_LENGTH, 100_000),
    (Limit::SQLITE_LIMIT_COLUMN, 500),
    (Limit::SQLITE_LIMIT_EXPR_DEPTH, 100),
    (Limit::SQLITE_LIMIT_COMPOUND_SELECT, 50),
    (Limit::SQLITE_LIMIT_VDBE_OP, 25_000),
    (Limit::SQLITE_LIMIT_FUNCTION_ARG, 127),
    (Limit::SQLITE_LIMIT_ATTACHED, 0),
    (Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, functions::LONGEST_PATTERN),
    (Limit::SQLITE_LIMIT_VARIABLE_NUMBER, 100),
    (Limit::SQLITE_LIMIT_WORKER_THREADS, 0),
];
/// The pragmas that describe tables. All others are refused, since some change files or the process.
const PRAGMAS: [&str; 6] =
    ["table_info", "table_xinfo", "table_list", "index_list", "index_info", "foreign_key_list"];
/// Functions that reach files or load code, if SQLite is built with them, and those whose time grows with the square of
/// their arguments and that `functions` cannot bound, because their results have a subtype.
const REFUSED_FUNCTIONS: [&str; 7] =
    ["load_extension", "readfile", "writefile", "edit", "fts3_tokenizer", "json_patch", "jsonb_patch"];

/// A file below a directory that the operator has chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabaseFile {
    pub directory: PathBuf,
    /// Relative to the directory.
    pub file: PathBuf,
    /// A directory whose files are never opened, wherever links lead.
    pub never: PathBuf,
}

/// Checks that the file is a database that can be read.
pub async fn check(file: &DatabaseFile, limits: Limits, slot: impl Send + 'static) -> Result<(), Problem> {
    let sql = "SELECT count(*) FROM sqlite_schema".to_owned();
    query(file, Query { sql, parameters: Vec::new() }, limits, slot).await.map(drop)
}

/// Executes one query on a thread of its own. The slot is released when the thread has ended, which may be a little later than
/// a timeout.
pub async fn query(
    file: &DatabaseFile,
    query: Query,
    limits: Limits,
    slot: impl Send + 'static,
) -> Result<Rows, Problem> {
    check_statement(&query)?;
    let file = file.clone();
    let late = Cancel::default();
    let seen = late.0.clone();
    let work = tokio::task::spawn_blocking(move || {
        let _slot = slot;
        catch_panic(|| select_rows(&file, &query, limits, seen))
    });
    match timeout(limits.time, work).await {
        Ok(Ok(rows)) => rows,
        // The runtime is shutting down.
        Ok(Err(_)) => Err(Problem::Broken),
        Err(_) => Err(Problem::Timeout),
    }
}

/// Executes a query. rusqlite panics if SQLite has no memory left to convert a text; any other panic is a bug.
fn catch_panic(select: impl FnOnce() -> Result<Rows, Problem>) -> Result<Rows, Problem> {
    std::panic::catch_unwind(AssertUnwindSafe(select)).unwrap_or_else(|_| {
        Err(if memory::was_refused() { Problem::Memory(PER_QUERY_MIB) } else { Problem::Panicked })
    })
}

/// Interrupts a query whose caller has gone, or does not wait any longer.
#[derive(Default)]
struct Cancel(Arc<AtomicBool>);

impl Drop for Cancel {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Opens the file at the path if it is below the directory. A path that is changed in the meantime leads to no other file.
fn open(file: &DatabaseFile) -> Result<Connection, Problem> {
    let missing = |_| Problem::File("the file of this database does not exist, or cannot be read");
    if !is_relative(&file.file) {
        return Err(Problem::File("the file of a database is a relative path without `..`"));
    }
    let directory = file.directory.canonicalize().map_err(missing)?;
    let path = directory.join(&file.file).canonicalize().map_err(missing)?;
    if !path.starts_with(&directory) {
        return Err(Problem::File("the file of this database is a link that leads out of its directory"));
    }
    if file.never.canonicalize().is_ok_and(|never| path.starts_with(never)) {
        return Err(Problem::File("the file of this database belongs to the gateway"));
    }
    // Opening a pipe would wait for its writer.
    if !path.metadata().map_err(missing)?.is_file() {
        return Err(Problem::File("the file of this database is not a regular file"));
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_NOFOLLOW
        | OpenFlags::SQLITE_OPEN_EXRESCODE;
    Connection::open_with_flags(path, flags).map_err(|error| match error.sqlite_error_code() {
        Some(ErrorCode::OutOfMemory) => Problem::Memory(PER_QUERY_MIB),
        _ => Problem::File("the file of this database does not exist, or cannot be read"),
    })
}

/// Whether a path is relative and has no `..`, so that it stays inside the directory that it is joined to.
pub fn is_relative(path: &Path) -> bool {
    path.components().next().is_some() && path.components().all(|part| matches!(part, Component::Normal(_)))
}

/// Restricts a connection to reading. The authorizer comes last, because it would refuse the other steps.
fn restrict(database: &Connection, limits: Limits, late: Arc<AtomicBool>) -> rusqlite::Result<()> {
    database.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    database.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    database.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)?;
    for (limit, value) in LIMITS {
        database.set_limit(limit, value)?;
    }
    // A larger value could not be returned.
    let longest = i32::try_from(limits.bytes).unwrap_or(i32::MAX);
    database.set_limit(Limit::SQLITE_LIMIT_LENGTH, longest)?;
    functions::bound(database, longest, &late)?;
    database.progress_handler(CHECK_EVERY, Some(move || late.load(Ordering::Relaxed)))?;
    database.pragma_update(None, "query_only", true)?;
    database.pragma_update(None, "mmap_size", 0)?;
    // Otherwise what does not fit into the cache goes to files, until the disk is full.
    database.pragma_update(None, "temp_store", "MEMORY")?;
    database.authorizer(Some(authorize))
}

fn authorize(context: AuthContext<'_>) -> Authorization {
    let allowed = match context.action {
        AuthAction::Select | AuthAction::Read { .. } | AuthAction::Recursive => true,
        AuthAction::Function { function_name } => !is_in(&REFUSED_FUNCTIONS, function_name),
        AuthAction::Pragma { pragma_name, .. } => is_in(&PRAGMAS, pragma_name),
        _ => false,
    };
    if allowed { Authorization::Allow } else { Authorization::Deny }
}

fn is_in(names: &[&str], name: &str) -> bool {
    names.iter().any(|known| known.eq_ignore_ascii_case(name))
}

fn select_rows(
    file: &DatabaseFile,
    query: &Query,
    limits: Limits,
    late: Arc<AtomicBool>,
) -> Result<Rows, Problem> {
    let _budget = Budget::new()?;
    let database = open(file)?;
    let failed = |error: Error| problem(&error, limits);
    database.busy_timeout(limits.time).map_err(failed)?;
    restrict(&database, limits, late).map_err(failed)?;
    let mut statement = database.prepare(&query.sql).map_err(failed)?;
    if !statement.readonly() || statement.column_count() == 0 {
        return Err(Problem::Invalid("only statements that return rows are executed".to_owned()));
    }
    bind(&mut statement, &query.parameters, limits)?;
    let columns = statement.column_count();
    let mut collected = Collector::new(&statement.column_names(), limits)?;
    let mut rows = statement.raw_query();
    while let Some(row) = rows.next().map_err(failed)? {
        let values: Result<Vec<Value>, _> = (0..columns).map(|at| row.get_ref(at).map(to_json)).collect();
        if !collected.push(values.map_err(failed)?)? {
            break;
        }
    }
    Ok(collected.finish())
}

/// Binds parameters by position. Named ones have the positions of their first use, which is easily mistaken.
fn bind(statement: &mut Statement<'_>, parameters: &[Value], limits: Limits) -> Result<(), Problem> {
    let wanted = statement.parameter_count();
    if (1..=wanted).any(|at| statement.parameter_name(at).is_some_and(|name| name != format!("?{at}"))) {
        return Err(Problem::Invalid("parameters are written ?1, ?2 and so on".to_owned()));
    }
    if wanted != parameters.len() {
        let given = parameters.len();
        return Err(Problem::Invalid(format!(
            "the statement has {wanted} parameters, and {given} are given"
        )));
    }
    for (at, value) in parameters.iter().enumerate() {
        let value = match value {
            Value::Null => SqlValue::Null,
            Value::Bool(value) => SqlValue::Integer(i64::from(*value)),
            Value::Number(number) => match number.as_i64() {
                Some(integer) => SqlValue::Integer(integer),
                None => SqlValue::Real(number.as_f64().unwrap_or(f64::NAN)),
            },
            Value::String(text) => SqlValue::Text(text.clone()),
            other => SqlValue::Text(other.to_string()),
        };
        statement.raw_bind_parameter(at + 1, value).map_err(|error| problem(&error, limits))?;
    }
    Ok(())
}

fn to_json(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(value) => integer(value),
        ValueRef::Real(value) => float(value),
        ValueRef::Text(text) => json!(String::from_utf8_lossy(text)),
        // As PostgreSQL writes bytes.
        ValueRef::Blob(bytes) => json!(format!("\\x{}", hex::encode(bytes))),
    }
}

fn problem(error: &Error, limits: Limits) -> Problem {
    match error.sqlite_error_code() {
        Some(ErrorCode::OperationInterrupted | ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            return Problem::Timeout;
        }
        Some(ErrorCode::OutOfMemory) => return Problem::Memory(PER_QUERY_MIB),
        Some(ErrorCode::TooBig) => return Problem::TooLarge(limits.bytes),
        Some(ErrorCode::NotADatabase) => {
            return Problem::File("the file of this database is not an SQLite database");
        }
        Some(ErrorCode::CannotOpen) => {
            return Problem::File("the file of this database does not exist, or cannot be read");
        }
        _ => {}
    }
    match error {
        Error::MultipleStatement => Problem::Invalid("only one statement is executed".to_owned()),
        Error::SqlInputError { msg, offset, .. } if *offset >= 0 => {
            Problem::Statement(format!("{} (at byte {})", bounded(msg), offset + 1))
        }
        Error::SqlInputError { msg, .. } | Error::SqliteFailure(_, Some(msg)) => {
            Problem::Statement(bounded(msg))
        }
        _ => Problem::Statement("the statement failed".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_reported_as_memory_only_if_memory_was_refused() {
        let panics = || {
            catch_panic(|| {
                let _budget = Budget::new()?;
                panic!("a bug")
            })
        };
        assert_eq!(panics().unwrap_err(), Problem::Panicked);
        let greedy = catch_panic(|| {
            let _budget = Budget::new()?;
            let database = Connection::open_in_memory().unwrap();
            let refused =
                database.query_row("SELECT zeroblob(100000000)", [], |row| row.get::<_, Vec<u8>>(0));
            assert!(refused.is_ok(), "this panics");
            unreachable!("more than a query may have")
        });
        assert_eq!(greedy.unwrap_err(), Problem::Memory(PER_QUERY_MIB));
        assert_eq!(panics().unwrap_err(), Problem::Panicked, "the next query of the thread starts anew");
    }
}
