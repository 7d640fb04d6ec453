//! A consistent copy of a SQLite database, taken while it is in use, and the way back.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{Connection as _, query, query_as, query_scalar};

use crate::db::Db;
use crate::{Store, StoreError, migrate};

impl Store {
    /// Writes a copy of the database to `out`, which must not exist. PostgreSQL has its own tools for this.
    pub async fn backup(&self, out: &Path) -> Result<(), StoreError> {
        let Db::Sqlite { file, .. } = &self.db else {
            return Err(StoreError::Refused("this database is PostgreSQL: back it up with pg_dump"));
        };
        let target = out.to_str().ok_or(StoreError::Refused("the path of a backup must be UTF-8"))?;
        let fail = |source| StoreError::File { what: format!("cannot write the backup {target}"), source };
        // SQLite fills an empty file that is there; making it here refuses every other and hides it from others.
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(out).map_err(fail)?;
        // A connection of its own: the readers are `query_only`, and that forbids writing the copy too.
        let copied = async {
            let mut connection =
                SqliteConnection::connect_with(&SqliteConnectOptions::new().filename(file)).await?;
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
}

/// Checks that `backup` is a whole database of ours that this program can read; returns its schema version.
pub async fn check_backup(backup: &Path) -> Result<i64, StoreError> {
    let refuse = |error: sqlx::Error| StoreError::Unreachable {
        target: backup.display().to_string(),
        reason: error.to_string(),
        remedy: "Name a file that `proliferate db backup` wrote.",
    };
    if fs::metadata(with(backup, "-wal")).is_ok_and(|log| log.len() > 0) {
        return Err(StoreError::Refused("the backup is a database in use: its log lies beside it"));
    }
    // Immutable: exactly this file is looked at, and nothing is made beside it.
    let options = SqliteConnectOptions::new().filename(backup).read_only(true).immutable(true);
    let mut connection = SqliteConnection::connect_with(&options).await.map_err(refuse)?;
    let health: String =
        query_scalar("PRAGMA integrity_check").fetch_one(&mut connection).await.map_err(refuse)?;
    if health != "ok" {
        return Err(StoreError::Refused("the backup is damaged: its integrity check failed"));
    }
    let done: Vec<(i64, String)> =
        query_as(migrate::APPLIED).fetch_all(&mut connection).await.map_err(refuse)?;
    connection.close().await.map_err(refuse)?;
    migrate::missing(&done)?;
    let last = done.last().ok_or(StoreError::Refused("the backup is empty: no migration ever ran in it"))?;
    Ok(last.0)
}

/// Puts a backup in the place of the database, if it is whole. Nobody may have the database open.
/// The old one is kept beside it; its path is returned.
pub async fn restore(backup: &Path, database: &Path) -> Result<Option<PathBuf>, StoreError> {
    check_backup(backup).await?;
    let part = with(database, ".restoring");
    let what = || format!("cannot restore {} to {}", backup.display(), database.display());
    let done = copy_to_disk(backup, &part).and_then(|()| exchange(&part, database));
    if done.is_err() {
        let _ = fs::remove_file(&part);
    }
    done.map_err(|source| StoreError::File { what: what(), source })
}

/// The log belongs to the old database. It goes with it, and as a copy first: a crash in between leaves no
/// database without its log, and a log left here would be replayed onto the backup.
fn exchange(part: &Path, database: &Path) -> io::Result<Option<PathBuf>> {
    let log = with(database, "-wal");
    let kept = unused(database);
    if log.exists() {
        copy_to_disk(&log, &with(&kept, "-wal"))?;
    }
    let there = database.exists();
    if there {
        fs::rename(database, &kept)?;
    }
    for stale in [log, with(database, "-shm")] {
        if stale.exists() {
            fs::remove_file(stale)?;
        }
    }
    fs::rename(part, database)?;
    File::open(database.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new(".")))?
        .sync_all()?;
    Ok(there.then_some(kept))
}

fn copy_to_disk(from: &Path, to: &Path) -> io::Result<()> {
    fs::copy(from, to)?;
    File::open(to)?.sync_all()
}

/// A name for the old database that no earlier restore has used.
fn unused(database: &Path) -> PathBuf {
    let mut kept = with(database, ".before-restore");
    for number in 2_u32.. {
        if !kept.exists() && !with(&kept, "-wal").exists() {
            break;
        }
        kept = with(database, &format!(".before-restore-{number}"));
    }
    kept
}

fn with(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}
