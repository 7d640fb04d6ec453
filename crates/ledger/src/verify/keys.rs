//! Tracks which signing key is in force where. A key is replaced by a change that both keys sign, or because
//! it was lost.

use super::{Fault, UnprovenClaim};
use crate::checkpoint::{Checkpoint, KeyChange};
use crate::key::PublicKey;

/// The signing keys of a ledger, in order.
#[derive(Debug)]
pub(super) struct Keys(Vec<Span>);

/// The range of records that one key signs for.
#[derive(Debug)]
struct Span {
    /// The record that put the key in force; the key signs checkpoints of more records than this.
    after: Option<u64>,
    /// The key, or `None` until a key change names it.
    key: Option<PublicKey>,
    /// Number of lost keys before this one. Within one lineage, each key is vouched for by its predecessor.
    lineage: usize,
}

impl Default for Keys {
    fn default() -> Self {
        Self(vec![Span { after: None, key: None, lineage: 0 }])
    }
}

impl Keys {
    /// Hands over from one key to the next; returns false if the old key is not the one in force.
    pub(super) fn change(&mut self, position: u64, change: KeyChange) -> bool {
        let Some(last) = self.0.last_mut() else { return false };
        if *last.key.get_or_insert_with(|| change.old.clone()) != change.old {
            return false;
        }
        let lineage = last.lineage;
        self.0.push(Span { after: Some(position), key: Some(change.new), lineage });
        true
    }

    /// Puts another key in force because the last one was lost.
    pub(super) fn replace_lost(&mut self, position: u64, key: PublicKey) -> bool {
        let lineage = self.0.last().map_or(0, |last| last.lineage + 1);
        self.0.push(Span { after: Some(position), key: Some(key), lineage });
        true
    }

    /// Whether `signed` is true for the key in force at ledger size `size`, for a verifier who trusts
    /// `given`. `None` if that key belongs to another lineage than `given`.
    pub(super) fn check_signer(
        &self,
        given: &PublicKey,
        size: u64,
        signed: impl Fn(&PublicKey) -> bool,
    ) -> Option<bool> {
        let span = self.0.iter().rev().find(|span| span.after.is_none_or(|after| after < size))?;
        if Some(span.lineage) != self.lineage_of(given) {
            return span.key.as_ref().filter(|key| !signed(key)).map(|_| false);
        }
        Some(signed(span.key.as_ref().unwrap_or(given)))
    }

    /// Each checkpoint must be signed by the key in force at its size, so that a retired key, which may have
    /// leaked since, cannot sign for later records.
    pub(super) fn check_signatures<'a>(
        &self,
        checkpoints: impl Iterator<Item = &'a Checkpoint>,
        given: &PublicKey,
    ) -> Result<Option<UnprovenClaim>, Fault> {
        self.lineage_of(given).ok_or(Fault::Key)?;
        let mut unproven = None;
        for checkpoint in checkpoints {
            match self.check_signer(given, checkpoint.size, |key| checkpoint.is_signed_by(key)) {
                Some(true) => {}
                Some(false) => return Err(Fault::Signature { checkpoint: checkpoint.size }),
                None => unproven = self.lost_key(),
            }
        }
        Ok(unproven)
    }

    /// The lineage of a key. A key that no record names can only be the first key, and only if no record
    /// names that one.
    fn lineage_of(&self, given: &PublicKey) -> Option<usize> {
        let named = self.0.iter().find(|span| span.key.as_ref() == Some(given));
        named.or_else(|| self.0.first().filter(|first| first.key.is_none())).map(|span| span.lineage)
    }

    /// What the most recent loss of a key leaves unproven.
    pub(super) fn lost_key(&self) -> Option<UnprovenClaim> {
        let record = self.0.windows(2).rev().find_map(|pair| match pair {
            [before, span] if before.lineage != span.lineage => span.after,
            _ => None,
        });
        record.map(|record| UnprovenClaim::LostKey { record })
    }
}
