//! Verifies an export without the gateway: line after line, in constant memory, against checkpoints held elsewhere.
//!
//! The chain shows what was changed, moved, added or taken out by someone who did not compute it anew. Whoever
//! computes it anew is found by a checkpoint, and whoever signs another checkpoint by the key.

use std::collections::HashMap;
use std::fmt;

use crate::checkpoint::{Checkpoint, KeyChange};
use crate::entry::{Chain, Head, Line, MAX_LINE, event_hash};
use crate::event::{ActionType, Event};
use crate::hash::Hash;
use crate::key::PublicKey;
use crate::tree::Tree;

/// Takes the lines of an export in order; see [`Verifier::push`] and [`Verifier::finish`].
#[derive(Debug)]
pub struct Verifier {
    key: Option<PublicKey>,
    /// By size, the smallest first; those before `compared` agree with the records so far.
    checkpoints: Vec<Checkpoint>,
    compared: usize,
    tree: Tree,
    heads: HashMap<Chain, Head>,
    changes: Vec<(u64, KeyChange)>,
    /// Kept from line to line for its memory.
    rewritten: Vec<u8>,
}

/// The first thing that is wrong. Positions count from 0 in ledger order, as `position` in the records does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// This record, or what should stand here.
    Record { position: u64, event_id: Option<String>, problem: RecordProblem },
    /// The records agree with each other but not with a checkpoint: one from `from` to before `to` is not the original.
    Rewritten { from: u64, to: u64 },
    /// A checkpoint speaks of more records than there are.
    Truncated { records: u64, checkpoint: u64 },
    /// A checkpoint was not signed by the key that was in force at its size.
    Signature { checkpoint: u64 },
    /// The key that was given never signed for this ledger.
    Key,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordProblem {
    #[error("is not a record of a ledger")]
    Unreadable,
    #[error("says it is record {0}: records are missing, added or moved here")]
    Position(u64),
    #[error("does not follow the record before it in its chain")]
    Chain,
    #[error("does not have the hash it says: it was changed")]
    Hash,
    #[error("is not written in the one form that records have")]
    Form,
    #[error("changes the signing key without the signatures of the present and the next key")]
    KeyChange,
}

/// What was verified, and what could not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub records: u64,
    pub chains: usize,
    pub root: Hash,
    /// How many checkpoints agree.
    pub checkpoints: usize,
    pub unproven: Vec<Unproven>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unproven {
    #[error(
        "no checkpoint was given: a ledger that lost its last records, or was written anew, looks the same"
    )]
    Completeness,
    #[error(
        "records from {from} on are newer than the newest checkpoint: more of them may have been taken away"
    )]
    Tail { from: u64 },
    #[error("no key was given: who signed the checkpoints is unproven")]
    Signer,
}

/// The event's id where it could be read, and what is wrong with it.
type Problem = (Option<String>, RecordProblem);

impl Verifier {
    /// `checkpoints` should come from where the ledger's owner cannot write, and `key` from the owner in person.
    pub fn new(mut checkpoints: Vec<Checkpoint>, key: Option<PublicKey>) -> Self {
        checkpoints.sort_by_key(|checkpoint| checkpoint.size);
        Self {
            key,
            checkpoints,
            compared: 0,
            tree: Tree::default(),
            heads: HashMap::new(),
            changes: Vec::new(),
            rewritten: Vec::new(),
        }
    }

    /// Takes the next line, without its line end. After a fault nothing more can be learned.
    pub fn push(&mut self, line: &[u8]) -> Result<(), Fault> {
        self.compare_checkpoints()?;
        let position = self.tree.size();
        let (hash, event) =
            self.read(line).map_err(|(event_id, problem)| Fault::Record { position, event_id, problem })?;
        self.tree.push(&hash);
        self.note_key_change(position, &event)
    }

    /// Says what was verified once all lines were taken.
    pub fn finish(mut self) -> Result<Report, Fault> {
        self.compare_checkpoints()?;
        let records = self.tree.size();
        if let Some(beyond) = self.checkpoints.get(self.compared) {
            return Err(Fault::Truncated { records, checkpoint: beyond.size });
        }
        self.check_signatures()?;
        let mut unproven = Vec::new();
        match self.checkpoints.last() {
            None => unproven.push(Unproven::Completeness),
            Some(newest) if newest.size < records => unproven.push(Unproven::Tail { from: newest.size }),
            Some(_) => {}
        }
        if self.key.is_none() {
            unproven.push(Unproven::Signer);
        }
        let (chains, checkpoints) = (self.heads.len(), self.checkpoints.len());
        Ok(Report { records, chains, root: self.tree.root(), checkpoints, unproven })
    }

    /// Reads a line and advances its chain.
    fn read(&mut self, bytes: &[u8]) -> Result<(Hash, Event), Problem> {
        let unreadable = || (None, RecordProblem::Unreadable);
        let line = if bytes.len() > MAX_LINE { None } else { Line::parse(bytes) };
        let line = line.ok_or_else(unreadable)?;
        let event: Event = serde_json::from_str(line.record).map_err(|_| unreadable())?;
        match self.check(&line, &event) {
            Ok(hash) => Ok((hash, event)),
            Err(problem) => Err((Some(event.event_id.as_str().to_owned()), problem)),
        }
    }

    fn check(&mut self, line: &Line<'_>, event: &Event) -> Result<Hash, RecordProblem> {
        let &Line { chain, hash, position, prev_hash, record, sequence } = line;
        if position != self.tree.size() {
            return Err(RecordProblem::Position(position));
        }
        if !self.heads.contains_key(chain) {
            let new = Chain::new(chain).map_err(|_| RecordProblem::Unreadable)?;
            // Nothing is before the first record; `check` adds one to the number of the last.
            let nothing = Head { sequence: u64::MAX, hash: new.genesis() };
            self.heads.insert(new, nothing);
        }
        let head = self.heads.get_mut(chain).ok_or(RecordProblem::Chain)?;
        if sequence != head.sequence.wrapping_add(1) || prev_hash.as_bytes() != head.hash.digits() {
            return Err(RecordProblem::Chain);
        }
        let computed = event_hash(chain, sequence, position, &head.hash, record);
        if hash.as_bytes() != computed.digits() {
            return Err(RecordProblem::Hash);
        }
        self.rewritten.clear();
        let written = serde_json::to_writer(&mut self.rewritten, event);
        if written.is_err() || self.rewritten != record.as_bytes() {
            return Err(RecordProblem::Form);
        }
        *head = Head { sequence, hash: computed };
        Ok(computed)
    }

    /// Compares the tree with the checkpoints of its present size.
    fn compare_checkpoints(&mut self) -> Result<(), Fault> {
        while let Some(checkpoint) = self.checkpoints.get(self.compared) {
            if checkpoint.size != self.tree.size() {
                break;
            }
            if checkpoint.root != self.tree.root() {
                let agreed = self.checkpoints[..self.compared].last();
                return Err(Fault::Rewritten {
                    from: agreed.map_or(0, |agreed| agreed.size),
                    to: checkpoint.size,
                });
            }
            self.compared += 1;
        }
        Ok(())
    }

    fn note_key_change(&mut self, position: u64, event: &Event) -> Result<(), Fault> {
        let (name, operation) = KeyChange::TARGET;
        let is_change = event.action_type == ActionType::System
            && event.target.as_ref().is_some_and(|target| {
                target.name.as_str() == name
                    && target.operation.as_ref().is_some_and(|found| found.as_str() == operation)
            });
        if !is_change {
            return Ok(());
        }
        let change = event.notes.as_ref().and_then(|notes| KeyChange::verify(notes.as_str()));
        let follows = |change: &KeyChange| self.changes.last().is_none_or(|(_, last)| last.new == change.old);
        match change.filter(follows) {
            Some(change) => {
                self.changes.push((position, change));
                Ok(())
            }
            None => Err(Fault::Record {
                position,
                event_id: Some(event.event_id.as_str().to_owned()),
                problem: RecordProblem::KeyChange,
            }),
        }
    }

    /// Each checkpoint must be signed by the key that was in force at its size: a key that was retired, and may have
    /// leaked since, cannot sign for what came later.
    fn check_signatures(&self) -> Result<(), Fault> {
        let Some(given) = &self.key else { return Ok(()) };
        let first = self.changes.first().map(|(_, change)| &change.old);
        let later = self.changes.iter().map(|(_, change)| &change.new);
        let keys: Vec<_> = first.into_iter().chain(later).collect();
        if !keys.is_empty() && !keys.contains(&given) {
            return Err(Fault::Key);
        }
        for checkpoint in &self.checkpoints {
            let changed = self.changes.iter().take_while(|(position, _)| *position < checkpoint.size).count();
            let key = keys.get(changed).copied().unwrap_or(given);
            if !checkpoint.is_signed_by(key) {
                return Err(Fault::Signature { checkpoint: checkpoint.size });
            }
        }
        Ok(())
    }
}

impl Fault {
    /// The first record that is not as it was, as far as it can be known; none if it is not about records.
    pub fn first_bad_record(&self) -> Option<u64> {
        match self {
            Self::Record { position, .. } => Some(*position),
            Self::Rewritten { from, .. } => Some(*from),
            Self::Truncated { records, .. } => Some(*records),
            Self::Signature { .. } | Self::Key => None,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Record { position, event_id: Some(id), problem } => {
                write!(f, "record {position} ({id}) {problem}")
            }
            Self::Record { position, event_id: None, problem } => write!(f, "record {position} {problem}"),
            Self::Rewritten { from, to } => write!(
                f,
                "the ledger was written anew: the checkpoint of {to} records does not agree, and the first record \
                 that differs is one of {from} to {}",
                to.saturating_sub(1)
            ),
            Self::Truncated { records, checkpoint } => write!(
                f,
                "record {records} is missing, and all after it: the ledger ends there, and a checkpoint speaks of \
                 {checkpoint} records"
            ),
            Self::Signature { checkpoint } => {
                write!(f, "the checkpoint of {checkpoint} records is not signed by the key that was in force")
            }
            Self::Key => f.write_str("the key that was given never signed for this ledger"),
        }
    }
}

impl std::error::Error for Fault {}
