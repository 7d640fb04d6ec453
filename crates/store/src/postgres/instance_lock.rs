//! The right to serve a PostgreSQL database, which one gateway has at a time.
//!
//! It is a session-level advisory lock on a connection of its own: PostgreSQL releases it when the process ends, in whatever
//! way. A second gateway that started anyway would take over the first one's sessions, start empty sandboxes for them and
//! lose the work.

use std::time::Duration;

use sqlx::postgres::PgConnection;
use sqlx::{Connection as _, query_scalar, raw_sql};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::open::{connect, describe_url};
use crate::StoreError;

/// The key of the lock, which is arbitrary; advisory locks belong to one database.
const LOCK_KEY: i64 = 7_212_170_412;
const TRY_LOCK: &str = "SELECT pg_try_advisory_lock($1)";
/// The server process that holds the lock. PostgreSQL splits the number into two columns.
const SELECT_HOLDER: &str =
    "SELECT pid::bigint FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND classid::bigint = $1 >> 32 AND objid::bigint = $1 & 4294967295";
/// Lets the server notice within about five seconds that the machine of a gateway is gone without having closed its
/// connections. The server's defaults are hours. PostgreSQL ignores these settings on a Unix socket, which cannot outlive
/// its process.
const SET_KEEPALIVE: &str =
    "SET tcp_keepalives_idle = 2; SET tcp_keepalives_interval = 1; SET tcp_keepalives_count = 3";

/// Between two attempts to get a lock that another gateway holds.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// How often the connection that holds the lock is checked, and how long it may take to answer.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Held while a gateway serves. Dropping it closes the connection, and so releases the lock.
pub struct InstanceLock {
    keeper: JoinHandle<()>,
    lost: watch::Receiver<bool>,
}

impl Drop for InstanceLock {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

impl InstanceLock {
    /// Takes the lock, and waits this long for a gateway that holds it to finish stopping.
    pub async fn acquire(url: &str, wait: Duration) -> Result<Self, StoreError> {
        let mut session = Session::open(url).await?;
        if !session.try_lock().await? {
            let retrying = async {
                while !session.try_lock().await? {
                    sleep(RETRY_INTERVAL).await;
                }
                Ok::<_, StoreError>(())
            };
            let served = |_| StoreError::Served { target: describe_url(url) };
            timeout(wait, retrying).await.map_err(served)??;
        }
        let (report_loss, lost) = watch::channel(false);
        let keeper = tokio::spawn(hold_lock(session, url.to_owned(), report_loss));
        Ok(Self { keeper, lost })
    }

    /// Returns when another gateway has taken the database over: the connection broke, and the other one was faster than
    /// our reconnect.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut lost = self.lost.clone();
        async move {
            if lost.wait_for(|lost| *lost).await.is_err() {
                // The lock was dropped, so nobody can lose it any more.
                std::future::pending::<()>().await;
            }
        }
    }
}

/// A connection that holds the lock, or tries to.
struct Session {
    connection: PgConnection,
    /// The server process behind it.
    pid: i64,
}

impl Session {
    async fn open(url: &str) -> Result<Self, StoreError> {
        let (_, mut connection) = connect(url).await?;
        raw_sql(SET_KEEPALIVE).execute(&mut connection).await?;
        let pid = query_scalar("SELECT pg_backend_pid()::bigint").fetch_one(&mut connection).await?;
        Ok(Self { connection, pid })
    }

    async fn try_lock(&mut self) -> sqlx::Result<bool> {
        query_scalar(TRY_LOCK).bind(LOCK_KEY).fetch_one(&mut self.connection).await
    }

    async fn is_alive(&mut self) -> bool {
        matches!(timeout(ANSWER_TIMEOUT, self.connection.ping()).await, Ok(Ok(())))
    }
}

/// Checks the connection, and replaces it when it breaks: PostgreSQL restarts, networks fail. Ends when another gateway
/// holds the lock.
async fn hold_lock(mut session: Session, url: String, report_loss: watch::Sender<bool>) {
    loop {
        sleep(CHECK_INTERVAL).await;
        if session.is_alive().await {
            continue;
        }
        tracing::warn!("the connection that holds the instance lock broke; connecting again");
        let Some(new) = retake(&url, session.pid).await else {
            let _ = report_loss.send(true);
            return;
        };
        session = new;
    }
}

/// Retries until it holds the lock again, however long the server is unreachable. `None` if another gateway holds it.
async fn retake(url: &str, old_pid: i64) -> Option<Session> {
    loop {
        let attempt = async {
            let mut session = Session::open(url).await?;
            let locked = session.try_lock().await?;
            if locked {
                return Ok::<_, StoreError>(Attempt::Locked(session));
            }
            let holder: Option<i64> =
                query_scalar(SELECT_HOLDER).bind(LOCK_KEY).fetch_optional(&mut session.connection).await?;
            // The server has not noticed yet that our old connection is gone.
            if holder == Some(old_pid) {
                let end = "SELECT pg_terminate_backend($1::int)";
                sqlx::query(end).bind(old_pid).execute(&mut session.connection).await?;
            }
            Ok(if holder.is_none_or(|pid| pid == old_pid) { Attempt::Later } else { Attempt::Taken })
        };
        match timeout(ANSWER_TIMEOUT, attempt).await {
            Ok(Ok(Attempt::Locked(session))) => return Some(session),
            Ok(Ok(Attempt::Taken)) => return None,
            Ok(Ok(Attempt::Later) | Err(_)) | Err(_) => sleep(RETRY_INTERVAL).await,
        }
    }
}

enum Attempt {
    Locked(Session),
    Later,
    Taken,
}
