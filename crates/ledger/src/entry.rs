//! One link of a hash chain: an event, its position, and the hash that binds it to everything before it.

use std::borrow::Borrow;

use serde::{Deserialize, Serialize};

use crate::event::Event;
use crate::hash::{Hash, hash_parts};
use crate::strict::MAX_SAFE_INTEGER;

/// Maximum length of one line of an export, in bytes.
pub const MAX_LINE: usize = 1 << 20;
/// Upper bound for the bytes of a line other than its record.
const LINE_OVERHEAD: usize = 512;

const EVENT_DOMAIN: &[u8] = b"proliferate/ledger/event/v1\n";
const GENESIS_DOMAIN: &[u8] = b"proliferate/ledger/genesis/v1\n";

/// The name of a chain: an organization's id, or `system`. 1 to 64 of `a-z`, `0-9` and `-`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Chain(String);

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a valid chain name: use 1 to 64 characters from a-z, 0-9 and -")]
pub struct ChainError;

/// The last entry of a chain. It is read and advanced inside the transaction that writes the next entry,
/// never cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub sequence: u64,
    pub hash: Hash,
}

/// One row of the ledger, and one line of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub chain: Chain,
    /// Sequence number within the chain, from 0.
    pub sequence: u64,
    /// Position over all chains, from 0: the index of the leaf in the Merkle tree.
    pub position: u64,
    pub prev_hash: Hash,
    pub hash: Hash,
    /// The event as canonical JSON. The hash covers exactly these bytes.
    pub record: String,
}

#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    #[error("the event cannot be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the ledger is full: the highest position is 2^53−1")]
    Full,
    #[error("the event is too large: refer to fewer artifacts")]
    TooLarge,
}

impl Entry {
    /// Builds the next entry of `chain` at `position`. `head` is the chain's last entry, or `None` for a new
    /// chain.
    pub fn append(
        chain: &Chain,
        head: Option<Head>,
        position: u64,
        event: &Event,
    ) -> Result<Self, AppendError> {
        Self::link(chain, head, position, serde_json::to_string(event)?)
    }

    /// Like [`Entry::append`], for an event that is already serialized as a record.
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
        if record.len() > MAX_LINE - LINE_OVERHEAD {
            return Err(AppendError::TooLarge);
        }
        let hash = event_hash(chain.as_str(), sequence, position, &prev_hash, &record);
        Ok(Self { chain: chain.clone(), sequence, position, prev_hash, hash, record })
    }

    /// The head of the chain once this entry is written.
    pub fn head(&self) -> Head {
        Head { sequence: self.sequence, hash: self.hash }
    }

    /// Parses a line of an export; returns `None` if the line is malformed or its hash does not match its
    /// content.
    pub fn from_line(line: &[u8]) -> Option<Self> {
        let Line { chain, hash, position, prev_hash, record, sequence } = Line::parse(line)?;
        let prev_hash = prev_hash.parse().ok()?;
        let computed = event_hash(chain, sequence, position, &prev_hash, record);
        let matches = hash.as_bytes() == computed.digits();
        let chain = Chain::new(chain).ok().filter(|_| matches)?;
        Some(Self { chain, sequence, position, prev_hash, hash: computed, record: record.to_owned() })
    }

    /// The entry as a line of an export, in canonical JSON, without the newline.
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

    /// The `prev_hash` of a chain's first entry. It depends on the chain's name, so that the start of one
    /// chain cannot be moved to another.
    pub fn genesis(&self) -> Hash {
        hash_parts(&[GENESIS_DOMAIN, self.0.as_bytes()])
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

/// A parsed line of an export. Lines have exactly one valid spelling, so the parser matches fixed text
/// instead of using a JSON parser; any deviation makes the line invalid.
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
        const HASH_DIGITS: usize = 64;
        let rest = str::from_utf8(bytes).ok()?.strip_prefix(r#"{"chain":""#)?;
        let (chain, rest) = rest.split_once('"')?;
        let (hash, rest) = rest.strip_prefix(r#","hash":""#)?.split_at_checked(HASH_DIGITS)?;
        let (position, rest) = rest.strip_prefix(r#"","position":"#)?.split_once(',')?;
        let (prev_hash, rest) = rest.strip_prefix(r#""prev_hash":""#)?.split_at_checked(HASH_DIGITS)?;
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

/// Parses a number in its canonical spelling: no sign, no leading zeros.
fn number(text: &str) -> Option<u64> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    if plain { text.parse().ok() } else { None }
}

pub(crate) fn event_hash(chain: &str, sequence: u64, position: u64, prev_hash: &Hash, record: &str) -> Hash {
    // Unambiguous concatenation: every part before the record has a fixed length or is preceded by its
    // length.
    let name = chain.as_bytes();
    hash_parts(&[
        EVENT_DOMAIN,
        prev_hash.as_bytes(),
        &position.to_be_bytes(),
        &sequence.to_be_bytes(),
        &(name.len() as u64).to_be_bytes(),
        name,
        record.as_bytes(),
    ])
}
