//! Backs up a SQLite database while it is in use, and restores it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{Connection as _, query, query_as, query_scalar};

use crate::{StoreError, migrate};

/// Writes a copy of the database in `file` to `out`, which must not exist. Works while a gateway runs, and with any
/// schema version, because a backup before an upgrade has the old one.
pub async fn backup_sqlite(file: &Path, out: &Path) -> Result<(), StoreError> {
    if !file.exists() {
        return Err(StoreError::Absent { target: file.display().to_string() });
    }
    let target = out.to_str().ok_or(StoreError::Refused("the path of a backup must be UTF-8"))?;
    let fail = |source| StoreError::File { what: format!("cannot write the backup {target}"), source };
    // SQLite accepts an existing empty file. Creating it here refuses any other file and sets its permissions.
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(out).map_err(fail)?;
    let copied = async {
        let options = SqliteConnectOptions::new().filename(file);
        let mut connection = SqliteConnection::connect_with(&options).await?;
        query("VACUUM INTO $1").bind(target).execute(&mut connection).await?;
        connection.close().await
    };
    let written = match copied.await {
        Ok(()) => made.sync_all().map_err(fail),
        Err(error) => Err(StoreError::Failed(error)),
    };
    if written.is_err() {
        let _ = fs::remove_file(out);
    }
    written
}

/// Checks that `backup` is an intact database that this program can read; returns its schema version.
pub async fn check_backup(backup: &Path) -> Result<i64, StoreError> {
    let refuse = |error: sqlx::Error| StoreError::Unreachable {
        target: backup.display().to_string(),
        reason: error.to_string(),
        remedy: "Name a file that `proliferate db backup` wrote.",
    };
    if fs::metadata(with_suffix(backup, "-wal")).is_ok_and(|log| log.len() > 0) {
        return Err(StoreError::Refused("the backup is a database in use: its WAL is beside it"));
    }
    // Immutable: SQLite reads exactly this file, and creates no journal next to it.
    let options = SqliteConnectOptions::new().filename(backup).read_only(true).immutable(true);
    let mut connection = SqliteConnection::connect_with(&options).await.map_err(refuse)?;
    let health: String =
        query_scalar("PRAGMA integrity_check").fetch_one(&mut connection).await.map_err(refuse)?;
    if health != "ok" {
        return Err(StoreError::Refused("the backup is damaged: its integrity check failed"));
    }
    let done: Vec<(i64, String)> =
        query_as(migrate::SELECT_APPLIED).fetch_all(&mut connection).await.map_err(refuse)?;
    connection.close().await.map_err(refuse)?;
    migrate::missing(&done)?;
    let last = done.last().ok_or(StoreError::Refused("the backup is empty: no migration ever ran in it"))?;
    Ok(last.0)
}

/// Replaces the database with a backup, if the backup is intact. Nobody may have the database open.
/// The old database is kept next to it; its path is returned.
///
/// Whenever the machine stops, an intact database is in place: the old one or the backup.
/// 1. The backup is copied beside the database and fsynced. A stop leaves the old database, and a partial copy that the next
///    restore overwrites.
/// 2. The old WAL is copied, then SQLite checkpoints it. A stop leaves the old database, with a WAL or without need of one.
///    This comes before the rename because SQLite replays any WAL beside a file: the backup must never be next to the old
///    WAL, and the old file never without it.
/// 3. The old file gets a second name. A stop leaves the old database under both names.
/// 4. The copy is renamed over the database, which is atomic.
pub async fn restore(backup: &Path, database: &Path) -> Result<Option<PathBuf>, StoreError> {
    check_backup(backup).await?;
    let part = with_suffix(database, ".restoring");
    let kept = unused_file_name(database);
    let exchanged = async {
        copy_private(backup, &part)?;
        copy_wal(database, &kept)?;
        checkpoint(database).await;
        exchange(&part, database, &kept)
    };
    let done = exchanged.await;
    if done.is_err() {
        let _ = fs::remove_file(&part);
    }
    let what = || format!("cannot restore {} to {}", backup.display(), database.display());
    done.map_err(|source| StoreError::File { what: what(), source })
}

/// Suffixes of the log files that SQLite would replay into a database next to them.
const LOG_SUFFIXES: [&str; 2] = ["-wal", "-journal"];

fn copy_wal(database: &Path, kept: &Path) -> io::Result<()> {
    for log in LOG_SUFFIXES {
        if with_suffix(database, log).exists() {
            copy_private(&with_suffix(database, log), &with_suffix(kept, log))?;
        }
    }
    sync_directory(database)
}

/// Checkpoints the old database's WAL and removes it. A database that is too damaged for that loses nothing more in the
/// next step, and a copy of the WAL is kept.
async fn checkpoint(database: &Path) {
    let checkpointing = async {
        let mut connection =
            SqliteConnection::connect_with(&SqliteConnectOptions::new().filename(database)).await?;
        let done = query("PRAGMA wal_checkpoint(TRUNCATE)").execute(&mut connection).await;
        connection.close().await?;
        done
    };
    if let Err(error) = checkpointing.await
        && database.exists()
    {
        tracing::warn!(%error, "the old database's WAL cannot be checkpointed; both are kept as they are");
    }
}

fn exchange(part: &Path, database: &Path, kept: &Path) -> io::Result<Option<PathBuf>> {
    let there = database.exists();
    // A hard link first, so that the name always has a database. Not every file system has them.
    if there && fs::hard_link(database, kept).is_err() {
        copy_private(database, kept)?;
    }
    for stale in LOG_SUFFIXES.into_iter().chain(["-shm"]).map(|suffix| with_suffix(database, suffix)) {
        if stale.exists() {
            fs::remove_file(stale)?;
        }
    }
    // Both names must be on disk before the rename.
    sync_directory(database)?;
    fs::rename(part, database)?;
    sync_directory(database)?;
    Ok(there.then_some(kept.to_owned()))
}

/// Makes an fsynced copy that only its owner can read, whatever the permissions of the original.
fn copy_private(from: &Path, to: &Path) -> io::Result<()> {
    let mut original = File::open(from)?;
    // A file of an earlier attempt may be readable by others, so it is created again.
    match fs::remove_file(to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut copy = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
    io::copy(&mut original, &mut copy)?;
    copy.sync_all()
}

fn sync_directory(file: &Path) -> io::Result<()> {
    let directory = file.parent().filter(|directory| !directory.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}

/// An unused name for the old database.
fn unused_file_name(database: &Path) -> PathBuf {
    let mut kept = with_suffix(database, ".before-restore");
    for number in 2_u32.. {
        if !kept.exists() && LOG_SUFFIXES.iter().all(|log| !with_suffix(&kept, log).exists()) {
            break;
        }
        kept = with_suffix(database, &format!(".before-restore-{number}"));
    }
    kept
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use clock::Clock;
    use tempfile::TempDir;

    use super::*;
    use crate::NewOrg;
    use crate::Store;

    /// A machine that stops before the rename leaves the old database, complete without its WAL.
    #[tokio::test]
    async fn before_the_rename_the_old_database_is_complete_without_its_wal() {
        let directory = TempDir::new().unwrap();
        let (live, crashed) = (directory.path().join("live.db"), directory.path().join("crashed.db"));
        let store = Store::open_sqlite(&live, &Clock::system()).await.unwrap();
        let at = Clock::system().now();
        let org = NewOrg { id: uuid::Uuid::from_u128(1).into(), name: "in the log".to_owned(), at };
        store.create_org(org).await.unwrap();
        for log in ["", "-wal"] {
            fs::copy(with_suffix(&live, log), with_suffix(&crashed, log)).unwrap();
        }
        let alone = directory.path().join("alone.db");
        fs::copy(&crashed, &alone).unwrap();
        assert!(orgs(&alone).await.is_err(), "the organization is only in the WAL");

        checkpoint(&crashed).await;
        assert!(!with_suffix(&crashed, "-wal").exists() && !with_suffix(&crashed, "-shm").exists());
        fs::copy(&crashed, &alone).unwrap();
        assert_eq!(orgs(&alone).await.unwrap(), ["in the log"]);
    }

    async fn orgs(file: &Path) -> sqlx::Result<Vec<String>> {
        let options = SqliteConnectOptions::new().filename(file).read_only(true).immutable(true);
        let mut connection = SqliteConnection::connect_with(&options).await?;
        query_scalar("SELECT name FROM organizations").fetch_all(&mut connection).await
    }
}
