//! Connections to PostgreSQL that are trusted while they are used, and asked once one of them was found broken.

mod instance_lock;

use std::str::FromStr as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clock::Clock;
use futures_util::future::BoxFuture;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
use sqlx::{Connection as _, raw_sql};
use tokio::time::timeout;

pub use self::instance_lock::InstanceLock;
use crate::db::PATIENCE;
use crate::error::is_unavailable;
use crate::{Durability, StoreError};

/// How long the server may take to answer. Our queries are short; one that hangs must not hold its request for ever.
const ANSWER: Duration = Duration::from_secs(30);
const CONNECTIONS: u32 = 16;
/// For so long nobody asks a connection whether it still leads somewhere.
const UNASKED: Duration = Duration::from_secs(1);

/// The way to a server. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Postgres {
    pub(crate) pool: PgPool,
    broken: Broken,
}

/// When a connection was last found broken: what broke one has most likely broken all that nobody used since. By a clock of
/// its own, since the pool counts real time.
#[derive(Clone)]
struct Broken {
    clock: Clock,
    last: Arc<Mutex<Option<Duration>>>,
}

impl Postgres {
    pub(crate) fn new(options: PgConnectOptions) -> Self {
        let broken = Broken { clock: Clock::system(), last: Arc::default() };
        let known = broken.clone();
        let pool = PgPoolOptions::new()
            .max_connections(CONNECTIONS)
            .min_connections(0)
            .acquire_timeout(PATIENCE)
            // One that was used a moment ago is there; asking it each time would be half of a look by key.
            .test_before_acquire(false)
            .before_acquire(move |connection, life| {
                let known = known.clone();
                Box::pin(async move {
                    if life.idle_for > UNASKED || known.since(life.idle_for) {
                        connection.ping().await.inspect_err(|error| known.note(error))?;
                    }
                    Ok(true)
                })
            })
            .connect_lazy_with(options);
        Self { pool, broken }
    }

    /// A query's answer, unless the network has swallowed it: PostgreSQL's own limits do not help then.
    pub(crate) async fn in_time<T>(&self, query: impl Future<Output = sqlx::Result<T>>) -> sqlx::Result<T> {
        let done = timeout(ANSWER, query).await.unwrap_or_else(|_| Err(no_answer()));
        done.inspect_err(|error| self.broken.note(error))
    }

    /// One transaction.
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
        // If the silence began after the commit was sent, it may have been kept.
        let done = timeout(ANSWER, work).await.unwrap_or_else(|_| Err(StoreError::Failed(no_answer())));
        done.inspect_err(|error| {
            if let StoreError::Failed(error) = error {
                self.broken.note(error);
            }
        })
    }
}

impl Broken {
    fn note(&self, error: &sqlx::Error) {
        if is_unavailable(error) {
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.clock.elapsed());
        }
    }

    /// Whether one was found broken within this time.
    fn since(&self, time: Duration) -> bool {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.is_some_and(|at| self.clock.elapsed().saturating_sub(at) <= time)
    }
}

/// One connection, within a few seconds.
pub(crate) async fn connect(url: &str) -> Result<(PgConnectOptions, PgConnection), StoreError> {
    let unreachable = |error: sqlx::Error| StoreError::Unreachable {
        target: describe_url(url),
        reason: error.to_string(),
        remedy: "Start PostgreSQL or correct DATABASE_URL.",
    };
    let options = PgConnectOptions::from_str(url).map_err(unreachable)?;
    let connecting = timeout(PATIENCE, PgConnection::connect_with(&options));
    let connection = connecting.await.unwrap_or(Err(sqlx::Error::PoolTimedOut)).map_err(unreachable)?;
    Ok((options, connection))
}

/// A database URL without its password.
pub fn describe_url(url: &str) -> String {
    let Ok(options) = PgConnectOptions::from_str(url) else {
        return "postgres://(not a valid URL)".to_owned();
    };
    let database = options.get_database().unwrap_or_default();
    format!("postgres://{}@{}:{}/{database}", options.get_username(), options.get_host(), options.get_port())
}

fn no_answer() -> sqlx::Error {
    let text = format!("no answer from PostgreSQL within {} s", ANSWER.as_secs());
    sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, text))
}
