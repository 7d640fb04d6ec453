//! Errors of the store, in terms that a caller can act on.

/// An error of the store. Its text is for logs and operators, and contains no values of rows.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A row with this name exists already.
    #[error("{0} is taken")]
    Taken(&'static str),
    /// The named row does not exist, or belongs to another organization: callers must not be able to tell.
    #[error("{0} does not exist")]
    Missing(&'static str),
    /// A rule of the data forbids it.
    #[error("{0}")]
    Refused(&'static str),
    /// The session has another owner now, or does not exist any more. Nothing was changed.
    #[error("another instance owns this session now")]
    Fenced,
    /// The organization has reached its limit of live sessions.
    #[error("this organization has reached its limit of {limit} live sessions: end one, or raise the limit")]
    SessionLimit { limit: i64 },
    /// The database cannot be opened or reached.
    #[error("cannot open the database {target}: {reason}. {remedy}")]
    Unreachable { target: String, reason: String, remedy: &'static str },
    /// Another gateway holds the instance lock.
    #[error(
        "another gateway serves the database {target}: stop it, or name another database in DATABASE_URL"
    )]
    Served { target: String },
    /// A newer program has migrated the database.
    #[error(
        "the database has schema version {found}, this program knows up to {known}: \
         start the newer program that wrote it, or restore a backup made before the upgrade"
    )]
    NewerSchema { found: i64, known: i64 },
    /// The database has a schema from before the first release.
    #[error(
        "the database has schema version {found}, from before the first release, and this program cannot read it: \
         move the data dir away, or name an empty database in DATABASE_URL, and start again"
    )]
    UnsupportedSchema { found: i64 },
    /// The database does not exist, and the caller does not want it created.
    #[error("there is no database at {target} yet: run `proliferate up` once, or `proliferate db migrate`")]
    Absent { target: String },
    /// The database has an older schema, and the caller does not want it migrated.
    #[error(
        "the database has schema version {found}, this program needs {known}: run `proliferate db migrate`"
    )]
    OlderSchema { found: i64, known: i64 },
    /// A migration in the database differs from the one in this program.
    #[error(
        "migration {version} of the database differs from the one in this program, which was built from another source: \
         start the program that created the database, or move the data dir away, or name an empty database in DATABASE_URL"
    )]
    ForeignSchema { version: i64 },
    /// The disk is full. Reads still work.
    #[error("the disk of the database is full: free some space; nothing can be written until then")]
    DiskFull,
    /// A query failed.
    #[error("the database failed: {0}")]
    Failed(#[source] sqlx::Error),
    /// The transaction of this write failed, so nothing was written.
    #[error("the write was not committed: {0}")]
    NotCommitted(String),
    /// The last events do not match the chain heads: somebody tampered with the ledger, and nothing may be appended.
    #[error("the ledger was tampered with and accepts no more events: {0}. Run `proliferate audit verify`")]
    LedgerChanged(String),
    /// A file operation of backup or restore failed.
    #[error("{what}: {source}")]
    File { what: String, source: std::io::Error },
}

impl StoreError {
    /// Whether the database cannot be reached or a commit failed, so that a later retry may succeed. Any other error is a bug
    /// of ours.
    pub fn is_unavailable(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::NotCommitted(_) | Self::DiskFull => true,
            Self::Failed(error) => is_unavailable(error),
            _ => false,
        }
    }

    /// Whether the database refused this statement, and so rolled back its transaction, while others may succeed: a violated
    /// constraint, a value that it does not take, a statement that takes too long, or one that waited in a deadlock.
    pub fn is_refused_statement(&self) -> bool {
        let Self::Failed(sqlx::Error::Database(error)) = self else { return false };
        error.code().is_some_and(|code| match code.parse::<u32>() {
            // SQLite's codes: too big, constraint and mismatch, with their details above the lowest byte.
            Ok(number) if code.len() < 5 => matches!(number & 0xff, 18..=20),
            // PostgreSQL's classes and codes: data, constraints, rollbacks, limits, locks, a timeout, and triggers.
            _ => ["22", "23", "40", "54", "55P03", "57014", "P0"].iter().any(|class| code.starts_with(class)),
        })
    }

    /// Whether a row has unexpected types or values.
    pub fn is_damaged(&self) -> bool {
        matches!(self, Self::Failed(sqlx::Error::Decode(_) | sqlx::Error::ColumnDecode { .. }))
    }

    /// Translates violated constraints: a unique one means that `what` is taken, a foreign key that `parent` does not
    /// exist.
    pub(crate) fn on_constraint(self, what: &'static str, parent: &'static str) -> Self {
        match &self {
            Self::Failed(sqlx::Error::Database(e)) if e.is_unique_violation() => Self::Taken(what),
            Self::Failed(sqlx::Error::Database(e)) if e.is_foreign_key_violation() => Self::Missing(parent),
            _ => self,
        }
    }
}

/// Whether the connection broke or the server is unavailable.
pub(crate) fn is_unavailable(error: &sqlx::Error) -> bool {
    use sqlx::Error::{Database, Io, PoolClosed, PoolTimedOut, Tls, WorkerCrashed};
    match error {
        Io(_) | Tls(_) | PoolTimedOut | PoolClosed | WorkerCrashed => true,
        // A PostgreSQL that is stopping or has no free connection reports an ordinary error.
        Database(error) => error.code().is_some_and(|code| {
            code.len() == 5 && ["08", "53", "57P"].iter().any(|class| code.starts_with(class))
        }),
        _ => false,
    }
}

/// Whether the disk is full, by the error codes of SQLite and PostgreSQL.
pub(crate) fn is_disk_full(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(error) = error else { return false };
    error.code().is_some_and(|code| code == "13" || code == "53100")
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        if is_disk_full(&error) { Self::DiskFull } else { Self::Failed(error) }
    }
}
