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
use crate::statement::{LostKey, Restore};
use crate::text::Text;
use crate::tree::Tree;

mod keys;
mod restores;

use keys::Keys;
use restores::Restores;
pub use restores::RolledBack;

/// Takes the lines of an export in order; see [`Verifier::push`] and [`Verifier::finish`].
#[derive(Debug)]
pub struct Verifier {
    key: Option<PublicKey>,
    /// By size, the smallest first; those before `compared` were compared with the records so far.
    checkpoints: Vec<Held>,
    compared: usize,
    /// The size of the last checkpoint that agrees.
    agreed: u64,
    tree: Tree,
    heads: HashMap<Chain, Head>,
    keys: Keys,
    restores: Restores,
    /// Kept from line to line for its memory.
    rewritten: Vec<u8>,
}

/// A checkpoint to compare with.
#[derive(Debug)]
struct Held {
    checkpoint: Checkpoint,
    /// It may be of records that a restore rolled back since.
    may_be_older: bool,
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
    /// Checkpoints that do not, because a restore rolled back what they are of.
    pub rolled_back: Vec<RolledBack>,
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
    #[error(
        "the signing key was lost and replaced at record {record}: who signed the checkpoints of the other key is unproven"
    )]
    LostKey { record: u64 },
}

/// The event's id where it could be read, and what is wrong with it.
type Problem = (Option<String>, RecordProblem);

impl Verifier {
    /// `checkpoints` should come from where the ledger's owner cannot write, and `key` from the owner in person.
    /// They stand in the order in which they were made.
    pub fn new(checkpoints: Vec<Checkpoint>, key: Option<PublicKey>) -> Self {
        // Sizes only grow, but for a restore: those before the last step back may be of what it rolled back. Where
        // there is no such step, nothing tells which side of a restore they are from.
        let steps = checkpoints.windows(2).rposition(|pair| matches!(pair, [a, b] if b.size < a.size));
        let held =
            |(place, checkpoint)| Held { checkpoint, may_be_older: steps.is_none_or(|step| place <= step) };
        let mut checkpoints: Vec<_> = checkpoints.into_iter().enumerate().map(held).collect();
        checkpoints.sort_by_key(|held| held.checkpoint.size);
        Self {
            key,
            checkpoints,
            compared: 0,
            agreed: 0,
            tree: Tree::default(),
            heads: HashMap::new(),
            keys: Keys::default(),
            restores: Restores::default(),
            rewritten: Vec::new(),
        }
    }

    /// Adds checkpoints that no restore may have rolled back: those that the database itself has. Before the first line.
    pub fn add_present(&mut self, checkpoints: impl IntoIterator<Item = Checkpoint>) {
        let held = |checkpoint| Held { checkpoint, may_be_older: false };
        self.checkpoints.extend(checkpoints.into_iter().map(held));
        self.checkpoints.sort_by_key(|held| held.checkpoint.size);
    }

    /// Takes the next line, without its line end. After a fault nothing more can be learned.
    pub fn push(&mut self, line: &[u8]) -> Result<(), Fault> {
        self.push_event(line).map(drop)
    }

    /// The same, and returns the event of the line.
    pub fn push_event(&mut self, line: &[u8]) -> Result<Event, Fault> {
        self.compare_checkpoints()?;
        let position = self.tree.size();
        let (hash, event) =
            self.read(line).map_err(|(event_id, problem)| Fault::Record { position, event_id, problem })?;
        self.note_restore(position, &event);
        self.tree.push(&hash);
        self.note_key(position, &event)?;
        Ok(event)
    }

    /// Where the chains end so far.
    pub fn heads(&self) -> impl Iterator<Item = (&Chain, &Head)> {
        self.heads.iter()
    }

    /// Says what was verified once all lines were taken.
    pub fn finish(mut self) -> Result<Report, Fault> {
        self.compare_checkpoints()?;
        let records = self.tree.size();
        for held in self.checkpoints.iter().skip(self.compared) {
            let fault = Fault::Truncated { records, checkpoint: held.checkpoint.size };
            self.restores.explain(held, fault)?;
        }
        let mut unproven = Vec::new();
        if let Some(key) = &self.key {
            let restored = self.restores.check_signatures(&self.keys, key)?;
            let agreeing = self.checkpoints.iter().map(|held| &held.checkpoint);
            let agreeing = agreeing.filter(|checkpoint| !self.restores.has_rolled_back(checkpoint));
            unproven.extend(self.keys.check_signatures(agreeing, key)?.or(restored));
        }
        let rolled_back = self.restores.finish();
        let older: usize = rolled_back.iter().map(|restore| restore.checkpoints.len()).sum();
        match self.checkpoints.len() - older {
            0 => unproven.insert(0, Unproven::Completeness),
            _ if self.agreed < records => unproven.insert(0, Unproven::Tail { from: self.agreed }),
            _ => {}
        }
        if self.key.is_none() {
            unproven.push(Unproven::Signer);
        }
        let (chains, checkpoints) = (self.heads.len(), self.checkpoints.len() - older);
        Ok(Report { records, chains, root: self.tree.root(), checkpoints, rolled_back, unproven })
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
        while let Some(held) = self.checkpoints.get(self.compared) {
            let size = held.checkpoint.size;
            if size != self.tree.size() {
                break;
            }
            if held.checkpoint.root == self.tree.root() {
                self.agreed = size;
            } else {
                self.restores.explain(held, Fault::Rewritten { from: self.agreed, to: size })?;
            }
            self.compared += 1;
        }
        Ok(())
    }

    /// A restore speaks of exactly the records before it.
    fn note_restore(&mut self, position: u64, event: &Event) {
        if !is_about(event, Restore::TARGET) {
            return;
        }
        let said = event.notes.as_ref().and_then(|notes| Restore::parse(notes.as_str()));
        let fits = |said: &Restore| said.size == position && said.root == self.tree.root();
        if let Some(said) = said.filter(fits) {
            self.restores.note(position, said, event);
        }
    }

    fn note_key(&mut self, position: u64, event: &Event) -> Result<(), Fault> {
        let said = event.notes.as_ref().map(Text::as_str).unwrap_or_default();
        let fits = if is_about(event, KeyChange::TARGET) {
            KeyChange::verify(said).is_some_and(|change| self.keys.change(position, change))
        } else if is_about(event, LostKey::TARGET) {
            said.parse().is_ok_and(|key| self.keys.replace_lost(position, key))
        } else {
            true
        };
        if fits {
            return Ok(());
        }
        let event_id = Some(event.event_id.as_str().to_owned());
        Err(Fault::Record { position, event_id, problem: RecordProblem::KeyChange })
    }
}

fn is_about(event: &Event, (name, operation): (&str, &str)) -> bool {
    event.action_type == ActionType::System
        && event.target.as_ref().is_some_and(|target| {
            target.name.as_str() == name
                && target.operation.as_ref().is_some_and(|found| found.as_str() == operation)
        })
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
