//! Probing a database returns its schema version and changes nothing.

use std::fs;

use store::{Migration, Schema, StoreError, probe_postgres, probe_sqlite};
use tempfile::TempDir;

use crate::backend::{Backend, Place};

#[tokio::test]
async fn probing_sqlite_returns_the_schema_version() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("data.db");
    assert_eq!(probe_sqlite(&file).await.unwrap(), Schema::Absent);
    assert!(!file.exists(), "a look makes no file");
    fs::write(&file, "").unwrap();
    assert_eq!(probe_sqlite(&file).await.unwrap(), Schema::Absent);
    assert_eq!(fs::metadata(&file).unwrap().len(), 0);

    let text = "Dear diary, ".repeat(1_000);
    fs::write(&file, &text).unwrap();
    let error = probe_sqlite(&file).await.unwrap_err();
    assert!(
        matches!(&error, StoreError::Unreachable { target, .. } if *target == file.display().to_string())
    );
    assert_eq!(fs::read_to_string(&file).unwrap(), text);

    let backend = Backend::sqlite().await;
    assert_eq!(probe_sqlite(backend.file()).await.unwrap(), Schema::Version(Migration::LATEST));
    let newer = "UPDATE schema_migrations SET version = 99 WHERE version = (SELECT max(version) FROM schema_migrations)";
    backend.raw().await.execute(newer).await.unwrap();
    assert_eq!(probe_sqlite(backend.file()).await.unwrap(), Schema::Version(99));
    let older =
        "UPDATE schema_migrations SET version = version - (SELECT max(version) FROM schema_migrations) + 19";
    backend.raw().await.execute(older).await.unwrap();
    let error = probe_sqlite(backend.file()).await.unwrap_err();
    assert!(matches!(error, StoreError::UnsupportedSchema { found: 19 }), "{error:?}");
}

#[tokio::test]
async fn probing_sqlite_leaves_no_wal() {
    let backend = Backend::sqlite().await;
    backend.store.clone().close().await;
    let file = backend.file();
    assert_eq!(probe_sqlite(file).await.unwrap(), Schema::Version(Migration::LATEST));
    let names = fs::read_dir(file.parent().unwrap()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.collect::<Vec<_>>(), [file.file_name().unwrap()]);
}

#[tokio::test]
async fn probing_postgres_returns_the_schema_version() {
    let place = Place::postgres().await;
    assert_eq!(probe_postgres(&place.url()).await.unwrap(), Schema::Absent);
    assert_eq!(probe_postgres(&place.url()).await.unwrap(), Schema::Absent, "the first look made no table");
    place.open().await.unwrap();
    assert_eq!(probe_postgres(&place.url()).await.unwrap(), Schema::Version(Migration::LATEST));

    let error = probe_postgres("postgres://ada:hunter2@127.0.0.1:1/app").await.unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
}
