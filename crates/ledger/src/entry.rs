//! One link of a chain: an event, its place, and the hash that binds it to everything before it.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::event::Event;
use crate::hash::{Hash, hash_parts};
use crate::strict::MAX_SAFE_INTEGER;

/// The largest line of an export: every record that [`Entry::append`] makes is far smaller.
pub const MAX_LINE: usize = 1 << 20;

const EVENT: &[u8] = b"proliferate/ledger/event/v1\n";
const GENESIS: &[u8] = b"proliferate/ledger/genesis/v1\n";

/// The name of a chain: an organisation's id, or `system`. 1 to 64 of `a-z`, `0-9` and `-`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Chain(String);

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the name of a chain: 1 to 64 of a-z, 0-9 and - are needed")]
pub struct ChainError;

/// Where a chain ends: read and advanced inside the transaction that writes the entry, never cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub sequence: u64,
    pub hash: Hash,
}

/// One row of the ledger, and one line of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub chain: Chain,
    /// Counts within the chain, from 0.
    pub sequence: u64,
    /// Counts over all chains, from 0: the leaf of the tree.
    pub position: u64,
    pub prev_hash: Hash,
    pub hash: Hash,
    /// The event in canonical JSON; these bytes are what is hashed.
    pub record: String,
}

#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    #[error("the event cannot be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the ledger is full: positions end at 2^53−1")]
    Full,
}

impl Entry {
    /// Makes the next entry of `chain`, whose end is `head` (none for a chain that begins), at `position`.
    pub fn append(
        chain: &Chain,
        head: Option<Head>,
        position: u64,
        event: &Event,
    ) -> Result<Self, AppendError> {
        let sequence = head.map_or(0, |head| head.sequence.saturating_add(1));
        if position > MAX_SAFE_INTEGER || sequence > position {
            return Err(AppendError::Full);
        }
        let prev_hash = head.map_or_else(|| chain.genesis(), |head| head.hash);
        let record = serde_json::to_string(event)?;
        let hash = event_hash(chain, sequence, position, &prev_hash, &record);
        Ok(Self { chain: chain.clone(), sequence, position, prev_hash, hash, record })
    }

    /// The chain's end once this entry is written.
    pub fn head(&self) -> Head {
        Head { sequence: self.sequence, hash: self.hash }
    }

    /// The entry as a line of an export, without the line end. It is canonical JSON.
    pub fn to_line(&self) -> String {
        let mut line = Vec::with_capacity(self.record.len() + 300);
        write_line(
            &mut line,
            (&self.chain, self.sequence),
            self.position,
            (&self.prev_hash, &self.hash),
            &self.record,
        );
        String::from_utf8_lossy(&line).into_owned()
    }
}

/// Writes the one form that a line has; the verifier compares every line with it.
pub(crate) fn write_line(
    out: &mut Vec<u8>,
    (chain, sequence): (&Chain, u64),
    position: u64,
    (prev_hash, hash): (&Hash, &Hash),
    record: &str,
) {
    let position = position.to_string();
    let sequence = sequence.to_string();
    let parts: [&[u8]; 13] = [
        b"{\"chain\":\"",
        chain.as_str().as_bytes(),
        b"\",\"hash\":\"",
        &hash.digits(),
        b"\",\"position\":",
        position.as_bytes(),
        b",\"prev_hash\":\"",
        &prev_hash.digits(),
        b"\",\"record\":",
        record.as_bytes(),
        b",\"sequence\":",
        sequence.as_bytes(),
        b"}",
    ];
    for part in parts {
        out.extend_from_slice(part);
    }
}

impl Chain {
    pub fn new(name: impl Into<String>) -> Result<Self, ChainError> {
        let name = name.into();
        let right = (1..=64).contains(&name.len())
            && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'));
        if right { Ok(Self(name)) } else { Err(ChainError) }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What the first entry follows; it differs by chain, so that no chain's beginning fits another's.
    pub fn genesis(&self) -> Hash {
        hash_parts(&[GENESIS, self.0.as_bytes()])
    }
}

impl TryFrom<String> for Chain {
    type Error = ChainError;
    fn try_from(name: String) -> Result<Self, ChainError> {
        Self::new(name)
    }
}

/// A line as it was read; the names of its fields are those of [`Entry`].
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Line<'a> {
    pub(crate) chain: Chain,
    pub(crate) hash: Hash,
    pub(crate) position: u64,
    pub(crate) prev_hash: Hash,
    #[serde(borrow)]
    pub(crate) record: &'a RawValue,
    pub(crate) sequence: u64,
}

pub(crate) fn event_hash(
    chain: &Chain,
    sequence: u64,
    position: u64,
    prev_hash: &Hash,
    record: &str,
) -> Hash {
    // Everything before the record has a fixed length or its length before it.
    let name = chain.as_str().as_bytes();
    hash_parts(&[
        EVENT,
        prev_hash.as_bytes(),
        &position.to_be_bytes(),
        &sequence.to_be_bytes(),
        &(name.len() as u64).to_be_bytes(),
        name,
        record.as_bytes(),
    ])
}
