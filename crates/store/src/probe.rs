//! Reads the schema version of a database without changing the database.

use std::path::Path;

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{Connection as _, query_scalar};

use crate::{Migration, StoreError, postgres};

const VERSION: &str = "SELECT max(version) FROM schema_migrations";

/// What schema a database has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schema {
    /// None of ours yet.
    Absent,
    Version(i64),
}

pub async fn probe_sqlite(file: &Path) -> Result<Schema, StoreError> {
    if !file.exists() {
        return Ok(Schema::Absent);
    }
    let unreachable = |error: sqlx::Error| StoreError::Unreachable {
        target: file.display().to_string(),
        reason: error.to_string(),
        remedy: crate::existing::remedy(file),
    };
    let options = SqliteConnectOptions::new().filename(file).read_only(true);
    let mut connection = SqliteConnection::connect_with(&options).await.map_err(unreachable)?;
    let ours = "SELECT count(*) FROM sqlite_master WHERE name = 'schema_migrations'";
    let tables: i64 = query_scalar(ours).fetch_one(&mut connection).await.map_err(unreachable)?;
    if tables == 0 {
        return Ok(Schema::Absent);
    }
    let version: Option<i64> = query_scalar(VERSION).fetch_one(&mut connection).await.map_err(unreachable)?;
    schema(version)
}

pub async fn probe_postgres(url: &str) -> Result<Schema, StoreError> {
    let (_, mut connection) = postgres::connect(url).await?;
    let ours = "SELECT to_regclass('schema_migrations') IS NOT NULL";
    if !query_scalar::<_, bool>(ours).fetch_one(&mut connection).await? {
        return Ok(Schema::Absent);
    }
    let version: Option<i64> = query_scalar(VERSION).fetch_one(&mut connection).await?;
    schema(version)
}

fn schema(version: Option<i64>) -> Result<Schema, StoreError> {
    match version {
        None => Ok(Schema::Absent),
        Some(found) if found < Migration::FIRST => Err(StoreError::UnsupportedSchema { found }),
        Some(version) => Ok(Schema::Version(version)),
    }
}
