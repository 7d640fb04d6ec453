//! Durable rows, in SQLite or PostgreSQL. Each has one writer, so that rows which wait together share one fsync.

use std::sync::mpsc;

use bytes::Bytes;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use super::{postgres, sqlite};
use crate::Result;

/// Rows in one transaction, at most.
pub const BATCH: usize = 1024;

pub enum Row {
    Session { id: String, org: String, config: String, kind: String },
    Tool { session: String, tool: String, call: String, result: Bytes },
    Invocation { id: String, session: String, action: String, params: String, status: &'static str },
    Done { id: String, result: String },
}

/// A row, and who waits for it.
pub type Write = (Row, oneshot::Sender<bool>);

pub enum Database {
    Sqlite(mpsc::Sender<Write>),
    Postgres(UnboundedSender<Write>),
}

impl Database {
    /// A file, or the URL of a PostgreSQL database.
    pub async fn open(place: &str) -> Result<Self> {
        if place.starts_with("postgres://") {
            Ok(Self::Postgres(postgres::open(place).await?))
        } else {
            Ok(Self::Sqlite(sqlite::open(place)?))
        }
    }

    /// Whether the row is on the disk.
    pub async fn put(&self, row: Row) -> bool {
        let (sender, receiver) = oneshot::channel();
        let sent = match self {
            Self::Sqlite(writer) => writer.send((row, sender)).is_ok(),
            Self::Postgres(writer) => writer.send((row, sender)).is_ok(),
        };
        sent && receiver.await.unwrap_or(false)
    }
}
