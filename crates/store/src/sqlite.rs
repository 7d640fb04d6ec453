//! What is special to SQLite: opening the file, its connections, and backups. Everything else is shared.
//!
//! There are three ways to read and write the file, and two shortcuts past them for what happens thousands of times a second.
//! The shortcuts use `rusqlite`, because sqlx runs every SQLite connection on a thread of its own, and the hop to that thread
//! and back takes longer than the statement.
//!
//! The last column says how many times as long the same takes on the ordinary way (`measure`, which `make bench` runs: release
//! build, two busy cores, medians of 41 interleaved rounds).
//!
//! | way | used for | driver | ordinary way |
//! |---|---|---|---|
//! | `readers` | queries | sqlx | |
//! | [`writer`] | all writes except those below: group commit | sqlx | |
//! | [`gate_writer`] | runs and the ledger: group commit | rusqlite | 7.4 times (29 and 221 µs an event, 16 callers) |
//! | [`wal_sync`] | the gate's fsync, which overlaps the next batch | rusqlite | 1.6 times (2.2 and 3.5 ms a batch of 16 rows) |
//! | [`inline_reader`] (shortcut) | single rows by key, on the caller's thread; falls back to `readers` | rusqlite | 10 times (4 and 41 µs) |
//! | [`event_appender`] (shortcut) | batches of a session's log, on the caller's thread; falls back to [`writer`] | rusqlite | 5.8 times (24 and 153 µs) |

mod backup;
pub(crate) mod event_appender;
pub(crate) mod gate_writer;
pub(crate) mod inline_reader;
#[cfg(test)]
mod measure;
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
