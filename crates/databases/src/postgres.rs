//! Queries on PostgreSQL. A statement runs as a cursor in a read-only transaction that is never committed: `DECLARE` accepts
//! nothing but a query, the extended protocol nothing but one statement, and `FETCH` stops the server after the wanted rows.

mod connect;
mod guard;
mod json;
mod tls;
mod values;

use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::{Either, select};
use secrecy::SecretString;
use tokio::time::timeout;
use tokio_postgres::error::ErrorPosition;
use tokio_postgres::{CancelToken, Client, NoTls, SimpleQueryMessage};

use self::connect::{ServerConnection, Session, connect, log_in};
use self::guard::Exceeded;
pub use self::tls::Tls;
use self::values::{Parameter, to_json};
use crate::rows::Collector;
use crate::{Limits, Problem, Query, Rows, bounded, check_statement};

/// The timeout of connecting and logging in, and of all cancellations of a query.
const CONNECTING: Duration = Duration::from_secs(5);
/// How much later than the server we end a query ourselves, so that usually the server tells that it was late. Also the time
/// between two cancellations.
const LATER: Duration = Duration::from_millis(500);
/// The maximum size of what the server sends besides rows: descriptions of columns and types, and notices.
const OVERHEAD: usize = 256 << 10;

const DECLARE: &str = "DECLARE rows NO SCROLL CURSOR WITHOUT HOLD FOR ";

/// A role may not have more rights than to read: not as itself, and not as any role that it could switch to, since a query
/// can call `set_config('role', …)`. Roles that read or write the server's files or run programs need no write to the
/// database, and neither do functions that reach files, other servers, or whatever an untrusted language can do.
const ROLE: &str = "
    WITH reachable AS (
        SELECT r.* FROM pg_catalog.pg_roles r
        WHERE pg_catalog.pg_has_role(r.oid, 'MEMBER') OR pg_catalog.pg_has_role(session_user, r.oid, 'MEMBER')),
    outside AS (
        SELECT d.objid AS function, 'a function of the extension ' || pg_catalog.quote_ident(e.extname) ||
            ', which reaches other servers or leaves the transaction' AS reason
        FROM pg_catalog.pg_extension e
        JOIN pg_catalog.pg_depend d ON d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass
            AND d.refobjid = e.oid AND d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND d.deptype = 'e'
        WHERE e.extname IN ('dblink', 'http', 'pg_background', 'pg_net', 'pg_curl', 'plproxy', 'amqp', 'aws_lambda',
            'aws_ml', 'aws_s3', 'azure_ai', 'azure_storage', 'google_ml_integration')
        UNION ALL
        SELECT p.oid, 'which reaches the files of the server'
        FROM pg_catalog.pg_proc p
        WHERE p.pronamespace = 'pg_catalog'::pg_catalog.regnamespace AND p.proname IN ('pg_read_file',
            'pg_read_binary_file', 'pg_ls_dir', 'pg_stat_file', 'lo_import', 'lo_export', 'pg_file_write',
            'pg_file_rename', 'pg_file_unlink', 'pg_file_sync', 'pg_logdir_ls')
        UNION ALL
        SELECT p.oid, 'which is written in the untrusted language ' || pg_catalog.quote_ident(l.lanname)
        FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_language l ON l.oid = p.prolang
        WHERE NOT l.lanpltrusted AND l.lanname NOT IN ('internal', 'c'))
    SELECT 'has the rights of ' || pg_catalog.quote_ident(r.rolname) ||
        ', which may do more than read (superuser, replication, creating roles or databases, bypassing row security, \
            or the files and programs of the server): use a role that can only read'
    FROM reachable r
    WHERE r.rolsuper OR r.rolreplication OR r.rolcreaterole OR r.rolcreatedb OR r.rolbypassrls
        OR r.rolname IN ('pg_read_server_files', 'pg_write_server_files', 'pg_execute_server_program',
            'pg_write_all_data', 'pg_signal_backend', 'pg_maintain', 'pg_create_subscription', 'pg_checkpoint')
    UNION ALL
    SELECT 'may call ' || o.function::pg_catalog.regprocedure || ', ' || o.reason ||
        ': revoke EXECUTE on such functions from the role, its groups and PUBLIC'
    FROM outside o JOIN reachable r ON pg_catalog.has_function_privilege(r.oid, o.function, 'EXECUTE')
    LIMIT 1";

/// A table that the role may write to, if there is one.
const WRITABLE: &str = "
    SELECT 'can write to ' || pg_catalog.format('%I.%I', n.nspname, c.relname) || ': use a role that can only read'
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p', 'v', 'f') AND n.nspname NOT IN ('pg_catalog', 'information_schema')
    AND n.nspname NOT LIKE 'pg\\_%'
    AND (pg_catalog.has_table_privilege(c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE')
        OR pg_catalog.has_any_column_privilege(c.oid, 'INSERT, UPDATE'))
    LIMIT 1";

/// A database on a PostgreSQL server, and how to log in.
#[derive(Clone, Debug)]
pub struct Server {
    /// The name for which the certificate must be valid.
    pub host: String,
    /// The addresses that the host has resolved to and that may be connected to.
    pub addresses: Vec<SocketAddr>,
    pub database: String,
    pub user: String,
    pub password: Option<SecretString>,
    /// How to check the server's certificate. Without it, the connection is not encrypted.
    pub tls: Option<Tls>,
}

/// Checks that the database can be queried, by a role that can only read.
pub async fn check(server: &Server, limits: Limits) -> Result<(), Problem> {
    run(server, limits, async |client, _| {
        refuse(client, WRITABLE).await?;
        Ok(())
    })
    .await
}

/// Executes one query.
pub async fn query(server: &Server, query: Query, limits: Limits) -> Result<Rows, Problem> {
    check_statement(&query)?;
    run(server, limits, async |client, exceeded| select_rows(client, query, limits, exceeded).await).await
}

/// Logs in, begins the transaction, checks the role, and does the work. The transaction ends with the connection.
async fn run<T>(
    server: &Server,
    limits: Limits,
    work: impl AsyncFnOnce(&Client, &Exceeded) -> Result<T, Problem>,
) -> Result<T, Problem> {
    // JSON is seldom smaller than the rows that it is made of.
    let max_bytes = 2 * limits.bytes + OVERHEAD;
    let session =
        timeout(CONNECTING, log_in(server, max_bytes)).await.unwrap_or(Err(Problem::Unreachable))?;
    let Session { client, connection, exceeded, address } = session;
    let cancel = client.cancel_token();
    let work = async {
        begin(&client, limits.time).await?;
        refuse(&client, ROLE).await?;
        work(&client, &exceeded).await
    };
    let (done, connection) = {
        let mut driven = pin!(drive(work, connection));
        let Ok(ended) = timeout(limits.time + LATER, driven.as_mut()).await else {
            let _ = timeout(CONNECTING, cancel_until_ended(server, address, &cancel, driven)).await;
            return Err(Problem::Timeout);
        };
        ended
    };
    // The connection says goodbye, so that the server's log does not show one that broke.
    drop(client);
    if let Some(connection) = connection {
        let _ = timeout(LATER, connection).await;
    }
    done
}

/// Does the work while the connection runs. Returns the connection unless it has ended.
async fn drive<T>(
    work: impl Future<Output = T>,
    connection: ServerConnection,
) -> (T, Option<ServerConnection>) {
    match select(pin!(work), connection).await {
        Either::Left((done, connection)) => (done, Some(connection)),
        // The connection is dropped here, so the work ends after what it has received.
        Either::Right((_, work)) => (work.await, None),
    }
}

/// Ends the query on the server, which does not notice that its client is gone. One cancellation is not enough: the server
/// ignores it between two messages, and takes it and the end of its own timeout for one, which a function may catch.
async fn cancel_until_ended(
    server: &Server,
    address: SocketAddr,
    cancel: &CancelToken,
    mut driven: Pin<&mut impl Future>,
) {
    loop {
        if let Ok(stream) = connect(server, address).await {
            let _ = cancel.cancel_query_raw(stream, NoTls).await;
        }
        if timeout(LATER, driven.as_mut()).await.is_ok() {
            return;
        }
    }
}

/// Begins the transaction of a query, with texts as `values` reads them.
async fn begin(client: &Client, time: Duration) -> Result<(), Problem> {
    let ms = time.as_millis().max(1);
    let begin = format!(
        "BEGIN TRANSACTION READ ONLY; SET LOCAL statement_timeout = {ms}; SET LOCAL lock_timeout = {ms};
        SET LOCAL idle_in_transaction_session_timeout = {idle}; SET LOCAL datestyle = 'ISO, YMD';
        SET LOCAL intervalstyle = 'iso_8601'; SET LOCAL timezone = 'UTC'; SET LOCAL bytea_output = 'hex';
        SET LOCAL extra_float_digits = 1; SET LOCAL standard_conforming_strings = on",
        idle = ms + 10_000,
    );
    // A statement of its own: inside of the transaction, its end would undo it.
    let read_only = "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY";
    client.batch_execute(read_only).await.map_err(|error| problem(&error, 0))?;
    client.batch_execute(&begin).await.map_err(|error| problem(&error, 0))
}

/// Fails with the text that a query of ours returns, if it returns one.
async fn refuse(client: &Client, sql: &str) -> Result<(), Problem> {
    let found = client.simple_query(sql).await.map_err(|error| problem(&error, 0))?;
    match found.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    }) {
        Some(reason) => Err(Problem::Role(bounded(reason))),
        None => Ok(()),
    }
}

async fn select_rows(
    client: &Client,
    query: Query,
    limits: Limits,
    exceeded: &Exceeded,
) -> Result<Rows, Problem> {
    let of_statement = |error| problem(&error, DECLARE.len());
    let declare = client.prepare(&format!("{DECLARE}{}", query.sql)).await.map_err(of_statement)?;
    let (wanted, given) = (declare.params().len(), query.parameters.len());
    if wanted != given {
        return Err(Problem::Invalid(format!(
            "the statement has {wanted} parameters, and {given} are given"
        )));
    }
    client.execute_raw(&declare, query.parameters.into_iter().map(Parameter)).await.map_err(of_statement)?;
    // One more than wanted tells whether there are more.
    let fetch = format!("FETCH FORWARD {} FROM rows", limits.rows + 1);
    let described = client.prepare(&fetch).await.map_err(|error| problem(&error, 0))?;
    let columns = described.columns();
    let names: Vec<_> = columns.iter().map(tokio_postgres::Column::name).collect();
    let mut rows = Collector::new(&names, limits)?;
    let mut messages = pin!(client.simple_query_raw(&fetch).await.map_err(|error| problem(&error, 0))?);
    while let Some(message) = messages.next().await {
        let row = match message {
            Ok(SimpleQueryMessage::Row(row)) => row,
            Ok(_) => continue,
            Err(_) if exceeded.get() => {
                rows.stop()?;
                break;
            }
            Err(error) => return Err(problem(&error, 0)),
        };
        let value = |(at, column): (usize, &tokio_postgres::Column)| {
            row.get(at).map_or(serde_json::Value::Null, |text| to_json(column.type_(), text))
        };
        if !rows.push(columns.iter().enumerate().map(value))? {
            break;
        }
    }
    Ok(rows.finish())
}

/// What an error says. A position counts from the beginning of the caller's statement, `prefix` characters after the
/// beginning of ours.
fn problem(error: &tokio_postgres::Error, prefix: usize) -> Problem {
    let Some(found) = error.as_db_error() else { return Problem::Broken };
    // The server's own timeout, or our cancellation.
    if matches!(found.code().code(), "57014" | "55P03" | "25P03") {
        return Problem::Timeout;
    }
    let mut text = found.message().to_owned();
    if let Some(ErrorPosition::Original(position)) = found.position() {
        let position = (*position as usize).saturating_sub(prefix).max(1);
        text = format!("{} (at character {position})", bounded(&text));
    }
    Problem::Statement(format!("{} [{}]", bounded(&text), found.code().code()))
}
