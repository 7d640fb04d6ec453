//! A backup is intact or refused, and a restore loses neither the old database nor its WAL.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clock::Clock;
use sqlx::{Connection as _, query_scalar};
use store::{Migration, NewOrg, Store, StoreError, backup_sqlite, check_backup, restore};
use tempfile::TempDir;
use uuid::Uuid;

use crate::backend::{Backend, Raw};
use crate::world::{at, org};

fn with(path: &Path, suffix: &str) -> PathBuf {
    PathBuf::from(format!("{}{suffix}", path.display()))
}

async fn org_names(file: &Path) -> Vec<String> {
    let store = Store::open_sqlite(file, &Clock::system()).await.unwrap();
    store.orgs().await.unwrap().into_iter().map(|org| org.name).collect()
}

/// Everything in a directory, by name and content.
fn content(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = entries.map(|path| (path.clone(), fs::read(path).unwrap())).collect();
    files.sort();
    files
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_contains_every_write_before_it_without_gaps() {
    let backend = Backend::sqlite().await;
    let directory = TempDir::new().unwrap();
    let out = directory.path().join("backup.db");
    let stop = Arc::new(AtomicBool::new(false));
    // One after the other, so that the test detects a copy with a gap.
    let writing = tokio::spawn({
        let (store, stop) = (backend.store.clone(), stop.clone());
        async move {
            let mut done = 0_u32;
            while !stop.load(Ordering::SeqCst) {
                let org = NewOrg {
                    id: Uuid::from_u128(done.into()).into(),
                    name: done.to_string(),
                    at: at(done.into()),
                };
                store.create_org(org).await.unwrap();
                done += 1;
            }
            done
        }
    });
    while backend.store.orgs().await.unwrap().len() < 20 {
        tokio::task::yield_now().await;
    }
    let before = backend.store.orgs().await.unwrap().len();
    backup_sqlite(backend.file(), &out).await.unwrap();
    stop.store(true, Ordering::SeqCst);
    let written = usize::try_from(writing.await.unwrap()).unwrap();

    assert_eq!(check_backup(&out).await.unwrap(), Migration::LATEST);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing lies beside the backup");
    let copied = org_names(&out).await;
    assert!((before..=written).contains(&copied.len()), "{before} <= {} <= {written}", copied.len());
    assert_eq!(copied, (0..copied.len()).map(|number| number.to_string()).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_backup_never_overwrites_a_file() {
    let backend = Backend::sqlite().await;
    let directory = TempDir::new().unwrap();
    for (name, text) in [("notes", "mine"), ("empty", "")] {
        let out = directory.path().join(name);
        fs::write(&out, text).unwrap();
        let error = backup_sqlite(backend.file(), &out).await.unwrap_err();
        assert!(matches!(error, StoreError::File { .. }), "{error:?}");
        assert!(error.to_string().contains(&out.display().to_string()), "{error}");
        assert_eq!(fs::read_to_string(&out).unwrap(), text);
    }
    let nowhere = backup_sqlite(backend.file(), &directory.path().join("missing/backup.db")).await;
    assert!(matches!(nowhere, Err(StoreError::File { .. })), "{nowhere:?}");
}

#[tokio::test]
async fn a_backup_of_a_missing_database_creates_no_file() {
    let directory = TempDir::new().unwrap();
    let (file, out) = (directory.path().join("absent.db"), directory.path().join("backup.db"));
    let refused = backup_sqlite(&file, &out).await;
    assert!(matches!(refused, Err(StoreError::Absent { .. })), "{refused:?}");
    assert!(!file.exists() && !out.exists());
}

/// A database as a crash leaves it, whose last organization is only in the WAL, and an older backup of it.
async fn crashed(directory: &Path) -> (PathBuf, PathBuf) {
    let backend = Backend::sqlite().await;
    let (database, backup) = (directory.join("data.db"), directory.join("backup.db"));
    org(&backend.store, 1).await;
    backup_sqlite(backend.file(), &backup).await.unwrap();
    org(&backend.store, 2).await;
    for suffix in ["", "-wal"] {
        fs::copy(with(backend.file(), suffix), with(&database, suffix)).unwrap();
    }
    assert!(fs::metadata(with(&database, "-wal")).unwrap().len() > 0);
    (database, backup)
}

#[tokio::test]
async fn a_restore_keeps_the_old_database_with_its_wal() {
    let directory = TempDir::new().unwrap();
    let (database, backup) = crashed(directory.path()).await;
    let log = fs::read(with(&database, "-wal")).unwrap();
    let kept = restore(&backup, &database).await.unwrap().unwrap();
    assert_eq!(kept, with(&database, ".before-restore"));
    assert_eq!(fs::read(with(&kept, "-wal")).unwrap(), log);
    assert!(!with(&database, "-wal").exists(), "the old log would be replayed onto the backup");
    assert!(!with(&database, ".restoring").exists());
    assert_eq!(org_names(&database).await, ["org 1"]);
    assert_eq!(org_names(&kept).await, ["org 1", "org 2"]);
}

#[tokio::test]
async fn a_second_restore_keeps_the_database_that_the_first_one_saved() {
    let directory = TempDir::new().unwrap();
    let (database, backup) = crashed(directory.path()).await;
    let first = restore(&backup, &database).await.unwrap().unwrap();
    let second = restore(&backup, &database).await.unwrap().unwrap();
    assert_ne!(first, second);
    assert_eq!(org_names(&first).await, ["org 1", "org 2"]);
    assert_eq!(org_names(&second).await, ["org 1"]);
}

#[tokio::test]
async fn only_the_owner_can_read_a_restored_database() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = TempDir::new().unwrap();
    let (database, backup) = crashed(directory.path()).await;
    for open in [&backup, &with(&database, "-wal")] {
        fs::set_permissions(open, fs::Permissions::from_mode(0o644)).unwrap();
    }
    // The leftovers of an interrupted restore.
    fs::write(with(&database, ".restoring"), "half").unwrap();
    let kept = restore(&backup, &database).await.unwrap().unwrap();
    for file in [database.clone(), with(&kept, "-wal")] {
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600, "{}", file.display());
    }
    assert_eq!(org_names(&database).await, ["org 1"]);
}

/// A gateway that starts during a restore would create a new database if there were none.
#[tokio::test(flavor = "multi_thread")]
async fn there_is_a_database_at_every_moment_of_a_restore() {
    let directory = TempDir::new().unwrap();
    let (database, backup) = crashed(directory.path()).await;
    let stop = Arc::new(AtomicBool::new(false));
    let watching = std::thread::spawn({
        let (database, stop) = (database.clone(), stop.clone());
        move || {
            let (mut looks, mut gaps) = (0_u64, 0_u64);
            while !stop.load(Ordering::SeqCst) {
                looks += 1;
                gaps += u64::from(!database.exists());
            }
            (looks, gaps)
        }
    });
    for _ in 0..30 {
        restore(&backup, &database).await.unwrap();
    }
    stop.store(true, Ordering::SeqCst);
    let (looks, gaps) = watching.join().unwrap();
    assert!(looks > 30);
    assert_eq!(gaps, 0, "of {looks} looks");
}

#[tokio::test]
async fn a_restore_replaces_an_unreadable_database() {
    let directory = TempDir::new().unwrap();
    let (database, backup) = crashed(directory.path()).await;
    let damaged = "no database at all".repeat(500);
    for file in ["", "-wal", "-journal"] {
        fs::write(with(&database, file), &damaged).unwrap();
    }
    let kept = restore(&backup, &database).await.unwrap().unwrap();
    for file in ["", "-wal", "-journal"] {
        assert_eq!(fs::read_to_string(with(&kept, file)).unwrap(), damaged, "{file}");
        assert!(file.is_empty() || !with(&database, file).exists(), "{file}");
    }
    assert_eq!(org_names(&database).await, ["org 1"]);
}

#[tokio::test]
async fn a_restore_works_without_an_old_database_and_ignores_a_stale_wal() {
    let directory = TempDir::new().unwrap();
    let (database, backup) = crashed(directory.path()).await;
    fs::remove_file(&database).unwrap();
    assert_eq!(restore(&backup, &database).await.unwrap(), None);
    assert_eq!(org_names(&database).await, ["org 1"]);
    assert!(with(&database, ".before-restore-wal").exists(), "even a lonely log is kept");
}

/// A copy of a closed database is still in WAL mode; checking it must not create a WAL.
#[tokio::test]
async fn checking_a_backup_creates_no_files() {
    let backend = Backend::sqlite().await;
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("closed.db");
    backup_sqlite(backend.file(), &file).await.unwrap();
    let Raw::Sqlite(mut connection) = Raw::sqlite(&file).await else { unreachable!() };
    let mode: String = query_scalar("PRAGMA journal_mode = WAL").fetch_one(&mut connection).await.unwrap();
    assert_eq!(mode, "wal");
    connection.close().await.unwrap();

    let before = content(directory.path());
    assert_eq!(before.len(), 1);
    assert_eq!(check_backup(&file).await.unwrap(), Migration::LATEST);
    assert!(content(directory.path()) == before);
}

/// Files that must not be restored, each made from a good backup, and what the refusal says.
async fn bad_backups(directory: &Path, good: &Path) -> Vec<(PathBuf, String)> {
    let bytes = fs::read(good).unwrap();
    let file = |name: &str, content: &[u8]| {
        fs::write(directory.join(name), content).unwrap();
        directory.join(name)
    };
    let mut flipped = bytes.clone();
    flipped[8192..12288].fill(0xff);
    let mut bad = vec![
        (file("garbage", "not a database".repeat(500).as_bytes()), "not a database"),
        (file("half", &bytes[..bytes.len() / 2]), ""),
        (file("page-short", &bytes[..bytes.len() - 4096]), ""),
        (file("damaged", &flipped), ""),
        (file("nothing", b""), "schema_migrations"),
        (directory.join("missing"), "unable to open"),
        (directory.to_owned(), ""),
    ];
    let first = Migration::FIRST;
    let renumber = |to: i64| format!("UPDATE schema_migrations SET version = {to} WHERE version = {first}");
    let edited = format!("migration {first}");
    let changes = [
        ("foreign", "DROP TABLE schema_migrations".to_owned(), "schema_migrations"),
        ("prerelease", renumber(19), "version 19"),
        ("newer", renumber(99), "version 99"),
        ("edited", "UPDATE schema_migrations SET checksum = 'x'".to_owned(), &*edited),
        ("fresh", "DELETE FROM schema_migrations".to_owned(), "no migration"),
    ];
    for (name, sql, why) in changes {
        let path = file(name, &bytes);
        Raw::sqlite(&path).await.execute(&sql).await.unwrap();
        bad.push((path, why));
    }
    let in_use = file("in-use", &bytes);
    file("in-use-wal", b"frames");
    bad.push((in_use, "in use"));
    bad.into_iter().map(|(path, why)| (path, why.to_owned())).collect()
}

#[tokio::test]
async fn an_invalid_backup_is_refused_and_changes_nothing() {
    let (home, elsewhere) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (database, backup) = crashed(home.path()).await;
    for (bad, why) in bad_backups(elsewhere.path(), &backup).await {
        let before = (content(home.path()), content(elsewhere.path()));
        let checked = check_backup(&bad).await.unwrap_err().to_string();
        assert!(checked.contains(&why), "{}: {checked}", bad.display());
        let restored = restore(&bad, &database).await.unwrap_err().to_string();
        assert_eq!(restored, checked, "{}", bad.display());
        let after = (content(home.path()), content(elsewhere.path()));
        assert!(after == before, "{} changed something", bad.display());
    }
}
