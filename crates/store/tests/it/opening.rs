//! Opening a database: the first process creates it, concurrent ones wait, and a foreign database is refused.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clock::Clock;
use store::{Migration, Store, StoreError, describe_url};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::backend::{Backend, Place, on_both};
use crate::world::{org, together};

on_both! {
    a_second_start_changes_nothing
    a_newer_schema_is_refused
    a_schema_from_before_the_first_release_is_refused
    an_edited_migration_is_refused
}

const SELECT_APPLIED: &str =
    "SELECT version || ' ' || checksum || ' ' || applied_at FROM schema_migrations ORDER BY version";

#[tokio::test(flavor = "multi_thread")]
async fn six_processes_can_create_a_sqlite_file_at_once() {
    for _ in 0..5 {
        opened_by_six(Place::sqlite()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn six_processes_can_create_a_postgres_schema_at_once() {
    opened_by_six(Place::postgres().await).await;
}

async fn opened_by_six(place: Place) {
    let place = Arc::new(place);
    let stores = together(6, |_| {
        let place = place.clone();
        async move { place.open().await }
    })
    .await;
    for (number, store) in (1..).zip(stores) {
        org(&store.unwrap(), number).await;
    }
    assert_eq!(place.raw().await.texts(SELECT_APPLIED).await.len(), Migration::ALL.len());
}

async fn a_second_start_changes_nothing(b: &Backend) {
    org(&b.store, 1).await;
    let before = b.raw().await.texts(SELECT_APPLIED).await;
    let again = b.reopen().await.unwrap();
    again.ping().await.unwrap();
    assert_eq!(again.orgs().await.unwrap().len(), 1);
    assert_eq!(b.raw().await.texts(SELECT_APPLIED).await, before);
    assert_eq!(before.len(), Migration::ALL.len());
}

async fn a_newer_schema_is_refused(b: &Backend) {
    let newer = Migration::LATEST + 3;
    let sql = format!("INSERT INTO schema_migrations VALUES ({newer}, 'later', 'x', '2030-01-01')");
    b.raw().await.execute(&sql).await.unwrap();
    let error = b.reopen().await.err().unwrap();
    let known = Migration::LATEST;
    assert!(
        matches!(error, StoreError::NewerSchema { found, known: k } if found == newer && k == known),
        "{error:?}"
    );
    let text = error.to_string();
    assert!(
        text.contains(&format!("version {newer},")) && text.contains(&format!("up to {known}:")),
        "{text}"
    );
}

async fn an_edited_migration_is_refused(b: &Backend) {
    b.raw().await.execute("UPDATE schema_migrations SET checksum = 'x'").await.unwrap();
    let error = b.reopen().await.err().unwrap();
    assert!(
        matches!(error, StoreError::ForeignSchema { version } if version == Migration::FIRST),
        "{error:?}"
    );
    for named in [&format!("migration {}", Migration::FIRST), "start the program that created the database"] {
        assert!(error.to_string().contains(named), "{error}");
    }
}

async fn a_schema_from_before_the_first_release_is_refused(b: &Backend) {
    let later = format!("DELETE FROM schema_migrations WHERE version > {}", Migration::FIRST);
    b.raw().await.execute(&later).await.unwrap();
    let older = Migration::FIRST - 1;
    let sql = format!("UPDATE schema_migrations SET version = {older}, name = 'integrations'");
    b.raw().await.execute(&sql).await.unwrap();
    let before = b.raw().await.texts(SELECT_APPLIED).await;
    for error in [b.reopen().await.err().unwrap(), b.open_existing().await.err().unwrap()] {
        assert!(matches!(error, StoreError::UnsupportedSchema { found } if found == older), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(&format!("version {older},")) && text.contains("cannot read it"), "{text}");
        assert!(text.contains("move the data dir away") && text.contains("DATABASE_URL"), "{text}");
    }
    assert_eq!(b.raw().await.texts(SELECT_APPLIED).await, before, "the database stays as it is");
}

#[tokio::test]
async fn a_failed_migration_leaves_nothing() {
    let sqlite = "SELECT name FROM sqlite_schema WHERE type = 'table'";
    let postgres = "SELECT table_name::text FROM information_schema.tables WHERE table_schema = 'public'";
    for (place, tables) in [(Place::sqlite(), sqlite), (Place::postgres().await, postgres)] {
        let mut raw = place.raw().await;
        raw.execute("CREATE TABLE override_grants (mine BIGINT)").await.unwrap(); // stands in the way of a later table
        let error = place.open().await.err().unwrap();
        assert!(error.to_string().contains("override_grants"), "{error}");
        assert_eq!(raw.texts(tables).await, ["override_grants"]);
        raw.execute("DROP TABLE override_grants").await.unwrap();
        place.open().await.unwrap().ping().await.unwrap();
    }
}

/// Tries to open something that is not a database and returns the error's text; the directory must stay unchanged.
async fn open_error(file: &Path) -> String {
    let directory = file.parent().unwrap();
    let before = names(directory);
    let error = Store::open_sqlite(file, &Clock::system()).await.err().unwrap();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains(&file.display().to_string()), "{text}");
    assert_eq!(names(directory), before, "something was left behind");
    text
}

fn names(directory: &Path) -> Vec<PathBuf> {
    let mut names: Vec<_> =
        fs::read_dir(directory).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_file_of_another_format_is_refused_and_stays() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("notes.txt");
    let text = "Dear diary, ".repeat(1_000);
    fs::write(&file, &text).unwrap();
    open_error(&file).await;
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
}

#[tokio::test]
async fn a_directory_in_place_of_the_file_is_refused() {
    let directory = TempDir::new().unwrap();
    fs::create_dir(directory.path().join("data.db")).unwrap();
    open_error(&directory.path().join("data.db")).await;
}

#[tokio::test]
async fn a_missing_directory_is_refused() {
    let directory = TempDir::new().unwrap();
    open_error(&directory.path().join("missing").join("data.db")).await;
    assert!(names(directory.path()).is_empty());
}

#[tokio::test]
async fn a_read_only_directory_is_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = TempDir::new().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o555)).unwrap();
    // Root ignores permissions, so a file system without regular files is used instead.
    let is_root = fs::write(directory.path().join("probe"), "").is_ok();
    let closed = if is_root { Path::new("/proc/self/net") } else { directory.path() };
    let file = closed.join("data.db");
    let error = Store::open_sqlite(&file, &Clock::system()).await.err().unwrap();
    assert!(
        matches!(&error, StoreError::Unreachable { target, .. } if *target == file.display().to_string())
    );
    assert!(!file.exists());
}

#[tokio::test]
async fn an_unreachable_server_is_named_without_its_password() {
    let url = "postgres://ada:hunter2@127.0.0.1:1/app";
    let error = Store::open_postgres(url, &Clock::system()).await.err().unwrap();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
    for text in [error.to_string(), format!("{error:?}")] {
        assert!(text.contains("postgres://ada@127.0.0.1:1/app"), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
    }
}

/// The private server of a test run trusts everybody, so this fake server rejects the password.
#[tokio::test]
async fn a_wrong_password_is_not_repeated() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let length = socket.read_u32().await.unwrap();
        socket.read_exact(&mut vec![0; usize::try_from(length).unwrap() - 4]).await.unwrap();
        let fields = b"SFATAL\0VFATAL\0C28P01\0Mpassword authentication failed for user \"ada\"\0\0";
        socket.write_u8(b'E').await.unwrap();
        socket.write_u32(u32::try_from(fields.len() + 4).unwrap()).await.unwrap();
        socket.write_all(fields).await.unwrap();
    });
    let url = format!("postgres://ada:hunter2@127.0.0.1:{port}/app?sslmode=disable");
    let error = Store::open_postgres(&url, &Clock::system()).await.err().unwrap();
    server.await.unwrap();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
    for text in [error.to_string(), format!("{error:?}")] {
        assert!(text.contains("password authentication failed"), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
    }
}

#[tokio::test]
async fn an_invalid_url_is_not_repeated() {
    for url in ["postgres://ada:hunter2@host:port/app", "hunter2", "postgres://ada:hunter2@[::1/app"] {
        let error = Store::open_postgres(url, &Clock::system()).await.err().unwrap();
        assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        assert_eq!(describe_url(url), "postgres://(not a valid URL)");
    }
    let described = describe_url("postgres://ada@db.example.com/app?password=hunter2");
    assert_eq!(described, "postgres://ada@db.example.com:5432/app");
}

#[tokio::test]
async fn only_the_owner_can_read_a_new_database_and_its_wal() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let _store = Store::open_sqlite(&dir.path().join("a.db"), &Clock::system()).await.unwrap();
    for entry in fs::read_dir(dir.path()).unwrap().map(Result::unwrap) {
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{:?}", entry.file_name());
    }
}
