//! Durable rows in SQLite or PostgreSQL. Each has one writer, so that concurrent rows share one fsync.

use std::sync::mpsc;

use bytes::Bytes;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use super::{postgres, sqlite};
use crate::Result;

/// Maximum number of rows per transaction.
pub const BATCH: usize = 1024;

pub enum Row {
    Session { id: String, org: String, config: String, kind: String },
    Tool { session: String, tool: String, call: String, result: Bytes },
    Invocation { id: String, session: String, action: String, params: String, status: &'static str },
    InvocationResult { id: String, result: String },
}

/// A row, and the channel on which its writer reports success.
pub type Write = (Row, oneshot::Sender<bool>);

pub enum Database {
    Sqlite(mpsc::Sender<Write>),
    Postgres(UnboundedSender<Write>),
}

impl Database {
    /// Opens a SQLite file, or a PostgreSQL database by its URL.
    pub async fn open(place: &str) -> Result<Self> {
        if place.starts_with("postgres://") {
            Ok(Self::Postgres(postgres::open(place).await?))
        } else {
            Ok(Self::Sqlite(sqlite::open(place)?))
        }
    }

    /// Writes the row; returns whether it is durable.
    pub async fn put(&self, row: Row) -> bool {
        let (sender, receiver) = oneshot::channel();
        let sent = match self {
            Self::Sqlite(writer) => writer.send((row, sender)).is_ok(),
            Self::Postgres(writer) => writer.send((row, sender)).is_ok(),
        };
        sent && receiver.await.unwrap_or(false)
    }
}
