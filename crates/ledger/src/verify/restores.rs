//! Database restores, which explain checkpoints of records that no longer exist.

use std::fmt;

use super::keys::Keys;
use super::{ExpectedCheckpoint, Fault, UnprovenClaim};
use crate::checkpoint::Checkpoint;
use crate::event::{Event, Timestamp};
use crate::key::PublicKey;
use crate::statement::Restore;

/// A restore, and the checkpoints of the records that it rolled back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rollback {
    /// The position of the record that states the restore, which is also the number of records in the backup.
    pub record: u64,
    pub by: String,
    pub at: Timestamp,
    pub checkpoints: Vec<Checkpoint>,
}

impl fmt::Display for Rollback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { record, by, at, checkpoints } = self;
        let sizes: Vec<_> = checkpoints.iter().map(|checkpoint| checkpoint.size).collect();
        let (least, most) = (sizes.iter().min().unwrap_or(record), sizes.iter().max().unwrap_or(record));
        write!(
            f,
            "rolled back by a restore at {} by {by} (record {record}): the database was restored to {record} records, and \
             {} checkpoints of {least} to {most} records cover records from before the restore",
            at.as_str(),
            checkpoints.len()
        )
    }
}

#[derive(Debug, Default)]
pub(super) struct Restores(Vec<RestoreRecord>);

#[derive(Debug)]
struct RestoreRecord {
    restore: Restore,
    rolled_back: Rollback,
    /// The fault that the first of these checkpoints would be without the restore.
    fault: Option<Fault>,
}

impl Restores {
    pub(super) fn note(&mut self, position: u64, restore: Restore, event: &Event) {
        let rolled_back = Rollback {
            record: position,
            by: event.actor.actor_id.as_str().to_owned(),
            at: event.timestamp_utc.clone(),
            checkpoints: Vec::new(),
        };
        self.0.push(RestoreRecord { restore, rolled_back, fault: None });
    }

    /// Accepts a mismatching checkpoint if a restore explains it; otherwise returns the fault.
    pub(super) fn explain(&mut self, held: &ExpectedCheckpoint, fault: Fault) -> Result<(), Fault> {
        let size = held.checkpoint.size;
        let covers = |noted: &&mut RestoreRecord| noted.restore.size < size && size <= noted.restore.newest;
        match self.0.iter_mut().find(covers).filter(|_| held.may_be_rolled_back) {
            None => Err(fault),
            Some(noted) => {
                noted.fault.get_or_insert(fault);
                noted.rolled_back.checkpoints.push(held.checkpoint.clone());
                Ok(())
            }
        }
    }

    pub(super) fn has_rolled_back(&self, checkpoint: &Checkpoint) -> bool {
        self.0.iter().any(|noted| noted.rolled_back.checkpoints.contains(checkpoint))
    }

    /// A restore counts only if the key in force signed it. One that a key of another lineage signed proves
    /// nothing: anybody who can write to the database can claim that a key was lost, and sign with another.
    pub(super) fn check_signatures(
        &self,
        keys: &Keys,
        given: &PublicKey,
    ) -> Result<Option<UnprovenClaim>, Fault> {
        let mut unproven = None;
        for noted in &self.0 {
            let Some(fault) = &noted.fault else { continue };
            match keys.check_signer(given, noted.rolled_back.record, |key| noted.restore.is_signed_by(key)) {
                Some(true) => {}
                Some(false) => return Err(fault.clone()),
                None => unproven = Some(keys.lost_key().ok_or_else(|| fault.clone())?),
            }
        }
        Ok(unproven)
    }

    pub(super) fn finish(self) -> Vec<Rollback> {
        self.0.into_iter().map(|noted| noted.rolled_back).filter(|it| !it.checkpoints.is_empty()).collect()
    }
}
