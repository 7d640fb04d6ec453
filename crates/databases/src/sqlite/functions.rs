//! Functions of SQLite whose time grows with the product of their arguments. SQLite interrupts a query at its jumps and never
//! within a function or between the calls of one row, so they could run for hours after the timeout. Here, a call is
//! refused if the query is late or if the call would take too many steps; otherwise SQLite's own function is executed on another
//! connection. The price is that `LIKE` and `GLOB` use no index.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::limits::Limit;
use rusqlite::types::{ToSqlOutput, Value, ValueRef};
use rusqlite::{Connection, Error, ffi, params_from_iter};

/// The functions, and how many arguments they have; -1 means any number.
const BOUNDED: [(&str, c_int); 11] = [
    ("like", 2),
    ("like", 3),
    ("glob", 2),
    ("instr", 2),
    ("replace", 3),
    ("trim", 2),
    ("ltrim", 2),
    ("rtrim", 2),
    ("unhex", 2),
    ("format", ANY),
    ("printf", ANY),
];
const ANY: c_int = -1;
/// The maximum length of a pattern for `LIKE` and `GLOB`, as SQLite's manual proposes for statements from strangers.
pub(super) const LONGEST_PATTERN: c_int = 100;
/// The maximum number of steps of one call, which take some 50 ms.
const MAX_STEPS: usize = 16 << 20;
const TOO_LONG: &str = "the arguments of this function are too long together";

/// Puts the bounded functions in the place of SQLite's own ones. They also end as soon as the query is late.
pub(super) fn bound(database: &Connection, longest: c_int, late: &Arc<AtomicBool>) -> rusqlite::Result<()> {
    let builtin = Connection::open_in_memory()?;
    builtin.set_limit(Limit::SQLITE_LIMIT_LENGTH, longest)?;
    builtin.set_limit(Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, LONGEST_PATTERN)?;
    let builtin = Arc::new(Mutex::new(builtin));
    let flags =
        FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC | FunctionFlags::SQLITE_INNOCUOUS;
    for (name, arguments) in BOUNDED {
        let (builtin, late) = (builtin.clone(), late.clone());
        database.create_scalar_function(name, arguments, flags, move |call| {
            if late.load(Ordering::Relaxed) {
                return Err(Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_INTERRUPT), None));
            }
            let steps = match name {
                // SQLite bounds the length of patterns.
                "like" | "glob" => 0,
                _ if arguments == ANY => format_steps(call),
                _ => length(call, 0) * length(call, 1),
            };
            if steps > MAX_STEPS {
                return Err(Error::UserFunctionError(TOO_LONG.into()));
            }
            evaluate(&builtin.lock(), name, call)
        })?;
    }
    Ok(())
}

/// The bytes of an argument. Numbers are short.
fn length(call: &Context<'_>, at: usize) -> usize {
    match call.get_raw(at) {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => bytes.len(),
        ValueRef::Null | ValueRef::Integer(_) | ValueRef::Real(_) => 1,
    }
}

/// The sum of all numbers in the format: a conversion takes as many steps as it is wide or precise, even if the result is short.
fn format_steps(call: &Context<'_>) -> usize {
    if call.is_empty() {
        return 0;
    }
    let (ValueRef::Text(format) | ValueRef::Blob(format)) = call.get_raw(0) else { return 0 };
    let numbers = format.split(|byte| !byte.is_ascii_digit());
    let number = |digits: &[u8]| {
        digits.iter().fold(0, |number: usize, digit| {
            number.saturating_mul(10).saturating_add(usize::from(digit - b'0'))
        })
    };
    numbers.map(number).fold(0, usize::saturating_add)
}

/// What SQLite's own function returns.
fn evaluate(builtin: &Connection, name: &str, call: &Context<'_>) -> rusqlite::Result<Value> {
    let places = vec!["?"; call.len()].join(", ");
    let mut statement = builtin.prepare_cached(&format!("SELECT {name}({places})"))?;
    let arguments = (0..call.len()).map(|at| ToSqlOutput::Borrowed(call.get_raw(at)));
    let found = statement.query_row(params_from_iter(arguments), |row| {
        Ok(match row.get_ref(0)? {
            ValueRef::Null => Value::Null,
            ValueRef::Integer(value) => Value::Integer(value),
            ValueRef::Real(value) => Value::Real(value),
            ValueRef::Text(text) => Value::Text(String::from_utf8_lossy(text).into_owned()),
            ValueRef::Blob(bytes) => Value::Blob(bytes.to_vec()),
        })
    });
    found.map_err(|error| match error {
        // The function's own account, for example of a pattern that is too long.
        Error::SqliteFailure(code, Some(message)) if code.extended_code == ffi::SQLITE_ERROR => {
            Error::UserFunctionError(message.into())
        }
        // With a text, the query would end with another code.
        Error::SqliteFailure(code, _) => Error::SqliteFailure(code, None),
        other => other,
    })
}
