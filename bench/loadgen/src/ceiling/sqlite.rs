//! Rows in a SQLite file, written by one thread.

use std::sync::mpsc;

use rusqlite::Connection;

use super::database::{BATCH, Row, Write};
use crate::Result;

const SCHEMA: &str = "pragma journal_mode=wal; pragma synchronous=full;
    create table if not exists session(id text primary key, org text, config text, kind text) without rowid;
    create table if not exists tool_call(session text, tool text, call text, result blob,
        primary key(session, tool, call)) without rowid;
    create table if not exists invocation(id text primary key, session text, action text, params text,
        status text, result text) without rowid;";

pub fn open(path: &str) -> Result<mpsc::Sender<Write>> {
    let connection = Connection::open(path)?;
    connection.execute_batch(SCHEMA)?;
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || run_writer(&connection, &receiver));
    Ok(sender)
}

/// Group commit: writes all waiting rows in one transaction with one fsync, then answers all.
fn run_writer(connection: &Connection, receiver: &mpsc::Receiver<Write>) {
    let mut batch: Vec<Write> = Vec::new();
    while let Ok(first) = receiver.recv() {
        batch.push(first);
        batch.extend(receiver.try_iter().take(BATCH - 1));
        let written = write(connection, &batch).is_ok();
        if !written {
            let _ = connection.execute_batch("rollback");
        }
        for (_, done) in batch.drain(..) {
            let _ = done.send(written);
        }
    }
}

fn write(connection: &Connection, batch: &[Write]) -> rusqlite::Result<()> {
    let prepare = |sql| connection.prepare_cached(sql);
    prepare("begin immediate")?.execute([])?;
    for (row, _) in batch {
        match row {
            Row::Session { id, org, config, kind } => {
                prepare("insert into session values(?,?,?,?)")?.execute((id, org, config, kind))?
            }
            Row::Tool { session, tool, call, result } => prepare(
                "insert or ignore into tool_call values(?,?,?,?)",
            )?
            .execute((session, tool, call, &result[..]))?,
            Row::Invocation { id, session, action, params, status } => {
                prepare("insert into invocation values(?,?,?,?,?,null)")?
                    .execute((id, session, action, params, status))?
            }
            Row::InvocationResult { id, result } => {
                prepare("update invocation set status='completed', result=? where id=?")?
                    .execute((result, id))?
            }
        };
    }
    prepare("commit")?.execute([])?;
    Ok(())
}
