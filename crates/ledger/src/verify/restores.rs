//! What restores of the database explain: checkpoints of records that are not there any more.

use std::fmt;

use super::keys::Keys;
use super::{Fault, Held, Unproven};
use crate::checkpoint::Checkpoint;
use crate::event::{Event, Timestamp};
use crate::key::PublicKey;
use crate::statement::Restore;

/// A restore, and the checkpoints of what it rolled back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolledBack {
    /// The record that tells of the restore: as many records as the backup had are before it.
    pub record: u64,
    pub by: String,
    pub at: Timestamp,
    pub checkpoints: Vec<Checkpoint>,
}

impl fmt::Display for RolledBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { record, by, at, checkpoints } = self;
        let sizes: Vec<_> = checkpoints.iter().map(|checkpoint| checkpoint.size).collect();
        let (least, most) = (sizes.iter().min().unwrap_or(record), sizes.iter().max().unwrap_or(record));
        write!(
            f,
            "rolled back by a restore at {} by {by} (record {record}): the database went back to {record} records, and \
             {} checkpoints of {least} to {most} records are of what was there before",
            at.as_str(),
            checkpoints.len()
        )
    }
}

#[derive(Debug, Default)]
pub(super) struct Restores(Vec<Noted>);

#[derive(Debug)]
struct Noted {
    restore: Restore,
    rolled_back: RolledBack,
    /// What the first of these checkpoints would be without the restore.
    fault: Option<Fault>,
}

impl Restores {
    pub(super) fn note(&mut self, position: u64, restore: Restore, event: &Event) {
        let rolled_back = RolledBack {
            record: position,
            by: event.actor.actor_id.as_str().to_owned(),
            at: event.timestamp_utc.clone(),
            checkpoints: Vec::new(),
        };
        self.0.push(Noted { restore, rolled_back, fault: None });
    }

    /// Accepts a checkpoint that does not agree if a restore explains it.
    pub(super) fn explain(&mut self, held: &Held, fault: Fault) -> Result<(), Fault> {
        let size = held.checkpoint.size;
        let covers = |noted: &&mut Noted| noted.restore.size < size && size <= noted.restore.newest;
        match self.0.iter_mut().find(covers).filter(|_| held.may_be_older) {
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

    /// A restore explains something only if the key in force signed it. One that was signed by a key of another line proves
    /// nothing: whoever can write to the database can say that a key was lost and sign with another.
    pub(super) fn check_signatures(&self, keys: &Keys, given: &PublicKey) -> Result<Option<Unproven>, Fault> {
        let mut unproven = None;
        for noted in &self.0 {
            let Some(fault) = &noted.fault else { continue };
            match keys.holds(given, noted.rolled_back.record, |key| noted.restore.is_signed_by(key)) {
                Some(true) => {}
                Some(false) => return Err(fault.clone()),
                None => unproven = Some(keys.lost_key().ok_or_else(|| fault.clone())?),
            }
        }
        Ok(unproven)
    }

    pub(super) fn finish(self) -> Vec<RolledBack> {
        self.0.into_iter().map(|noted| noted.rolled_back).filter(|it| !it.checkpoints.is_empty()).collect()
    }
}
