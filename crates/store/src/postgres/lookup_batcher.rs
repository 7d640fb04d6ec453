//! Batched lookups: rows that many requests look up in PostgreSQL at once are fetched by one statement.
//!
//! A lookup by key takes the server microseconds, and the round trip a hundred times as long. A lookup that arrives while a
//! statement is in flight joins the next one, so it always sees what was committed before it was requested.

use std::collections::HashMap;
use std::hash::Hash;

use futures_util::future::BoxFuture;
use sqlx::PgPool;
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use super::Postgres;
use crate::{Run, SandboxSession, SessionRecord};

/// Callers wait when more lookups than this are queued.
const QUEUE_CAPACITY: usize = 1024;
/// The most lookups of one statement.
const MAX_BATCH: usize = 256;

/// The rows that every call of an agent needs.
pub(crate) struct LookupBatchers {
    pub(crate) runs: LookupBatcher<(Uuid, String), Run>,
    pub(crate) sessions: LookupBatcher<Uuid, SessionRecord>,
    pub(crate) sandboxes: LookupBatcher<Uuid, SandboxSession>,
    pub(crate) tokens: LookupBatcher<Vec<u8>, SandboxSession>,
}

impl LookupBatchers {
    pub(crate) fn start(postgres: &Postgres) -> Self {
        Self {
            runs: LookupBatcher::start(postgres, crate::run::many),
            sessions: LookupBatcher::start(postgres, crate::session_record::many),
            sandboxes: LookupBatcher::start(postgres, crate::sandbox_session::many),
            tokens: LookupBatcher::start(postgres, crate::sandbox_session::many_by_token),
        }
    }
}

/// The rows of a statement, with their keys.
pub(crate) type Rows<'a, K, T> = BoxFuture<'a, sqlx::Result<Vec<(K, T)>>>;
type Fetch<K, T> = for<'a> fn(&'a PgPool, Vec<K>) -> Rows<'a, K, T>;
/// `None` if the statement failed: each caller then runs its own query and gets its own error.
type Reply<T> = Option<Option<T>>;

/// Batches lookups by one kind of key. Its task ends with the last handle.
pub(crate) struct LookupBatcher<K, T>(mpsc::Sender<(K, oneshot::Sender<Reply<T>>)>);

impl<K, T> LookupBatcher<K, T>
where
    K: Clone + Eq + Hash + Send + 'static,
    T: Clone + Send + 'static,
{
    fn start(postgres: &Postgres, fetch: Fetch<K, T>) -> Self {
        let (lookups, queue) = mpsc::channel(QUEUE_CAPACITY);
        tokio::spawn(work(postgres.clone(), fetch, queue));
        Self(lookups)
    }

    /// The row of a key. `None`: the caller must run its own query.
    pub(crate) async fn find(&self, key: K) -> Reply<T> {
        let (reply, received) = oneshot::channel();
        self.0.send((key, reply)).await.ok()?;
        received.await.ok()?
    }
}

async fn work<K, T>(
    postgres: Postgres,
    fetch: Fetch<K, T>,
    mut queue: mpsc::Receiver<(K, oneshot::Sender<Reply<T>>)>,
) where
    K: Clone + Eq + Hash,
    T: Clone,
{
    let mut batch = Vec::new();
    while queue.recv_many(&mut batch, MAX_BATCH).await > 0 {
        let keys = batch.iter().map(|(key, _)| key.clone()).collect();
        let rows = postgres.with_timeout(fetch(&postgres.pool, keys)).await.ok();
        let rows: Option<HashMap<K, T>> = rows.map(|rows| rows.into_iter().collect());
        for (key, reply) in batch.drain(..) {
            // The caller may be gone.
            let _ = reply.send(rows.as_ref().map(|rows| rows.get(&key).cloned()));
        }
    }
}
