//! What is special to SQLite: opening the file, its connections, and backups. Everything else is shared.
//!
//! There are three ways to read and write the file, and two shortcuts past them for what happens thousands of times a second.
//! The shortcuts use `rusqlite`, because sqlx runs every SQLite connection on a thread of its own, and the hop to that thread
//! and back takes longer than the statement.
//!
//! | way | used for | driver |
//! |---|---|---|
//! | `readers` | queries | sqlx |
//! | [`writer`] | all writes except those below: group commit | sqlx |
//! | [`gate_writer`], with [`wal_sync`] | runs and the ledger: group commit whose fsync overlaps the next batch | rusqlite |
//! | [`inline_reader`] (shortcut) | single rows by key, on the caller's thread; falls back to `readers` | rusqlite |
//! | [`event_appender`] (shortcut) | batches of a session's log, on the caller's thread; falls back to [`writer`] | rusqlite |

mod backup;
pub(crate) mod event_appender;
pub(crate) mod gate_writer;
pub(crate) mod inline_reader;
mod open;
pub(crate) mod wal_sync;
pub(crate) mod writer;

use sqlx::SqlitePool;

pub use self::backup::{backup_sqlite, check_backup, restore};
use self::event_appender::EventAppender;
use self::inline_reader::InlineReader;
pub use self::open::probe_sqlite;
use self::writer::Writer;

/// An open file. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Sqlite {
    /// Connections that cannot write.
    pub(crate) readers: SqlitePool,
    pub(crate) inline: InlineReader,
    pub(crate) writer: Writer,
    pub(crate) appender: EventAppender,
}

impl Sqlite {
    /// Closes the file after the pending writes.
    pub(crate) async fn close(self) {
        self.appender.close().await;
        self.inline.close();
        // SQLite checkpoints the whole WAL when the last connection closes. That must be the writer's, because only the
        // writer's close is awaited.
        self.readers.close().await;
        self.writer.close().await;
    }
}
