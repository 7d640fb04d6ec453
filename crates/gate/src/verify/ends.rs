//! Checks the end of the ledger: its size, the heads of its chains, and the checkpoints in the database against those
//! stored outside of it.

use std::collections::{BTreeMap, HashMap};

use ledger::{Checkpoint, Fault, Head, Report};
use proto::OrgId;
use store::{AuditReader, KeptCheckpoint};

use super::VerifyError;
use super::difference::{Place, readable};

pub(super) async fn check_tree(reader: &mut AuditReader, events: u64) -> Result<(), VerifyError> {
    let size = reader.tree_size().await?;
    let events_stored = i64::try_from(events).unwrap_or(i64::MAX);
    let record = (size > events_stored).then_some(events);
    let place = Place { table: "ledger_tree", key: &|| "id=1".to_owned(), record };
    place.compare("size", &size, &events_stored)
}

/// Checks that there is one row for the end of every chain, and no other row.
pub(super) async fn check_heads(
    reader: &mut AuditReader,
    ends: BTreeMap<String, Head>,
) -> Result<(), VerifyError> {
    let rows = readable("ledger_heads", reader.heads().await)?;
    let mut rows: HashMap<_, _> = rows.into_iter().map(|row| (row.chain.clone(), row)).collect();
    for (chain, head) in ends {
        let key = || format!("chain={chain}");
        let place = Place { table: "ledger_heads", key: &key, record: None };
        let Some(row) = rows.remove(&chain) else {
            return Err(place.difference(
                "chain",
                "no row".to_owned(),
                format!("an end at {}", head.sequence),
            ));
        };
        place.compare("sequence", &u64::try_from(row.sequence).unwrap_or(u64::MAX), &head.sequence)?;
        place.compare("hash", &row.hash, &head.hash.to_string())?;
        place.compare("org_id", &row.org_id, &chain.parse::<OrgId>().ok())?;
    }
    match rows.into_keys().min() {
        None => Ok(()),
        Some(chain) => {
            let key = || format!("chain={chain}");
            let place = Place { table: "ledger_heads", key: &key, record: None };
            Err(place.difference("chain", "a head".to_owned(), "no event of this chain".to_owned()))
        }
    }
}

/// The checkpoints in the database, by size. Each row must match its signed note.
pub(super) async fn own_checkpoints(
    reader: &mut AuditReader,
) -> Result<BTreeMap<u64, Checkpoint>, VerifyError> {
    let mut rows = BTreeMap::new();
    for row in readable("ledger_checkpoints", reader.checkpoints().await)? {
        let checkpoint = read(&row)?;
        rows.insert(checkpoint.size, checkpoint);
    }
    Ok(rows)
}

/// Checks that every checkpoint stored outside is also in the database, where it is written first. Checkpoints of a
/// part that a restore rolled back are exempt.
pub(super) fn check_outside(
    rows: &BTreeMap<u64, Checkpoint>,
    outside: &[Checkpoint],
    report: &Report,
) -> Result<(), VerifyError> {
    let gone = |kept: &Checkpoint| report.rolled_back.iter().any(|back| back.checkpoints.contains(kept));
    for kept in outside.iter().filter(|kept| !gone(kept)) {
        let key = || format!("size={}", kept.size);
        let place = Place { table: "ledger_checkpoints", key: &key, record: None };
        let stored = rows.get(&kept.size).map(ToString::to_string);
        place.compare("signature", &stored, &Some(kept.to_string()))?;
    }
    Ok(())
}

/// Explains a checkpoint that does not match or has an invalid signature: if its row differs from the copy outside, the
/// row was changed.
pub(super) fn explain_checkpoint_fault(
    fault: Fault,
    rows: &BTreeMap<u64, Checkpoint>,
    outside: &[Checkpoint],
) -> VerifyError {
    let (Fault::Signature { checkpoint: size } | Fault::Rewritten { to: size, .. }) = fault else {
        return fault.into();
    };
    let kept = outside.iter().rfind(|kept| kept.size == size);
    match (rows.get(&size), kept) {
        (Some(row), Some(kept)) if row != kept => {
            let key = || format!("size={size}");
            let place = Place { table: "ledger_checkpoints", key: &key, record: None };
            place.differs("signature", &row.to_string(), &kept.to_string())
        }
        _ => fault.into(),
    }
}

fn read(row: &KeptCheckpoint) -> Result<Checkpoint, VerifyError> {
    let key = || format!("size={}", row.size);
    let place = Place { table: "ledger_checkpoints", key: &key, record: None };
    let read = Checkpoint::parse_all(&row.note).ok().and_then(|mut all| all.pop().filter(|_| all.is_empty()));
    let Some(checkpoint) = read else {
        return Err(place.difference(
            "signature",
            format!("{:?}", row.note),
            "a signed checkpoint".to_owned(),
        ));
    };
    place.compare("size", &u64::try_from(row.size).unwrap_or(u64::MAX), &checkpoint.size)?;
    place.compare("root", &row.root, &checkpoint.root.to_string())?;
    let signer = checkpoint.key_ids().map(hex::encode).next().unwrap_or_default();
    place.compare("key_id", &row.key_id, &signer)?;
    Ok(checkpoint)
}
