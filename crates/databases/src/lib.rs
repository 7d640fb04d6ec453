//! Databases that agents query: PostgreSQL and SQLite, for reading only. Everything about a query is bounded: one
//! statement, its time, its rows and their bytes.

mod definition;
pub mod postgres;
mod rows;
pub mod sqlite;

use std::time::Duration;

use serde_json::Value;

pub use definition::{FREE_FORM, arguments, check_queries, free_form_schema, schema};
pub use rows::Rows;

/// The maximum length of a statement.
pub const MAX_SQL: usize = 20_000;
/// The maximum number of characters of a database's own account of a failure. More than anybody is shown, because who shows
/// it removes secrets first, and half a secret is not found.
const MAX_MESSAGE: usize = 4000;

/// How much one query may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub time: Duration,
    pub rows: usize,
    /// The size of all rows as JSON.
    pub bytes: usize,
}

/// One statement with the values of its parameters in order.
#[derive(Clone, Debug)]
pub struct Query {
    pub sql: String,
    pub parameters: Vec<Value>,
}

/// Why a query has no result. The text never contains the address, the user or the password of a connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("the database cannot be reached")]
    Unreachable,
    #[error("the database server does not offer TLS")]
    NoTls,
    #[error(
        "the certificate of the database server is not valid for its host, or not from a known authority"
    )]
    Certificate,
    #[error(
        "this machine knows no certificate authorities: install them, or name a file with them in SSL_CERT_FILE"
    )]
    NoAuthorities,
    #[error("the database refuses the user, the password or the name of the database")]
    Credential,
    #[error("the connection to the database broke")]
    Broken,
    #[error("the query did not end in time")]
    Timeout,
    #[error("a single row is larger than the limit of {0} bytes")]
    TooLarge(usize),
    #[error(
        "the query needs more memory than it may have ({0} MiB, or less while others need much): let it sort, group or compute less"
    )]
    Memory(i64),
    /// A bug of ours; the log has the place.
    #[error("the query could not be executed because of an error in the gateway: tell its operator")]
    Panicked,
    /// The role may do more than read.
    #[error("the role of this database {0}")]
    Role(String),
    /// The file of a database cannot be used.
    #[error("{0}")]
    File(&'static str),
    /// The statement or its parameters are not of a kind that is executed.
    #[error("{0}")]
    Invalid(String),
    /// The database's own account of why it refuses a statement.
    #[error("the database answers: {0}")]
    Statement(String),
}

/// Refuses what no database needs to see.
fn check_statement(query: &Query) -> Result<(), Problem> {
    let problem = match query.sql.trim() {
        "" => "the statement is empty",
        _ if query.sql.len() > MAX_SQL => "the statement is longer than 20000 bytes",
        _ if query.sql.contains('\0') => "the statement contains a NUL character",
        _ => return Ok(()),
    };
    Err(Problem::Invalid(problem.to_owned()))
}

/// The text in at most [`MAX_MESSAGE`] characters.
fn bounded(text: &str) -> String {
    text.chars().take(MAX_MESSAGE).collect()
}
