//! Verifies an export without the gateway: line by line, in constant memory, against checkpoints held
//! elsewhere.
//!
//! The hash chain reveals records that were changed, moved, added or removed. An attacker who recomputes the
//! chain is detected by a checkpoint, and one who signs a new checkpoint by the key.

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
pub use restores::Rollback;

/// Takes the lines of an export in order; see [`Verifier::push`] and [`Verifier::finish`].
#[derive(Debug)]
pub struct Verifier {
    key: Option<PublicKey>,
    /// Sorted by size. Those before index `compared` were already compared with the records read so far.
    checkpoints: Vec<ExpectedCheckpoint>,
    compared: usize,
    /// The size of the last checkpoint that matched.
    last_match: u64,
    tree: Tree,
    heads: HashMap<Chain, Head>,
    keys: Keys,
    restores: Restores,
    /// A buffer that is reused for every line.
    buffer: Vec<u8>,
}

/// A checkpoint with which the records are compared.
#[derive(Debug)]
struct ExpectedCheckpoint {
    checkpoint: Checkpoint,
    /// Whether it may cover records that a later restore rolled back.
    may_be_rolled_back: bool,
}

/// The first fault found. Positions count from 0 in ledger order, like `position` in the records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The record at `position` is wrong or missing.
    Record { position: u64, event_id: Option<String>, problem: RecordProblem },
    /// The records are consistent with each other but not with a checkpoint: at least one record in
    /// `from..to` was changed.
    Rewritten { from: u64, to: u64 },
    /// A checkpoint covers more records than there are.
    Truncated { records: u64, checkpoint: u64 },
    /// A checkpoint is not signed by the key in force at its size.
    Signature { checkpoint: u64 },
    /// The given key never signed for this ledger.
    Key,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordProblem {
    #[error("is not a record of this ledger")]
    Unreadable,
    #[error("says that it is record {0}: records are missing, added or moved here")]
    Position(u64),
    #[error("does not follow the record before it in its chain")]
    Chain,
    #[error("does not match its hash: it was changed")]
    Hash,
    #[error("is not in canonical form")]
    Form,
    #[error("changes the signing key without the signatures of both the old and the new key")]
    KeyChange,
}

/// The numbers of verified records and checkpoints, and the claims that could not be proven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub records: u64,
    pub chains: usize,
    pub root: Hash,
    /// How many checkpoints match the records.
    pub checkpoints: usize,
    /// Checkpoints that do not match, because a restore rolled back the records they cover.
    pub rolled_back: Vec<Rollback>,
    pub unproven: Vec<UnprovenClaim>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnprovenClaim {
    #[error(
        "no checkpoint was given: a ledger that was rewritten or lost its last records would look the same"
    )]
    Completeness,
    #[error(
        "records from {from} on are newer than the newest checkpoint: further records may have been removed"
    )]
    Tail { from: u64 },
    #[error("no public key was given: who signed the checkpoints is unproven")]
    Signer,
    #[error(
        "the signing key was lost and replaced at record {record}: the signatures of the other key are unproven"
    )]
    LostKey { record: u64 },
}

/// The event's id, if it could be parsed, and what is wrong with the record.
type Problem = (Option<String>, RecordProblem);

impl Verifier {
    /// `checkpoints` must be in the order in which they were made. They should come from a place where the
    /// ledger's owner cannot write, and `key` from the owner in person.
    pub fn new(checkpoints: Vec<Checkpoint>, key: Option<PublicKey>) -> Self {
        // Sizes decrease only after a restore, so a restore may have rolled back the checkpoints before the
        // last decrease. If sizes never decrease, we cannot tell on which side of a restore a checkpoint is.
        let decrease = checkpoints.windows(2).rposition(|pair| matches!(pair, [a, b] if b.size < a.size));
        let held = |(place, checkpoint)| ExpectedCheckpoint {
            checkpoint,
            may_be_rolled_back: decrease.is_none_or(|last| place <= last),
        };
        let mut checkpoints: Vec<_> = checkpoints.into_iter().enumerate().map(held).collect();
        checkpoints.sort_by_key(|held| held.checkpoint.size);
        Self {
            key,
            checkpoints,
            compared: 0,
            last_match: 0,
            tree: Tree::default(),
            heads: HashMap::new(),
            keys: Keys::default(),
            restores: Restores::default(),
            buffer: Vec::new(),
        }
    }

    /// Adds checkpoints that no restore can have rolled back, such as those in the database itself. Call it
    /// before the first line.
    pub fn add_current(&mut self, checkpoints: impl IntoIterator<Item = Checkpoint>) {
        let held = |checkpoint| ExpectedCheckpoint { checkpoint, may_be_rolled_back: false };
        self.checkpoints.extend(checkpoints.into_iter().map(held));
        self.checkpoints.sort_by_key(|held| held.checkpoint.size);
    }

    /// Verifies the next line, without its newline. After a fault the verifier must not be used any more.
    pub fn push(&mut self, line: &[u8]) -> Result<(), Fault> {
        self.push_event(line).map(drop)
    }

    /// Like [`Verifier::push`], and returns the event of the line.
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

    /// The heads of the chains after the lines so far.
    pub fn heads(&self) -> impl Iterator<Item = (&Chain, &Head)> {
        self.heads.iter()
    }

    /// Returns the report after the last line.
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
            0 => unproven.insert(0, UnprovenClaim::Completeness),
            _ if self.last_match < records => {
                unproven.insert(0, UnprovenClaim::Tail { from: self.last_match });
            }
            _ => {}
        }
        if self.key.is_none() {
            unproven.push(UnprovenClaim::Signer);
        }
        let (chains, checkpoints) = (self.heads.len(), self.checkpoints.len() - older);
        Ok(Report { records, chains, root: self.tree.root(), checkpoints, rolled_back, unproven })
    }

    /// Parses a line and advances its chain.
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
            // A new chain has no records: adding one to `u64::MAX` wraps to the first sequence number, 0.
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
        self.buffer.clear();
        let written = serde_json::to_writer(&mut self.buffer, event);
        if written.is_err() || self.buffer != record.as_bytes() {
            return Err(RecordProblem::Form);
        }
        *head = Head { sequence, hash: computed };
        Ok(computed)
    }

    /// Compares the tree with the checkpoints of its current size.
    fn compare_checkpoints(&mut self) -> Result<(), Fault> {
        while let Some(held) = self.checkpoints.get(self.compared) {
            let size = held.checkpoint.size;
            if size != self.tree.size() {
                break;
            }
            if held.checkpoint.root == self.tree.root() {
                self.last_match = size;
            } else {
                self.restores.explain(held, Fault::Rewritten { from: self.last_match, to: size })?;
            }
            self.compared += 1;
        }
        Ok(())
    }

    /// Remembers a restore if its statement matches exactly the records before it.
    fn note_restore(&mut self, position: u64, event: &Event) {
        if !is_about(event, Restore::TARGET) {
            return;
        }
        let statement = event.notes.as_ref().and_then(|notes| Restore::parse(notes.as_str()));
        let fits = |statement: &Restore| statement.size == position && statement.root == self.tree.root();
        if let Some(statement) = statement.filter(fits) {
            self.restores.note(position, statement, event);
        }
    }

    fn note_key(&mut self, position: u64, event: &Event) -> Result<(), Fault> {
        let notes = event.notes.as_ref().map(Text::as_str).unwrap_or_default();
        let fits = if is_about(event, KeyChange::TARGET) {
            KeyChange::verify(notes).is_some_and(|change| self.keys.change(position, change))
        } else if is_about(event, LostKey::TARGET) {
            notes.parse().is_ok_and(|key| self.keys.replace_lost(position, key))
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
    /// The first record that is not original, as far as that is known; `None` if the fault is not about
    /// records.
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
                "the ledger was rewritten: it does not match the checkpoint of {to} records, and the first record \
                 that differs is between {from} and {}",
                to.saturating_sub(1)
            ),
            Self::Truncated { records, checkpoint } => write!(
                f,
                "record {records} and all after it are missing: the ledger ends there, but a checkpoint covers \
                 {checkpoint} records"
            ),
            Self::Signature { checkpoint } => {
                write!(
                    f,
                    "the checkpoint of {checkpoint} records is not signed by the key in force at that size"
                )
            }
            Self::Key => f.write_str(
                "the given key never signed for this ledger; check that it belongs to this ledger",
            ),
        }
    }
}

impl std::error::Error for Fault {}
