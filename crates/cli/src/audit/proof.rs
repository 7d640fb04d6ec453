//! `audit prove`: proves to somebody who holds a checkpoint that an event is in the ledger, or that the ledger is
//! append-only, without revealing any other event.

use std::path::Path;

use gate::{read_checkpoints, sign_ledger};
use ledger::{
    Checkpoint, Entry, Hash, PublicKey, prove_consistency, prove_inclusion, verify_consistency,
    verify_inclusion,
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use store::Store;

use super::{EVENTS_PER_QUERY, read_key, read_text};
use crate::args::ProveArgs;
use crate::context::Context;
use crate::failure::Failure;
use crate::output::json_line;

/// A self-contained proof: it carries the record and the checkpoints that it is checked against.
#[derive(Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
enum Proof {
    /// Proves that the record is in the ledger that the checkpoint covers.
    Inclusion { record: String, checkpoint: String, path: Vec<Hash> },
    /// Proves that the ledger of the new checkpoint starts with the ledger of the old one.
    Consistency { old: String, new: String, path: Vec<Hash> },
}

pub(super) async fn run(context: &Context, args: ProveArgs) -> Result<(), Failure> {
    let proof = match args {
        ProveArgs { check: Some(file), key, .. } => return check(context, &file, key.as_deref()),
        ProveArgs { from: Some(from), to, .. } => consistency(context, from, to).await?,
        ProveArgs { event, size, .. } => inclusion(context, &event.unwrap_or_default(), size).await?,
    };
    // Print JSON even without `--json`: a proof is meant to be saved to a file.
    json_line(&json!(proof));
    Ok(())
}

async fn inclusion(context: &Context, event: &str, size: Option<u64>) -> Result<Proof, Failure> {
    let store = context.store().await?;
    let found = store.ledger_entries_about(&context.ledger_id(&store, event).await?, 2).await?;
    let entry = match found.as_slice() {
        [entry] => entry,
        [] => return Err(Failure::failed(format!("there is no event {event} in the ledger"))),
        _ => return Err(Failure::usage("this is a run: `proliferate audit show` lists its events")),
    };
    let covers = |checkpoints: Vec<Checkpoint>| {
        let fits = |checkpoint: &Checkpoint| {
            checkpoint.size > entry.position && size.is_none_or(|size| size == checkpoint.size)
        };
        checkpoints.into_iter().filter(fits).min_by_key(|checkpoint| checkpoint.size)
    };
    let mut checkpoint = covers(read_checkpoints(&context.config.gate_settings())?);
    if checkpoint.is_none() && size.is_none() {
        sign_ledger(&context.config.gate_settings(), &store, &context.clock).await?;
        checkpoint = covers(read_checkpoints(&context.config.gate_settings())?);
    }
    let checkpoint = checkpoint.ok_or_else(|| {
        Failure::failed(format!(
            "no such checkpoint has the event, which is record {}: name the size of another with --size",
            entry.position
        ))
    })?;
    let hashes = hashes(&store, &checkpoint).await?;
    let at = usize::try_from(entry.position).unwrap_or(usize::MAX);
    let path = prove_inclusion(&hashes, at).ok_or_else(|| Failure::failed("the event is not in the tree"))?;
    Ok(Proof::Inclusion { record: entry.to_line(), checkpoint: checkpoint.to_string(), path })
}

async fn consistency(context: &Context, from: u64, to: Option<u64>) -> Result<Proof, Failure> {
    let store = context.store().await?;
    let checkpoints = read_checkpoints(&context.config.gate_settings())?;
    let newest = checkpoints.iter().map(|checkpoint| checkpoint.size).max().unwrap_or_default();
    let of_size = |size: u64| {
        let found = checkpoints.iter().find(|checkpoint| checkpoint.size == size);
        found.ok_or_else(|| {
            let sizes: Vec<_> = checkpoints.iter().map(|checkpoint| checkpoint.size.to_string()).collect();
            Failure::failed(format!("there is no checkpoint of {size} records, only of {}", sizes.join(", ")))
        })
    };
    let (old, new) = (of_size(from)?, of_size(to.unwrap_or(newest))?);
    let hashes = hashes(&store, new).await?;
    let count = usize::try_from(old.size).unwrap_or(usize::MAX);
    let path = prove_consistency(&hashes, count)
        .ok_or_else(|| Failure::usage("--to must not be smaller than --from"))?;
    Ok(Proof::Consistency { old: old.to_string(), new: new.to_string(), path })
}

/// Reads the leaf hashes of the tree that a checkpoint covers. Fails if the ledger no longer matches the checkpoint,
/// since a proof from it would be worthless.
async fn hashes(store: &Store, checkpoint: &Checkpoint) -> Result<Vec<Hash>, Failure> {
    let mut hashes = Vec::new();
    while (hashes.len() as u64) < checkpoint.size {
        let missing = i64::try_from(checkpoint.size - hashes.len() as u64).unwrap_or(EVENTS_PER_QUERY);
        let page = store.ledger_hashes(hashes.len() as u64, missing.min(EVENTS_PER_QUERY)).await?;
        if page.is_empty() {
            break;
        }
        hashes.extend(page);
    }
    let mut tree = ledger::Tree::default();
    tree.extend(hashes.iter().copied());
    if (tree.size(), tree.root()) == (checkpoint.size, checkpoint.root) {
        Ok(hashes)
    } else {
        Err(Failure::failed("the ledger does not agree with its checkpoint: run `proliferate audit verify`"))
    }
}

fn check(context: &Context, file: &Path, key: Option<&Path>) -> Result<(), Failure> {
    let wrong = |what: &str| Failure::failed(format!("{}: {what}", file.display()));
    let key = key.map(read_key).transpose()?;
    let proof: Proof =
        serde_json::from_str(&read_text(file)?).map_err(|_| wrong("this is no proof of a ledger"))?;
    let sentence = match proof {
        Proof::Inclusion { record, checkpoint, path } => {
            let checkpoint = parse_checkpoint(&checkpoint, key.as_ref()).map_err(|what| wrong(&what))?;
            let entry = Entry::from_line(record.as_bytes())
                .ok_or_else(|| wrong("the record does not have the hash it says: it was changed"))?;
            if !verify_inclusion(&entry.hash, entry.position, checkpoint.size, &checkpoint.root, &path) {
                return Err(wrong("the proof does not lead from the record to the checkpoint"));
            }
            format!("record {} is in the ledger of {} records", entry.position, checkpoint.size)
        }
        Proof::Consistency { old, new, path } => {
            let old = parse_checkpoint(&old, key.as_ref()).map_err(|what| wrong(&what))?;
            let new = parse_checkpoint(&new, key.as_ref()).map_err(|what| wrong(&what))?;
            if !verify_consistency((old.size, &old.root), (new.size, &new.root), &path) {
                return Err(wrong("the proof does not lead from the one checkpoint to the other"));
            }
            format!("the ledger of {} records is the beginning of the one of {} records", old.size, new.size)
        }
    };
    let unproven = key.is_none().then_some("no key was given: who signed the checkpoint is unproven");
    let value = json!({ "ok": true, "proven": sentence, "unproven": Vec::from_iter(unproven) });
    let unproven = unproven.map(|words| format!("\nunproven: {words}")).unwrap_or_default();
    context.out.result(&value, &format!("{sentence}{unproven}"));
    Ok(())
}

/// Parses exactly one checkpoint and, if a key is given, verifies its signature.
fn parse_checkpoint(text: &str, key: Option<&PublicKey>) -> Result<Checkpoint, String> {
    let mut found = Checkpoint::parse_all(text).map_err(|error| error.to_string())?;
    let checkpoint = found.pop().filter(|_| found.is_empty()).ok_or("one checkpoint is needed")?;
    if key.is_some_and(|key| !checkpoint.is_signed_by(key)) {
        return Err(format!(
            "the checkpoint of {} records is not signed by the key that was given",
            checkpoint.size
        ));
    }
    Ok(checkpoint)
}
