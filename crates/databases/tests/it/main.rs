//! Queries on a real PostgreSQL and on SQLite files, by callers that try to write, to stay for ever, and to get too much.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends here")]
#![expect(clippy::panic, reason = "helpers of tests may fail like tests")]

mod postgres;
mod server;
mod sqlite;
mod tls;

use std::time::Duration;

use databases::{Limits, Query};
use serde_json::{Value, json};

/// Limits that no test reaches by chance.
pub(crate) const WIDE: Limits = Limits { time: Duration::from_secs(20), rows: 1000, bytes: 1 << 20 };

pub(crate) fn query(sql: &str, parameters: Value) -> Query {
    let Value::Array(parameters) = parameters else { panic!("parameters are a list") };
    Query { sql: sql.to_owned(), parameters }
}

pub(crate) fn plain(sql: &str) -> Query {
    query(sql, json!([]))
}
