//! What is special to PostgreSQL: opening a database, its connection pool, batched lookups, and the instance lock.

pub(crate) mod gate_writer;
mod instance_lock;
pub(crate) mod lookup_batcher;
mod open;

use std::sync::Arc;
use std::time::Duration;

use clock::Clock;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
use sqlx::{Connection as _, raw_sql};
use tokio::time::timeout;

pub use self::instance_lock::InstanceLock;
pub use self::open::{describe_url, probe_postgres};
use crate::db::ACQUIRE_TIMEOUT;
use crate::error::is_unavailable;
use crate::{Durability, StoreError};

/// How long the server may take to answer. Our queries are short; one that hangs must not block its request for ever.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_CONNECTIONS: u32 = 16;
/// A connection that was used this recently is not pinged before it is used again.
const SKIP_PING_WITHIN: Duration = Duration::from_secs(1);

/// What makes a database empty before a dump is loaded into it: a dump of an older schema would otherwise leave tables of a
/// newer one behind.
pub const EMPTY_POSTGRES: [&str; 2] = ["DROP SCHEMA public CASCADE", "CREATE SCHEMA public"];

/// A pool of connections. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Postgres {
    pub(crate) pool: PgPool,
    broken: LastBroken,
}

/// When a connection was last found broken. Whatever broke it has most likely broken all connections that were idle then, so
/// those are pinged before use: after a PostgreSQL restart, at most one request per connection in use sees the error.
#[derive(Clone)]
struct LastBroken {
    /// Its own system clock, because the pool measures real time.
    clock: Clock,
    last: Arc<Mutex<Option<Duration>>>,
}

impl Postgres {
    pub(crate) fn new(options: PgConnectOptions) -> Self {
        let broken = LastBroken { clock: Clock::system(), last: Arc::default() };
        let known = broken.clone();
        let pool = PgPoolOptions::new()
            .max_connections(MAX_CONNECTIONS)
            .min_connections(0)
            .acquire_timeout(ACQUIRE_TIMEOUT)
            // A ping before every use would take half as long as a lookup by key.
            .test_before_acquire(false)
            .before_acquire(move |connection, state| {
                let known = known.clone();
                Box::pin(async move {
                    if state.idle_for > SKIP_PING_WITHIN || known.within(state.idle_for) {
                        connection.ping().await.inspect_err(|error| known.note(error))?;
                    }
                    Ok(true)
                })
            })
            .connect_lazy_with(options);
        Self { pool, broken }
    }

    /// The result of a query, or an error if the network swallows it: PostgreSQL's own timeouts do not help then.
    pub(crate) async fn with_timeout<T>(
        &self,
        query: impl Future<Output = sqlx::Result<T>>,
    ) -> sqlx::Result<T> {
        let done = timeout(ANSWER_TIMEOUT, query).await.unwrap_or_else(|_| Err(no_answer()));
        done.inspect_err(|error| self.broken.note(error))
    }

    /// Runs one transaction.
    pub(crate) async fn transaction<T, F>(&self, durability: Durability, run: F) -> Result<T, StoreError>
    where
        F: for<'c> FnOnce(&'c mut PgConnection) -> BoxFuture<'c, Result<T, StoreError>> + Send,
    {
        let work = async {
            let mut transaction = self.pool.begin().await?;
            if durability == Durability::Process {
                raw_sql("SET LOCAL synchronous_commit = off").execute(&mut *transaction).await?;
            }
            let value = run(&mut transaction).await?;
            transaction.commit().await?;
            Ok(value)
        };
        // After a timeout the commit may or may not have happened.
        let done =
            timeout(ANSWER_TIMEOUT, work).await.unwrap_or_else(|_| Err(StoreError::Failed(no_answer())));
        done.inspect_err(|error| {
            if let StoreError::Failed(error) = error {
                self.broken.note(error);
            }
        })
    }
}

impl LastBroken {
    fn note(&self, error: &sqlx::Error) {
        if is_unavailable(error) {
            *self.last.lock() = Some(self.clock.elapsed());
        }
    }

    /// Whether a connection was found broken within this time.
    fn within(&self, time: Duration) -> bool {
        let last = *self.last.lock();
        last.is_some_and(|at| self.clock.elapsed().saturating_sub(at) <= time)
    }
}

fn no_answer() -> sqlx::Error {
    let text = format!("no answer from PostgreSQL within {} s", ANSWER_TIMEOUT.as_secs());
    sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, text))
}
