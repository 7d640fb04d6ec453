//! Which key signs where: keys follow each other by changes that both sign, or because one was lost.

use super::{Fault, Unproven};
use crate::checkpoint::{Checkpoint, KeyChange};
use crate::key::PublicKey;

/// The keys of a ledger in their order.
#[derive(Debug)]
pub(super) struct Keys(Vec<Span>);

/// The records that one key signs for.
#[derive(Debug)]
struct Span {
    /// The record that made it the key; its checkpoints have more records than this.
    after: Option<u64>,
    /// Not known before a change names it.
    key: Option<PublicKey>,
    /// Counts the keys that were lost: within one line each key is vouched for by the one before it.
    line: usize,
}

impl Default for Keys {
    fn default() -> Self {
        Self(vec![Span { after: None, key: None, line: 0 }])
    }
}

impl Keys {
    /// One key hands over to the next; false if it is not the one that was in force.
    pub(super) fn change(&mut self, position: u64, change: KeyChange) -> bool {
        let Some(last) = self.0.last_mut() else { return false };
        if *last.key.get_or_insert_with(|| change.old.clone()) != change.old {
            return false;
        }
        let line = last.line;
        self.0.push(Span { after: Some(position), key: Some(change.new), line });
        true
    }

    /// Another key signs because the last one was lost.
    pub(super) fn replace_lost(&mut self, position: u64, key: PublicKey) -> bool {
        let line = self.0.last().map_or(0, |last| last.line + 1);
        self.0.push(Span { after: Some(position), key: Some(key), line });
        true
    }

    /// Whether `signed` holds for the key that was in force for a ledger of this size, seen by whoever has `given`.
    /// None where that key is of another line than theirs.
    pub(super) fn holds(
        &self,
        given: &PublicKey,
        size: u64,
        signed: impl Fn(&PublicKey) -> bool,
    ) -> Option<bool> {
        let span = self.0.iter().rev().find(|span| span.after.is_none_or(|after| after < size))?;
        if Some(span.line) != self.line_of(given) {
            return span.key.as_ref().filter(|key| !signed(key)).map(|_| false);
        }
        Some(signed(span.key.as_ref().unwrap_or(given)))
    }

    /// Each checkpoint must be signed by the key that was in force at its size: a key that was retired, and may have
    /// leaked since, cannot sign for what came later.
    pub(super) fn check_signatures<'a>(
        &self,
        checkpoints: impl Iterator<Item = &'a Checkpoint>,
        given: &PublicKey,
    ) -> Result<Option<Unproven>, Fault> {
        self.line_of(given).ok_or(Fault::Key)?;
        let mut unproven = None;
        for checkpoint in checkpoints {
            match self.holds(given, checkpoint.size, |key| checkpoint.is_signed_by(key)) {
                Some(true) => {}
                Some(false) => return Err(Fault::Signature { checkpoint: checkpoint.size }),
                None => unproven = self.lost_key(),
            }
        }
        Ok(unproven)
    }

    /// The line that a key belongs to. One that no record names can only be the first, if nothing else is.
    fn line_of(&self, given: &PublicKey) -> Option<usize> {
        let named = self.0.iter().find(|span| span.key.as_ref() == Some(given));
        named.or_else(|| self.0.first().filter(|first| first.key.is_none())).map(|span| span.line)
    }

    /// What the last loss of a key leaves unproven.
    pub(super) fn lost_key(&self) -> Option<Unproven> {
        let record = self.0.windows(2).rev().find_map(|pair| match pair {
            [before, span] if before.line != span.line => span.after,
            _ => None,
        });
        record.map(|record| Unproven::LostKey { record })
    }
}
