//! Opens a PostgreSQL database: migrates it for a gateway, or takes it as it is for commands that only use it.

use std::str::FromStr as _;
use std::sync::Arc;

use clock::Clock;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{Connection as _, query_as, query_scalar};
use tokio::time::timeout;

use super::Postgres;
use super::lookup_batcher::LookupBatchers;
use crate::db::{ACQUIRE_TIMEOUT, Db};
use crate::gate::WriteQueue;
use crate::migrate::{self, AppliedMigrations};
use crate::{Schema, Store, StoreError};

impl Store {
    /// Connects to PostgreSQL and migrates the database.
    pub async fn open_postgres(url: &str, clock: &Clock) -> Result<Self, StoreError> {
        let (options, mut connection) = connect(url).await?;
        migrate::postgres(&mut connection, clock)
            .await
            .map_err(|error| migrate::explain_lock_timeout(error, url))?;
        connection.close().await?;
        Ok(Self::postgres(options))
    }

    /// Connects to PostgreSQL if the database has the schema of this program.
    pub async fn open_existing_postgres(url: &str) -> Result<Self, StoreError> {
        let (options, mut connection) = connect(url).await?;
        let applied = applied_migrations(&mut connection).await?;
        connection.close().await?;
        migrate::require_latest(applied, || describe_url(url))?;
        Ok(Self::postgres(options))
    }

    /// The store of a database with the right schema.
    fn postgres(options: PgConnectOptions) -> Self {
        let postgres = Postgres::new(options);
        let lookups = Some(Arc::new(LookupBatchers::start(&postgres)));
        let gate = WriteQueue::postgres(postgres.clone());
        Self { gate, lookups, record: None, db: Db::Postgres(postgres) }
    }
}

/// Reads the schema version of a database without changing it.
pub async fn probe_postgres(url: &str) -> Result<Schema, StoreError> {
    let (_, mut connection) = connect(url).await?;
    migrate::schema_of(applied_migrations(&mut connection).await?)
}

async fn applied_migrations(connection: &mut PgConnection) -> sqlx::Result<AppliedMigrations> {
    let ours = "SELECT to_regclass('schema_migrations') IS NOT NULL";
    if !query_scalar::<_, bool>(ours).fetch_one(&mut *connection).await? {
        return Ok(None);
    }
    query_as(migrate::SELECT_APPLIED).fetch_all(connection).await.map(Some)
}

/// Opens one connection, within a few seconds.
pub(super) async fn connect(url: &str) -> Result<(PgConnectOptions, PgConnection), StoreError> {
    let unreachable = |error: sqlx::Error| StoreError::Unreachable {
        target: describe_url(url),
        reason: error.to_string(),
        remedy: "Start PostgreSQL or correct DATABASE_URL.",
    };
    let options = PgConnectOptions::from_str(url).map_err(unreachable)?;
    let connecting = timeout(ACQUIRE_TIMEOUT, PgConnection::connect_with(&options));
    let connection = connecting.await.unwrap_or(Err(sqlx::Error::PoolTimedOut)).map_err(unreachable)?;
    Ok((options, connection))
}

/// A database URL without its password.
pub fn describe_url(url: &str) -> String {
    let Ok(options) = PgConnectOptions::from_str(url) else {
        return "postgres://(not a valid URL)".to_owned();
    };
    let database = options.get_database().unwrap_or_default();
    format!("postgres://{}@{}:{}/{database}", options.get_username(), options.get_host(), options.get_port())
}
