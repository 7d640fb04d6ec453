//! What can go wrong with the database, in the words a caller can act on.

/// An error of the store. The text is for logs and operators; it holds no values of rows.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A row with this name is there already.
    #[error("{0} is taken")]
    Taken(&'static str),
    /// What was named does not exist (or belongs to somebody else, which is the same to the caller).
    #[error("{0} does not exist")]
    Missing(&'static str),
    /// A rule of the data forbids it.
    #[error("{0}")]
    Refused(&'static str),
    /// The writer lost its session to another one, or the session is gone: nothing was changed.
    #[error("another instance owns this session now")]
    Fenced,
    /// The organisation has as many live sessions as it may.
    #[error("this organisation may have {limit} live sessions and has them: end one, or raise its limit")]
    SessionLimit { limit: i64 },
    /// The database cannot be opened or reached.
    #[error("cannot open the database {target}: {reason}. {remedy}")]
    Unreachable { target: String, reason: String, remedy: &'static str },
    /// Another gateway holds the instance lock.
    #[error(
        "another gateway serves the database {target}: stop it, or name another database in DATABASE_URL"
    )]
    Served { target: String },
    /// The database was written by a younger program.
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
    /// There is nothing to open, and whoever asked does not want it made.
    #[error("there is no database at {target} yet: run `proliferate up` once, or `proliferate db migrate`")]
    Absent { target: String },
    /// The database was written by an older program, and whoever asked does not want it changed.
    #[error(
        "the database has schema version {found}, this program needs {known}: run `proliferate db migrate`"
    )]
    OlderSchema { found: i64, known: i64 },
    /// A migration that ran is not the one in this program.
    #[error(
        "migration {version} of the database is not the one in this program: it was built from another source"
    )]
    ForeignSchema { version: i64 },
    /// Nothing can be written until there is space again. Reading works.
    #[error("the disk that the database is on is full: free some space; nothing new is kept until then")]
    DiskFull,
    /// The database failed while it was in use.
    #[error("the database failed: {0}")]
    Failed(#[source] sqlx::Error),
    /// The group commit that carried this write failed, so nothing of it was kept.
    #[error("the write was not kept: {0}")]
    NotCommitted(String),
    /// The end of the ledger is not where its chain heads say: somebody changed it, and nothing may be added to it.
    #[error("the ledger was changed and takes no more events: {0}. Run `proliferate audit verify`")]
    LedgerChanged(String),
    /// A file operation of backup or restore failed.
    #[error("{what}: {source}")]
    File { what: String, source: std::io::Error },
}

impl StoreError {
    /// Whether the database cannot be reached or did not keep a write, so that trying again later helps. All else
    /// that it says no to is a fault of ours.
    pub fn is_unavailable(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::NotCommitted(_) | Self::DiskFull => true,
            Self::Failed(error) => is_unavailable(error),
            _ => false,
        }
    }

    /// Whether a row that was read is not of the form that we write.
    pub fn is_damaged(&self) -> bool {
        matches!(self, Self::Failed(sqlx::Error::Decode(_) | sqlx::Error::ColumnDecode { .. }))
    }

    /// The same error, but a violated unique constraint means that `what` is taken and a violated foreign key
    /// that `parent` does not exist.
    pub(crate) fn on_constraint(self, what: &'static str, parent: &'static str) -> Self {
        match &self {
            Self::Failed(sqlx::Error::Database(e)) if e.is_unique_violation() => Self::Taken(what),
            Self::Failed(sqlx::Error::Database(e)) if e.is_foreign_key_violation() => Self::Missing(parent),
            _ => self,
        }
    }
}

/// Whether the way to the database is gone, or the database at its end.
pub(crate) fn is_unavailable(error: &sqlx::Error) -> bool {
    use sqlx::Error::{Database, Io, PoolClosed, PoolTimedOut, Tls, WorkerCrashed};
    match error {
        Io(_) | Tls(_) | PoolTimedOut | PoolClosed | WorkerCrashed => true,
        // A PostgreSQL that is stopping or full tells it as an error of its own.
        Database(error) => error.code().is_some_and(|code| {
            code.len() == 5 && ["08", "53", "57P"].iter().any(|class| code.starts_with(class))
        }),
        _ => false,
    }
}

/// Whether the database has no space left: SQLite's own number for it, or PostgreSQL's.
pub(crate) fn is_disk_full(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(error) = error else { return false };
    error.code().is_some_and(|code| code == "13" || code == "53100")
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        if is_disk_full(&error) { Self::DiskFull } else { Self::Failed(error) }
    }
}
