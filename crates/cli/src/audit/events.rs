//! `audit tail` and `audit show`: events for people to read.

use std::time::Duration;

use ledger::{Chain, Entry};
use proto::OrgId;
use serde_json::{Value, json};
use store::Store;

use super::EVENTS_PER_QUERY;
use crate::clean::{clean, shortened};
use crate::context::Context;
use crate::failure::Failure;
use crate::output::{BOLD, DIM, GREEN, RED, json_line, line};

const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// The maximum number of characters of a field that `tail` prints; `show` prints the complete field.
const MAX_FIELD_CHARS: usize = 120;
/// The maximum number of events that `show` prints, more than any run has.
const MAX_EVENTS_OF_A_RUN: i64 = 10_000;

pub(super) async fn tail(
    context: &Context,
    follow: bool,
    limit: u32,
    org: Option<&str>,
) -> Result<(), Failure> {
    let store = context.store().await?;
    let chain = match org {
        None => None,
        Some(org) => Some(chain_of(context.org(&store, Some(org)).await?)?),
    };
    // Read the ledger size before the events: an event appended in between is then read twice rather than never, and
    // the next line skips the duplicates by position.
    let mut next = store.ledger_size().await?;
    let last = store.last_ledger_entries(chain.as_ref(), limit.into()).await?;
    next = last.last().map_or(next, |entry| next.max(entry.position + 1));
    if !follow && context.out.is_json() {
        json_line(&Value::Array(last.iter().map(value).collect()));
    } else {
        for entry in &last {
            print(context, entry);
        }
    }
    if follow { follow_events(context, &store, chain.as_ref(), next).await } else { Ok(()) }
}

/// Prints new events from this position on until Ctrl-C.
async fn follow_events(
    context: &Context,
    store: &Store,
    chain: Option<&Chain>,
    mut next: u64,
) -> Result<(), Failure> {
    loop {
        tokio::select! {
            () = tokio::time::sleep(POLL_INTERVAL) => {}
            _ = tokio::signal::ctrl_c() => return Ok(()),
        }
        for entry in store.ledger_entries(next, EVENTS_PER_QUERY).await? {
            next = entry.position + 1;
            if chain.is_none_or(|chain| *chain == entry.chain) {
                print(context, &entry);
            }
        }
    }
}

pub(super) async fn show(context: &Context, id: &str) -> Result<(), Failure> {
    let store = context.store().await?;
    let found =
        store.ledger_entries_about(&context.ledger_id(&store, id).await?, MAX_EVENTS_OF_A_RUN).await?;
    if found.is_empty() {
        return Err(Failure::failed(format!("there is no event and no run {id} in the ledger")));
    }
    if context.out.is_json() {
        json_line(&Value::Array(found.iter().map(value).collect()));
        return Ok(());
    }
    for entry in &found {
        let Entry { chain, sequence, position, hash, .. } = entry;
        line(&format!("{BOLD}record {position}{BOLD:#} {DIM}{} {sequence} {hash}{DIM:#}", chain.as_str()));
        line(&clean(&serde_json::to_string_pretty(&event_json(entry)).unwrap_or_default()));
    }
    Ok(())
}

fn chain_of(org: OrgId) -> Result<Chain, Failure> {
    Chain::new(org.uuid().to_string()).map_err(|error| Failure::failed(error.to_string()))
}

fn event_json(entry: &Entry) -> Value {
    serde_json::from_str(&entry.record).unwrap_or_default()
}

fn value(entry: &Entry) -> Value {
    json!({ "chain": entry.chain.as_str(), "sequence": entry.sequence, "position": entry.position,
        "hash": entry.hash.to_string(), "prevHash": entry.prev_hash.to_string(), "event": event_json(entry) })
}

/// Prints one event on one line.
fn print(context: &Context, entry: &Entry) {
    if context.out.is_json() {
        return json_line(&value(entry));
    }
    let record = event_json(entry);
    let text = |path: &str| {
        let found = record.pointer(path).and_then(Value::as_str).unwrap_or("-");
        shortened(&clean(found), MAX_FIELD_CHARS)
    };
    let outcome = text("/outcome");
    let colour = if outcome == "allow" || outcome == "success" { GREEN } else { RED };
    line(&format!(
        "{DIM}{}{DIM:#} {:>7} {:14} {colour}{outcome:7}{colour:#} {} by {} {} {DIM}{} {}{DIM:#}",
        text("/timestamp_utc"),
        entry.position,
        text("/action_type"),
        text("/target/name"),
        text("/actor/actor_type"),
        text("/actor/actor_id"),
        text("/event_id"),
        text("/outcome_reason"),
    ));
}
