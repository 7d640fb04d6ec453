//! The database itself makes the ledger append-only, whatever SQL is sent to it (invariant 2).

use crate::backend::{Backend, on_both};

on_both! {
    rows_of_the_ledger_cannot_be_changed
    rows_can_be_appended
}

/// The event `number` in the chain 'system', where `sequence`, `position` and id are the number's.
fn event(number: u8) -> String {
    format!(
        "INSERT INTO ledger_events (chain, sequence, position, event_id, action_type, outcome, unattached, record,
        prev_hash, hash, created_at) VALUES ({})",
        event_values(number)
    )
}

fn event_values(number: u8) -> String {
    let hash = format!("{number:064}");
    format!(
        "'system', {number}, {number}, 'event-{number:03}', 'system', 'success', TRUE, '{{}}', '{hash}', '{hash}',
        '2025-06-15T00:00:00Z'"
    )
}

fn checkpoint(size: u8) -> String {
    format!(
        "INSERT INTO ledger_checkpoints (size, root, key_id, signature, created_at) VALUES ({})",
        root(size)
    )
}

fn root(size: u8) -> String {
    format!("{size}, '{size:064}', 'k1', 's', '2025-06-15T00:00:00Z'")
}

/// Statements for both databases.
fn attempts() -> Vec<String> {
    let changed = "ON CONFLICT (chain, sequence) DO UPDATE SET record = 'forged'";
    let moved = event(1).replace("'system', 1, 1,", "'system', 9, 1,");
    [
        "UPDATE ledger_events SET record = 'forged'",
        "UPDATE ledger_events SET sequence = 7 WHERE sequence = 1",
        "DELETE FROM ledger_events",
        "DELETE FROM ledger_events WHERE event_id = 'event-001'",
        &format!("{} {changed}", event(1)),
        &event(1),
        &moved,
        "UPDATE ledger_checkpoints SET root = 'forged'",
        "DELETE FROM ledger_checkpoints",
        &format!("{} ON CONFLICT (size) DO UPDATE SET signature = 'forged'", checkpoint(1)),
        &checkpoint(1),
    ]
    .map(ToString::to_string)
    .to_vec()
}

/// REPLACE deletes conflicting rows, by any of the keys.
fn attempts_on_sqlite() -> Vec<String> {
    let replace = |sql: &str| sql.replacen("INSERT", "INSERT OR REPLACE", 1);
    let by = |from: &str, to: &str| replace(&event(1).replace(from, to));
    vec![
        replace(&event(1)),
        event(1).replacen("INSERT", "REPLACE", 1),
        by("'system', 1, 1, 'event-001'", "'system', 1, 8, 'event-008'"),
        by("'system', 1, 1, 'event-001'", "'system', 8, 1, 'event-008'"),
        by("'system', 1, 1, 'event-001'", "'system', 8, 8, 'event-001'"),
        by("'system', 1, 1, 'event-001'", "'system', 8, 1, 'event-008'").replace("position", "rowid"),
        "UPDATE OR REPLACE ledger_events SET sequence = 2, position = 2 WHERE sequence = 1".to_owned(),
        replace(&checkpoint(1)),
        checkpoint(1).replacen("INSERT", "REPLACE", 1),
    ]
}

fn attempts_on_postgres() -> Vec<String> {
    let truncate = ["ledger_events", "ledger_checkpoints", "ledger_checkpoints, ledger_events"];
    truncate.map(|tables| format!("TRUNCATE {tables}")).to_vec()
}

async fn rows_of_the_ledger_cannot_be_changed(b: &Backend) {
    const SELECT_ROWS: &str = "SELECT 'event ' || chain || sequence || ' ' || position || event_id || record || hash
        FROM ledger_events UNION ALL SELECT 'root ' || size || root || signature FROM ledger_checkpoints ORDER BY 1";
    let mut raw = b.raw().await;
    for sql in [event(1), event(2), checkpoint(1), checkpoint(2)] {
        raw.execute(&sql).await.unwrap();
    }
    let before = raw.texts(SELECT_ROWS).await;
    assert_eq!(before.len(), 4);
    let special = if b.store.backend() == "SQLite" { attempts_on_sqlite() } else { attempts_on_postgres() };
    for attempt in attempts().into_iter().chain(special) {
        match raw.execute(&attempt).await {
            Err(sqlx::Error::Database(error)) => {
                let why = error.message();
                let refused = why.contains("never") || error.is_unique_violation();
                assert!(refused, "refused for another reason ({why}): {attempt}");
            }
            other => panic!("{other:?} for: {attempt}"),
        }
        assert_eq!(raw.texts(SELECT_ROWS).await, before, "after: {attempt}");
    }
}

async fn rows_can_be_appended(b: &Backend) {
    let mut raw = b.raw().await;
    for number in 0..5 {
        raw.execute(&event(number)).await.unwrap();
        raw.execute(&checkpoint(number)).await.unwrap();
    }
    assert_eq!(raw.number("SELECT count(*) FROM ledger_events").await, 5);
    assert_eq!(raw.number("SELECT count(*) FROM ledger_checkpoints").await, 5);
}
