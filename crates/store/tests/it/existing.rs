//! Opening an existing database without changing it, and what a closed one contains.

use std::fs;
use std::path::{Path, PathBuf};

use store::{Migration, NewOrg, Store, StoreError, backup_sqlite};
use tempfile::TempDir;
use uuid::Uuid;

use crate::backend::{Backend, Place, on_both};
use crate::world::{at, org};

on_both! {
    open_existing_does_not_migrate
    a_newer_or_foreign_schema_is_refused
    closing_a_store_closes_all_its_clones
}

async fn open_existing_does_not_migrate(b: &Backend) {
    org(&b.store, 1).await;
    let again = b.open_existing().await.unwrap();
    again.ping().await.unwrap();
    assert_eq!(again.orgs().await.unwrap().len(), 1);
    org(&again, 2).await;
    assert_eq!(b.store.orgs().await.unwrap().len(), 2);

    let last = format!("DELETE FROM schema_migrations WHERE version = {}", Migration::LATEST);
    b.raw().await.execute(&last).await.unwrap();
    let error = b.open_existing().await.err().unwrap();
    // Numbers may have gaps. While there is only one migration, no database is older.
    if let [.., before, latest] = Migration::ALL {
        let (found, known) = (before.version, latest.version);
        assert!(matches!(error, StoreError::OlderSchema { found: f, known: k } if (f, k) == (found, known)));
        let text = error.to_string();
        assert!(
            text.contains(&format!("version {found},")) && text.contains("proliferate db migrate"),
            "{text}"
        );
    } else {
        assert!(matches!(error, StoreError::Absent { .. }), "{error:?}");
    }
    let steps = b.raw().await.number("SELECT count(*) FROM schema_migrations").await;
    assert_eq!(steps + 1, i64::try_from(Migration::ALL.len()).unwrap(), "nothing was migrated");

    b.raw().await.execute("DELETE FROM schema_migrations").await.unwrap();
    assert!(matches!(b.open_existing().await, Err(StoreError::Absent { .. })));
}

async fn a_newer_or_foreign_schema_is_refused(b: &Backend) {
    let newer = "INSERT INTO schema_migrations VALUES (99, 'later', 'x', '2030-01-01')";
    b.raw().await.execute(newer).await.unwrap();
    assert!(matches!(b.open_existing().await, Err(StoreError::NewerSchema { found: 99, .. })));
    b.raw().await.execute("UPDATE schema_migrations SET checksum = 'x'").await.unwrap();
    let foreign = b.open_existing().await;
    assert!(matches!(foreign, Err(StoreError::ForeignSchema { version }) if version == Migration::FIRST));
}

fn names(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[tokio::test]
async fn open_existing_creates_no_file() {
    let directory = TempDir::new().unwrap();
    for file in [directory.path().join("data.db"), directory.path().join("missing/data.db")] {
        let error = Store::open_existing_sqlite(&file).await.err().unwrap();
        assert!(
            matches!(&error, StoreError::Absent { target } if *target == file.display().to_string()),
            "{error:?}"
        );
        let text = error.to_string();
        assert!(text.contains("proliferate up") && text.contains("proliferate db migrate"), "{text}");
        assert!(names(directory.path()).is_empty(), "something was left behind");
    }
}

#[tokio::test]
async fn a_file_that_is_not_our_database_stays_unchanged() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("data.db");
    for (content, absent) in [(String::new(), true), ("Dear diary, ".repeat(1_000), false)] {
        fs::write(&file, &content).unwrap();
        let error = Store::open_existing_sqlite(&file).await.err().unwrap();
        assert_eq!(matches!(error, StoreError::Absent { .. }), absent, "{error:?}");
        assert_eq!(matches!(error, StoreError::Unreachable { .. }), !absent, "{error:?}");
        assert_eq!(fs::read_to_string(&file).unwrap(), content);
        assert_eq!(names(directory.path()).len(), 1, "something was left behind");
    }
}

#[tokio::test]
async fn open_existing_creates_no_schema_on_an_empty_server() {
    let place = Place::postgres().await;
    let error = Store::open_existing_postgres(&place.url()).await.err().unwrap();
    assert!(matches!(&error, StoreError::Absent { .. }), "{error:?}");
    let tables = "SELECT count(*) FROM information_schema.tables WHERE table_schema = 'public'";
    assert_eq!(place.raw().await.number(tables).await, 0);

    let nowhere =
        Store::open_existing_postgres("postgres://ada:hunter2@127.0.0.1:1/app").await.err().unwrap();
    assert!(matches!(nowhere, StoreError::Unreachable { .. }), "{nowhere:?}");
    assert!(!format!("{nowhere} {nowhere:?}").contains("hunter2"), "{nowhere}");
}

/// A restored backup is not in WAL mode until it is opened.
#[tokio::test]
async fn opening_a_backup_switches_wal_mode_on() {
    let backend = Backend::sqlite().await;
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("data.db");
    backup_sqlite(backend.file(), &file).await.unwrap();
    let store = Store::open_existing_sqlite(&file).await.unwrap();
    org(&store, 1).await;
    assert!(fs::metadata(directory.path().join("data.db-wal")).unwrap().len() > 0);
}

async fn closing_a_store_closes_all_its_clones(b: &Backend) {
    let other = b.reopen().await.unwrap();
    let clone = other.clone();
    org(&other, 1).await;
    other.close().await;
    assert!(clone.orgs().await.is_err() && clone.ping().await.is_err());
    let late = NewOrg { id: Uuid::from_u128(2).into(), name: "late".to_owned(), at: at(2) };
    assert!(clone.create_org(late).await.is_err());
    clone.close().await; // once more harms nothing
    assert_eq!(b.store.orgs().await.unwrap().len(), 1, "whoever opened it for himself is not touched");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_file_has_all_acknowledged_writes_without_its_wal() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("data.db");
    let store = Store::open_sqlite(&file, &clock::Clock::system()).await.unwrap();
    assert!(store.orgs().await.unwrap().is_empty());
    let writes: Vec<_> = (0..2_000_u128)
        .map(|number| {
            let store = store.clone();
            let org = NewOrg { id: Uuid::from_u128(number).into(), name: number.to_string(), at: at(0) };
            tokio::spawn(async move { store.create_org(org).await })
        })
        .collect();
    while store.orgs().await.unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    store.clone().close().await;
    let copy = directory.path().join("copy.db");
    fs::copy(&file, &copy).unwrap();
    assert!(fs::metadata(directory.path().join("data.db-wal")).map_or(0, |log| log.len()) == 0);

    let mut done = 0;
    for write in writes {
        match write.await.unwrap() {
            Ok(()) => done += 1,
            Err(error) => assert!(error.to_string().contains("the writer has stopped"), "{error}"),
        }
    }
    let late = NewOrg { id: Uuid::from_u128(9_999).into(), name: "late".to_owned(), at: at(0) };
    let error = store.create_org(late).await.unwrap_err().to_string();
    assert!(error.contains("the writer has stopped"), "{error}");
    let copied = Store::open_existing_sqlite(&copy).await.unwrap();
    assert_eq!(copied.orgs().await.unwrap().len(), done);
}
