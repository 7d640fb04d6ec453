//! Rows in PostgreSQL over one connection: all waiting rows form one pipelined transaction with one statement
//! per kind of row.

use futures_util::future::join_all;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, NoTls, Statement};

use super::database::{BATCH, Row, Write};
use crate::Result;

const SCHEMA: &str = "
    create table if not exists session(id text primary key, org text, config text, kind text);
    create table if not exists tool_call(session text, tool text, call text, result text,
        primary key(session, tool, call));
    create table if not exists invocation(id text primary key, session text, action text, params text,
        status text, result text);";

/// One SQL statement per kind of row; each takes its columns as arrays.
const STATEMENTS: [&str; 4] = [
    "insert into session select * from unnest($1::text[], $2::text[], $3::text[], $4::text[])",
    "insert into tool_call select * from unnest($1::text[], $2::text[], $3::text[], $4::text[]) on conflict do nothing",
    "insert into invocation select *, null from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[])",
    "update invocation set status = 'completed', result = done.result
        from unnest($1::text[], $2::text[]) as done(id, result) where invocation.id = done.id",
];

type Columns<'a> = Vec<Vec<&'a str>>;

pub async fn open(url: &str) -> Result<UnboundedSender<Write>> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    check_durability(&client).await?;
    client.batch_execute(SCHEMA).await?;
    let mut statements = Vec::new();
    for text in STATEMENTS {
        statements.push(client.prepare(text).await?);
    }
    let (sender, receiver) = unbounded_channel();
    tokio::spawn(run_writer(client, statements, receiver));
    Ok(sender)
}

/// A baseline that does not wait for the disk would not be comparable.
async fn check_durability(client: &Client) -> Result<()> {
    for setting in ["fsync", "synchronous_commit"] {
        let value: String = client.query_one(&format!("show {setting}"), &[]).await?.get(0);
        if value != "on" {
            return Err(format!("this PostgreSQL has {setting}={value}; the ceiling needs it on").into());
        }
    }
    Ok(())
}

async fn run_writer(client: Client, statements: Vec<Statement>, mut receiver: UnboundedReceiver<Write>) {
    let mut batch = Vec::new();
    while receiver.recv_many(&mut batch, BATCH).await > 0 {
        let written = write(&client, &statements, &batch).await;
        if let Err(error) = &written {
            eprintln!("{error}");
        }
        for (_, done) in batch.drain(..) {
            let _ = done.send(written.is_ok());
        }
    }
}

async fn write(client: &Client, statements: &[Statement], batch: &[Write]) -> Result<()> {
    let mut kinds: [Columns; 4] = Default::default();
    for (row, _) in batch {
        let (kind, cells) = cells(row)?;
        kinds[kind].resize(cells.len(), Vec::new());
        for (column, cell) in kinds[kind].iter_mut().zip(cells) {
            column.push(cell);
        }
    }
    let present: Vec<_> = statements.iter().zip(&kinds).filter(|(_, columns)| !columns.is_empty()).collect();
    if let [(statement, columns)] = present[..] {
        return execute(client, statement, columns).await; // a single statement is its own transaction
    }
    let all = join_all(present.into_iter().map(|(statement, columns)| execute(client, statement, columns)));
    // `join!` polls the futures in this order, so the statements are sent in this order without waiting in
    // between.
    let (begun, done, committed) =
        tokio::join!(client.batch_execute("begin"), all, client.batch_execute("commit"));
    begun?;
    done.into_iter().collect::<Result<()>>()?;
    Ok(committed?)
}

async fn execute(client: &Client, statement: &Statement, columns: &Columns<'_>) -> Result<()> {
    let lists: Vec<_> = columns.iter().map(|column| column as &(dyn ToSql + Sync)).collect();
    client.execute(statement, &lists).await?;
    Ok(())
}

/// The index of the statement for a row, and its parameters.
fn cells(row: &Row) -> Result<(usize, Vec<&str>)> {
    Ok(match row {
        Row::Session { id, org, config, kind } => (0, vec![id, org, config, kind]),
        Row::Tool { session, tool, call, result } => {
            (1, vec![session, tool, call, std::str::from_utf8(result)?])
        }
        Row::Invocation { id, session, action, params, status } => {
            (2, vec![id, session, action, params, status])
        }
        Row::InvocationResult { id, result } => (3, vec![id, result]),
    })
}
