//! A consistent copy of a SQLite database, taken while it is in use, and the way back.

use std::path::{Path, PathBuf};

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{Connection as _, query, query_scalar};

use crate::db::Db;
use crate::{Migration, Store, StoreError};

impl Store {
    /// Writes a copy of the database to `out`, which must not exist. PostgreSQL has its own tools for this.
    pub async fn backup(&self, out: &Path) -> Result<(), StoreError> {
        let Db::Sqlite { readers, .. } = &self.db else {
            return Err(StoreError::Refused("this database is PostgreSQL: back it up with pg_dump"));
        };
        let target = out.to_str().ok_or(StoreError::Refused("the path of a backup must be UTF-8"))?;
        query("VACUUM INTO $1").bind(target).execute(readers).await?;
        Ok(())
    }
}

/// Checks that `backup` is a whole database of ours that this program can read; returns its schema version.
pub async fn check_backup(backup: &Path) -> Result<i64, StoreError> {
    let refuse = |error: sqlx::Error| StoreError::Unreachable {
        target: backup.display().to_string(),
        reason: error.to_string(),
        remedy: "Name a file that `proliferate db backup` wrote.",
    };
    let options = SqliteConnectOptions::new().filename(backup).read_only(true);
    let mut connection = SqliteConnection::connect_with(&options).await.map_err(refuse)?;
    let health: String = query_scalar("PRAGMA integrity_check").fetch_one(&mut connection).await.map_err(refuse)?;
    let version: i64 = query_scalar("SELECT max(version) FROM schema_migrations")
        .fetch_one(&mut connection)
        .await
        .map_err(refuse)?;
    connection.close().await.map_err(refuse)?;
    if health != "ok" {
        return Err(StoreError::Refused("the backup is damaged: its integrity check failed"));
    }
    if version > Migration::LATEST {
        return Err(StoreError::NewerSchema { found: version, known: Migration::LATEST });
    }
    Ok(version)
}

/// Puts a checked backup in the place of the database. Nobody may have the database open.
/// The old one is kept beside it; its path is returned.
pub fn restore(backup: &Path, database: &Path) -> Result<Option<PathBuf>, StoreError> {
    let fail = |what: String| move |source| StoreError::File { what, source };
    let part = beside(database, "restoring");
    std::fs::copy(backup, &part).map_err(fail(format!("cannot copy the backup to {}", part.display())))?;
    let file = std::fs::File::open(&part).map_err(fail(format!("cannot open {}", part.display())))?;
    file.sync_all().map_err(fail(format!("cannot write {}", part.display())))?;
    let kept = database.exists().then(|| beside(database, "before-restore"));
    if let Some(kept) = &kept {
        std::fs::rename(database, kept).map_err(fail(format!("cannot set aside {}", database.display())))?;
    }
    // The log belongs to the file that was set aside; left here it would be replayed onto the backup.
    for log in ["-wal", "-shm"] {
        let mut name = database.as_os_str().to_owned();
        name.push(log);
        if let (Some(kept), true) = (&kept, Path::new(&name).exists()) {
            let mut to = kept.as_os_str().to_owned();
            to.push(log);
            std::fs::rename(&name, &to).map_err(fail(format!("cannot set aside {}", Path::new(&name).display())))?;
        }
    }
    std::fs::rename(&part, database).map_err(fail(format!("cannot put {} in place", database.display())))?;
    Ok(kept)
}

fn beside(database: &Path, suffix: &str) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    PathBuf::from(name)
}
