//! Opens a database that is there already: makes nothing and migrates nothing. For commands that only use it.

use std::io::ErrorKind;
use std::path::Path;

use sqlx::postgres::PgConnection;
use sqlx::sqlite::SqliteConnection;
use sqlx::{Connection as _, query_as, query_scalar};

use crate::db::{connect_first, sqlite_options};
use crate::{Migration, Store, StoreError, describe_url, migrate, postgres};

/// The steps that ran in a database, or nothing when it is not ours yet.
type Applied = Option<Vec<(i64, String)>>;

impl Store {
    /// Opens the SQLite database in `file` if it is there and has the schema of this program.
    pub async fn open_existing_sqlite(file: &Path) -> Result<Self, StoreError> {
        let target = || file.display().to_string();
        if !file.try_exists().unwrap_or(true) {
            return Err(StoreError::Absent { target: target() });
        }
        let unreachable = |error: sqlx::Error| StoreError::Unreachable {
            target: target(),
            reason: error.to_string(),
            remedy: remedy(file),
        };
        let options = sqlite_options(file);
        // Looked at before it is made to write ahead: that would put a first page into an empty file. The look itself
        // writes nothing, so that it need not wait for a server that does.
        let only_look = options.clone().optimize_on_close(false, None).pragma("query_only", "on");
        let mut look = SqliteConnection::connect_with(&only_look).await.map_err(unreachable)?;
        let applied = applied_sqlite(&mut look).await;
        // Also when the look failed, so that nothing of it is left beside the file.
        look.close().await.map_err(unreachable)?;
        up_to_date(applied.map_err(unreachable)?, target)?;
        let connection = connect_first(&options).await.map_err(unreachable)?;
        Ok(Self::sqlite(file, connection))
    }

    /// Connects to PostgreSQL if the database has the schema of this program.
    pub async fn open_existing_postgres(url: &str) -> Result<Self, StoreError> {
        let (options, mut connection) = postgres::connect(url).await?;
        let applied = applied_postgres(&mut connection).await?;
        connection.close().await?;
        up_to_date(applied, || describe_url(url))?;
        Ok(Self::postgres(options))
    }
}

/// What to do about a file that cannot be opened. A backup helps against damage and not against missing rights.
pub(crate) fn remedy(file: &Path) -> &'static str {
    match std::fs::File::options().read(true).write(true).open(file).map_err(|error| error.kind()) {
        Err(ErrorKind::PermissionDenied) => {
            "You have no right to it: run this as the user who owns the data dir, or choose another with --data-dir."
        }
        Err(ErrorKind::ReadOnlyFilesystem) => {
            "It is on a read-only file system: choose another data dir with --data-dir."
        }
        Err(_) => "Check that it is a file in the data dir.",
        Ok(_) => "If it is damaged, restore it from a backup: `proliferate db restore FILE`.",
    }
}

async fn applied_sqlite(connection: &mut SqliteConnection) -> sqlx::Result<Applied> {
    let ours = "SELECT count(*) > 0 FROM sqlite_schema WHERE type = 'table' AND name = 'schema_migrations'";
    if !query_scalar::<_, bool>(ours).fetch_one(&mut *connection).await? {
        return Ok(None);
    }
    query_as(migrate::APPLIED).fetch_all(connection).await.map(Some)
}

async fn applied_postgres(connection: &mut PgConnection) -> sqlx::Result<Applied> {
    let ours = "SELECT to_regclass('schema_migrations') IS NOT NULL";
    if !query_scalar::<_, bool>(ours).fetch_one(&mut *connection).await? {
        return Ok(None);
    }
    query_as(migrate::APPLIED).fetch_all(connection).await.map(Some)
}

fn up_to_date(applied: Applied, target: impl FnOnce() -> String) -> Result<(), StoreError> {
    let applied = applied.unwrap_or_default();
    let Some((found, _)) = applied.last() else {
        return Err(StoreError::Absent { target: target() });
    };
    if migrate::missing(&applied)?.is_empty() {
        return Ok(());
    }
    Err(StoreError::OlderSchema { found: *found, known: Migration::LATEST })
}
