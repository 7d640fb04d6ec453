//! One link of a chain: an event, its place, and the hash that binds it to everything before it.

use std::borrow::Borrow;

use serde::{Deserialize, Serialize};

use crate::event::Event;
use crate::hash::{Hash, hash_parts};
use crate::strict::MAX_SAFE_INTEGER;

/// The largest line of an export.
pub const MAX_LINE: usize = 1 << 20;
/// What a line holds beside its record is shorter than this.
const AROUND_RECORD: usize = 512;

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
    #[error("the event is too large: name fewer artifacts")]
    TooLarge,
}

impl Entry {
    /// Makes the next entry of `chain`, whose end is `head` (none for a chain that begins), at `position`.
    pub fn append(
        chain: &Chain,
        head: Option<Head>,
        position: u64,
        event: &Event,
    ) -> Result<Self, AppendError> {
        Self::link(chain, head, position, serde_json::to_string(event)?)
    }

    /// The same for an event that is a record already.
    pub fn link(
        chain: &Chain,
        head: Option<Head>,
        position: u64,
        record: String,
    ) -> Result<Self, AppendError> {
        let sequence = head.map_or(0, |head| head.sequence.saturating_add(1));
        if position > MAX_SAFE_INTEGER || sequence > position {
            return Err(AppendError::Full);
        }
        let prev_hash = head.map_or_else(|| chain.genesis(), |head| head.hash);
        if record.len() > MAX_LINE - AROUND_RECORD {
            return Err(AppendError::TooLarge);
        }
        let hash = event_hash(chain.as_str(), sequence, position, &prev_hash, &record);
        Ok(Self { chain: chain.clone(), sequence, position, prev_hash, hash, record })
    }

    /// The chain's end once this entry is written.
    pub fn head(&self) -> Head {
        Head { sequence: self.sequence, hash: self.hash }
    }

    /// Reads a line of an export; none unless its hash is that of its content.
    pub fn from_line(line: &[u8]) -> Option<Self> {
        let Line { chain, hash, position, prev_hash, record, sequence } = Line::parse(line)?;
        let prev_hash = prev_hash.parse().ok()?;
        let computed = event_hash(chain, sequence, position, &prev_hash, record);
        let right = hash.as_bytes() == computed.digits();
        let chain = Chain::new(chain).ok().filter(|_| right)?;
        Some(Self { chain, sequence, position, prev_hash, hash: computed, record: record.to_owned() })
    }

    /// The entry as a line of an export, without the line end. It is canonical JSON.
    pub fn to_line(&self) -> String {
        let Self { chain: Chain(chain), sequence, position, prev_hash, hash, record } = self;
        format!(
            r#"{{"chain":"{chain}","hash":"{hash}","position":{position},"prev_hash":"{prev_hash}","record":{record},"sequence":{sequence}}}"#
        )
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

impl Borrow<str> for Chain {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Chain {
    type Error = ChainError;
    fn try_from(name: String) -> Result<Self, ChainError> {
        Self::new(name)
    }
}

/// A line as it was read. There is one way to write a line, so it is read without a JSON reader: what is not at its
/// place is not there.
pub(crate) struct Line<'a> {
    pub(crate) chain: &'a str,
    pub(crate) hash: &'a str,
    pub(crate) position: u64,
    pub(crate) prev_hash: &'a str,
    pub(crate) record: &'a str,
    pub(crate) sequence: u64,
}

impl<'a> Line<'a> {
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        const DIGITS: usize = 64;
        let rest = str::from_utf8(bytes).ok()?.strip_prefix(r#"{"chain":""#)?;
        let (chain, rest) = rest.split_once('"')?;
        let (hash, rest) = rest.strip_prefix(r#","hash":""#)?.split_at_checked(DIGITS)?;
        let (position, rest) = rest.strip_prefix(r#"","position":"#)?.split_once(',')?;
        let (prev_hash, rest) = rest.strip_prefix(r#""prev_hash":""#)?.split_at_checked(DIGITS)?;
        let rest = rest.strip_prefix(r#"","record":"#)?.strip_suffix('}')?;
        let (record, sequence) = rest.rsplit_once(r#","sequence":"#)?;
        Some(Self {
            chain,
            hash,
            position: number(position)?,
            prev_hash,
            record,
            sequence: number(sequence)?,
        })
    }
}

/// A number in its one spelling: no sign and no zero in front.
fn number(text: &str) -> Option<u64> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    if plain { text.parse().ok() } else { None }
}

pub(crate) fn event_hash(chain: &str, sequence: u64, position: u64, prev_hash: &Hash, record: &str) -> Hash {
    // Everything before the record has a fixed length or its length before it.
    let name = chain.as_bytes();
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
