//! Rows that many look for in PostgreSQL at the same moment, found by one statement.
//!
//! A look by key takes the server microseconds, and the way there and back a hundred times as long. Whoever comes while a
//! statement is under way shares the next one, so what it finds was there after it was asked for.

use std::collections::HashMap;
use std::hash::Hash;

use futures_util::future::BoxFuture;
use sqlx::PgPool;
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use crate::postgres::Postgres;
use crate::{Run, SandboxSession, SessionRecord};

/// More than this waits at those who ask.
const QUEUE: usize = 1024;
/// More than this is looked for by the next statement.
const MOST: usize = 256;

/// What is looked for with every call of an agent.
pub(crate) struct Together {
    pub(crate) runs: Looks<(Uuid, String), Run>,
    pub(crate) sessions: Looks<Uuid, SessionRecord>,
    pub(crate) sandboxes: Looks<Uuid, SandboxSession>,
    pub(crate) tokens: Looks<Vec<u8>, SandboxSession>,
}

impl Together {
    pub(crate) fn start(postgres: &Postgres) -> Self {
        Self {
            runs: Looks::start(postgres, crate::run::many),
            sessions: Looks::start(postgres, crate::session_record::many),
            sandboxes: Looks::start(postgres, crate::sandbox_session::many),
            tokens: Looks::start(postgres, crate::sandbox_session::many_by_token),
        }
    }
}

/// The rows that were found, with their keys.
pub(crate) type Found<'a, K, T> = BoxFuture<'a, sqlx::Result<Vec<(K, T)>>>;
type Fetch<K, T> = for<'a> fn(&'a PgPool, Vec<K>) -> Found<'a, K, T>;
/// Nothing, where the statement failed: whoever asks by itself is told why.
type Answer<T> = Option<Option<T>>;

/// Looks by one kind of key. They end when the last handle is gone.
pub(crate) struct Looks<K, T>(mpsc::Sender<(K, oneshot::Sender<Answer<T>>)>);

impl<K, T> Looks<K, T>
where
    K: Clone + Eq + Hash + Send + 'static,
    T: Clone + Send + 'static,
{
    fn start(postgres: &Postgres, fetch: Fetch<K, T>) -> Self {
        let (looks, queue) = mpsc::channel(QUEUE);
        tokio::spawn(work(postgres.clone(), fetch, queue));
        Self(looks)
    }

    /// The row of a key. `None`: ask by yourself.
    pub(crate) async fn find(&self, key: K) -> Answer<T> {
        let (done, answer) = oneshot::channel();
        self.0.send((key, done)).await.ok()?;
        answer.await.ok()?
    }
}

async fn work<K, T>(
    postgres: Postgres,
    fetch: Fetch<K, T>,
    mut queue: mpsc::Receiver<(K, oneshot::Sender<Answer<T>>)>,
) where
    K: Clone + Eq + Hash,
    T: Clone,
{
    let mut asked = Vec::new();
    while queue.recv_many(&mut asked, MOST).await > 0 {
        let keys = asked.iter().map(|(key, _)| key.clone()).collect();
        let found = postgres.in_time(fetch(&postgres.pool, keys)).await.ok();
        let found: Option<HashMap<K, T>> = found.map(|rows| rows.into_iter().collect());
        for (key, done) in asked.drain(..) {
            // Whoever asked may have gone away.
            let _ = done.send(found.as_ref().map(|found| found.get(&key).cloned()));
        }
    }
}
