//! Brings a database to the schema of this program.
//!
//! All missing migrations run in one transaction behind a lock of the database, so that several processes may open it at
//! once and a failure halfway leaves nothing.

use std::time::Duration;

use clock::Clock;
use sqlx::postgres::PgConnection;
use sqlx::sqlite::SqliteConnection;
use sqlx::{AssertSqlSafe, Connection as _, raw_sql};

use crate::dialect::Dialect;
use crate::{StoreError, describe_url};

/// One step of the schema. Never edited once it has been released: the database remembers its text.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    pub version: i64,
    pub name: &'static str,
    pub text: &'static str,
}

impl Migration {
    /// All steps, in order.
    pub const ALL: &[Self] =
        &[Self { version: 35, name: "schema", text: include_str!("../migrations/0035_schema.sql") }];

    /// The first version that this program can read. Earlier ones existed only before the first release.
    pub const FIRST: i64 = Self::ALL[0].version;

    /// The schema version of this program.
    pub const LATEST: i64 = Self::ALL[Self::ALL.len() - 1].version;

    /// FNV-1a of the text: tells an edited migration from the one that ran. Not a defence against anybody.
    fn checksum(&self) -> String {
        let hash = self.text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        format!("{hash:016x}")
    }
}

const CREATE_MIGRATIONS_TABLE: &str = "CREATE TABLE IF NOT EXISTS schema_migrations (
    version BIGINT PRIMARY KEY,
    name TEXT NOT NULL,
    checksum TEXT NOT NULL,
    applied_at TEXT NOT NULL
);
";

/// The key of the advisory lock, which is arbitrary. Processes that open the database at once queue up behind the
/// lock.
const POSTGRES_LOCK: &str = "SELECT pg_advisory_xact_lock(7212170411)";

/// How long a start waits for another start, or for a lock of a table that it must change.
const POSTGRES_PATIENCE: Duration = Duration::from_secs(30);

/// Records that a migration has run; the same text on both databases.
macro_rules! record {
    ($migration:expr, $clock:expr, $connection:expr) => {
        sqlx::query(
            "INSERT INTO schema_migrations (version, name, checksum, applied_at) VALUES ($1, $2, $3, $4)",
        )
        .bind($migration.version)
        .bind($migration.name)
        .bind($migration.checksum())
        .bind($clock.now().to_rfc3339())
        .execute($connection)
        .await?
    };
}

pub(crate) async fn sqlite(connection: &mut SqliteConnection, clock: &Clock) -> Result<(), StoreError> {
    // Opening a database that is up to date takes no write lock.
    if let Ok(done) = applied_sqlite(connection).await
        && missing(&done)?.is_empty()
    {
        return Ok(());
    }
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    raw_sql(AssertSqlSafe(Dialect::Sqlite.render(CREATE_MIGRATIONS_TABLE)))
        .execute(&mut *transaction)
        .await?;
    let done = applied_sqlite(&mut transaction).await?;
    for migration in missing(&done)? {
        let sql = Dialect::Sqlite.render(migration.text);
        raw_sql(AssertSqlSafe(sql)).execute(&mut *transaction).await?;
        record!(migration, clock, &mut *transaction);
    }
    transaction.commit().await?;
    Ok(())
}

pub(crate) async fn postgres(connection: &mut PgConnection, clock: &Clock) -> Result<(), StoreError> {
    postgres_within(POSTGRES_PATIENCE, connection, clock).await
}

async fn postgres_within(
    patience: Duration,
    connection: &mut PgConnection,
    clock: &Clock,
) -> Result<(), StoreError> {
    let mut transaction = connection.begin().await?;
    let patience = format!("SET LOCAL lock_timeout = '{}ms'", patience.as_millis());
    raw_sql(AssertSqlSafe(patience)).execute(&mut *transaction).await?;
    raw_sql(POSTGRES_LOCK).execute(&mut *transaction).await?;
    raw_sql(CREATE_MIGRATIONS_TABLE).execute(&mut *transaction).await?;
    let done = sqlx::query_as(SELECT_APPLIED).fetch_all(&mut *transaction).await?;
    for migration in missing(&done)? {
        let sql = Dialect::Postgres.render(migration.text);
        raw_sql(AssertSqlSafe(sql)).execute(&mut *transaction).await?;
        record!(migration, clock, &mut *transaction);
    }
    transaction.commit().await?;
    Ok(())
}

/// Turns a lock timeout of a migration into an error that says what to do.
pub(crate) fn explain_lock_timeout(error: StoreError, url: &str) -> StoreError {
    const LOCK_NOT_AVAILABLE: &str = "55P03";
    match &error {
        StoreError::Failed(sqlx::Error::Database(e)) if e.code().as_deref() == Some(LOCK_NOT_AVAILABLE) => {
            StoreError::Unreachable {
                target: describe_url(url),
                reason: format!(
                    "another process has held a lock that the migration needs for {} s",
                    POSTGRES_PATIENCE.as_secs()
                ),
                remedy: "End the stuck start or query (pg_stat_activity shows it) and start again.",
            }
        }
        _ => error,
    }
}

pub(crate) const SELECT_APPLIED: &str = "SELECT version, checksum FROM schema_migrations ORDER BY version";

async fn applied_sqlite(connection: &mut SqliteConnection) -> sqlx::Result<Vec<(i64, String)>> {
    sqlx::query_as(SELECT_APPLIED).fetch_all(connection).await
}

/// The steps that have not run yet. Fails if a step has run that this program does not have.
pub(crate) fn missing(done: &[(i64, String)]) -> Result<Vec<Migration>, StoreError> {
    if let Some((found, _)) = done.iter().rfind(|(version, _)| *version < Migration::FIRST) {
        return Err(StoreError::UnsupportedSchema { found: *found });
    }
    for (version, checksum) in done {
        match Migration::ALL.iter().find(|migration| migration.version == *version) {
            None => {
                let found = done.last().map_or(*version, |(last, _)| *last);
                return Err(StoreError::NewerSchema { found, known: Migration::LATEST });
            }
            Some(known) if known.checksum() != *checksum => {
                return Err(StoreError::ForeignSchema { version: *version });
            }
            Some(_) => {}
        }
    }
    Ok(Migration::ALL
        .iter()
        .filter(|m| !done.iter().any(|(version, _)| *version == m.version))
        .copied()
        .collect())
}

/// The migrations that ran in a database, or `None` if it has no schema of ours.
pub(crate) type AppliedMigrations = Option<Vec<(i64, String)>>;

/// The schema of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schema {
    /// The database has no schema of ours yet.
    Absent,
    Version(i64),
}

/// The schema of a database, unless it is from before the first release.
pub(crate) fn schema_of(applied: AppliedMigrations) -> Result<Schema, StoreError> {
    match applied.unwrap_or_default().last() {
        None => Ok(Schema::Absent),
        Some((found, _)) if *found < Migration::FIRST => Err(StoreError::UnsupportedSchema { found: *found }),
        Some((version, _)) => Ok(Schema::Version(*version)),
    }
}

/// Fails unless the database has exactly the schema of this program.
pub(crate) fn require_latest(
    applied: AppliedMigrations,
    target: impl FnOnce() -> String,
) -> Result<(), StoreError> {
    let applied = applied.unwrap_or_default();
    let Some((found, _)) = applied.last() else {
        return Err(StoreError::Absent { target: target() });
    };
    if missing(&applied)?.is_empty() {
        return Ok(());
    }
    Err(StoreError::OlderSchema { found: *found, known: Migration::LATEST })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The migration takes its lock before it creates anything.
    #[tokio::test]
    #[expect(clippy::disallowed_methods, reason = "the test run names its server in the environment")]
    async fn a_start_that_cannot_get_the_migration_lock_fails_with_a_remedy() {
        let url = std::env::var("TEST_DATABASE_URL").unwrap();
        let mut holder = PgConnection::connect(&url).await.unwrap();
        let mut held = holder.begin().await.unwrap();
        raw_sql(POSTGRES_LOCK).execute(&mut *held).await.unwrap();

        let mut connection = PgConnection::connect(&url).await.unwrap();
        let (short, clock) = (Duration::from_millis(100), Clock::system());
        let starting = postgres_within(short, &mut connection, &clock);
        let ended = tokio::time::timeout(Duration::from_secs(10), starting).await.unwrap();
        let error = explain_lock_timeout(ended.unwrap_err(), "postgres://ada:hunter2@db.example.com/app");
        let text = error.to_string();
        assert!(matches!(error, StoreError::Unreachable { .. }), "{text}");
        assert!(text.contains("postgres://ada@db.example.com:5432/app") && text.contains("lock"), "{text}");
        assert!(text.contains("pg_stat_activity") && !text.contains("hunter2"), "{text}");
    }
}
