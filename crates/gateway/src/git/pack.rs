//! The commits at the start of a pack, with their parents. Git writes commits before trees and blobs, so we can tell
//! whether an update is a fast-forward before most of a push has arrived. Object ids are computed here and never taken
//! from the sender: a parent is trusted because it is part of the hashed content.

mod inflate;

use std::collections::{HashMap, HashSet};

use sha1::Sha1;
use sha2::{Digest as _, Sha256};

use self::inflate::{InflateError, inflate};
use super::push::is_object_id;

/// The most bytes of a pack that are searched for commits.
pub(super) const MAX_SCANNED: usize = 4 * 1024 * 1024;
/// The most bytes that are inflated for one pack, including retries of objects that were incomplete.
const MAX_INFLATED: usize = 64 * 1024 * 1024;
/// The most bytes of commits that are kept as bases of later deltas.
const MAX_KEPT: usize = 4 * 1024 * 1024;
const MAX_COMMIT: usize = 256 * 1024;
const HEADER_BYTES: usize = 12;

/// Whether more bytes of the pack can reveal more commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scan {
    NeedsMore,
    Done,
}

/// An incremental scan of one pack for commits.
pub(super) struct CommitScan {
    /// Hexadecimal digits of an object id: 40 or 64.
    id_length: usize,
    /// Bytes of the pack that are parsed.
    position: usize,
    /// Objects that follow; `None` before the header is parsed.
    remaining: Option<u32>,
    parents: HashMap<String, Vec<String>>,
    /// Contents by offset in the pack, and offsets by id, for deltas.
    contents: HashMap<usize, Vec<u8>>,
    offsets: HashMap<String, usize>,
    inflated: usize,
    kept: usize,
    done: bool,
}

/// The kind of an object, from its header.
enum Object {
    Commit,
    /// An annotated tag: it comes among the commits and has no parents.
    Tag,
    /// A delta of the object at this offset.
    Delta(usize),
    /// A tree or a blob, or a delta of an object that is not a commit of this pack.
    Other,
}

/// Why the scan stops.
enum Stop {
    Incomplete,
    End,
}

impl From<InflateError> for Stop {
    fn from(error: InflateError) -> Self {
        if error == InflateError::Incomplete { Self::Incomplete } else { Self::End }
    }
}

impl CommitScan {
    pub(super) fn new(id_length: usize) -> Self {
        Self {
            id_length,
            position: 0,
            remaining: None,
            parents: HashMap::new(),
            contents: HashMap::new(),
            offsets: HashMap::new(),
            inflated: 0,
            kept: 0,
            done: false,
        }
    }

    /// Continues the scan. `pack` has all bytes that have arrived so far. A malformed pack ends the scan; the commits
    /// found before remain valid.
    pub(super) fn advance(&mut self, pack: &[u8]) -> Scan {
        while !self.done {
            match self.scan_next(pack) {
                Ok(()) => {}
                Err(Stop::Incomplete) if pack.len() < MAX_SCANNED => return Scan::NeedsMore,
                Err(_) => self.done = true,
            }
        }
        Scan::Done
    }

    /// Searches for an ancestor of `tip` among the commits found so far.
    pub(super) fn search(&self, tip: &str, ancestor: &str) -> Search {
        let (mut seen, mut queue) = (HashSet::from([tip]), vec![tip]);
        let mut missing = Vec::new();
        while let Some(id) = queue.pop() {
            if id == ancestor {
                return Search::Found;
            }
            match self.parents.get(id) {
                None => missing.push(id.to_owned()),
                Some(parents) => {
                    queue.extend(parents.iter().map(String::as_str).filter(|id| seen.insert(id)));
                }
            }
        }
        Search::Missing(missing)
    }

    /// Whether a commit of the pack has this parent.
    pub(super) fn has_child_of(&self, parent: &str) -> bool {
        self.parents.values().flatten().any(|id| id == parent)
    }

    fn scan_next(&mut self, pack: &[u8]) -> Result<(), Stop> {
        let Some(remaining) = self.remaining else { return self.parse_header(pack) };
        if remaining == 0 {
            return Err(Stop::End);
        }
        let offset = self.position;
        let rest = pack.get(offset..).unwrap_or_default();
        let (object, size, header) = self.parse_object_header(rest, offset)?;
        if size > MAX_COMMIT || matches!(object, Object::Other) {
            return Err(Stop::End);
        }
        self.inflated += size;
        if self.inflated > MAX_INFLATED {
            return Err(Stop::End);
        }
        let (content, length) = inflate(rest.get(header..).unwrap_or_default(), size)?;
        if content.len() != size {
            return Err(Stop::End);
        }
        match object {
            Object::Commit => self.add_commit(offset, content)?,
            Object::Delta(base) => {
                let base = self.contents.get(&base).ok_or(Stop::End)?;
                self.add_commit(offset, apply_delta(base, &content).ok_or(Stop::End)?)?;
            }
            Object::Tag | Object::Other => {}
        }
        self.position = offset + header + length;
        self.remaining = Some(remaining - 1);
        Ok(())
    }

    fn parse_header(&mut self, pack: &[u8]) -> Result<(), Stop> {
        let header = pack.get(..HEADER_BYTES).ok_or(Stop::Incomplete)?;
        let number = |at: usize| {
            let bytes = header.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
            bytes.map(u32::from_be_bytes).ok_or(Stop::End)
        };
        if !header.starts_with(b"PACK") || !matches!(number(4)?, 2 | 3) {
            return Err(Stop::End);
        }
        self.remaining = Some(number(8)?);
        self.position = HEADER_BYTES;
        Ok(())
    }

    /// The kind of the object at `offset`, its inflated size, and the length of its header.
    fn parse_object_header(&self, bytes: &[u8], offset: usize) -> Result<(Object, usize, usize), Stop> {
        let mut at = 0;
        let mut byte = || {
            let byte = bytes.get(at).copied().ok_or(Stop::Incomplete);
            at += 1;
            byte
        };
        let first = byte()?;
        let (mut size, mut shift, mut more) = (usize::from(first & 0x0f), 4, first & 0x80 != 0);
        while more {
            let next = byte()?;
            size |= usize::from(next & 0x7f).checked_shl(shift).filter(|_| shift < 32).ok_or(Stop::End)?;
            shift += 7;
            more = next & 0x80 != 0;
        }
        let object = match (first >> 4) & 7 {
            1 => Object::Commit,
            4 => Object::Tag,
            6 => {
                let mut next = byte()?;
                let mut back = usize::from(next & 0x7f);
                while next & 0x80 != 0 {
                    next = byte()?;
                    back = back.checked_add(1).and_then(|back| back.checked_mul(128)).ok_or(Stop::End)?;
                    back += usize::from(next & 0x7f);
                }
                self.delta_of(offset.checked_sub(back))
            }
            7 => {
                let id = bytes.get(at..at + self.id_length / 2).ok_or(Stop::Incomplete)?;
                at += id.len();
                self.delta_of(self.offsets.get(&hex::encode(id)).copied())
            }
            _ => Object::Other,
        };
        Ok((object, size, at))
    }

    fn delta_of(&self, base: Option<usize>) -> Object {
        base.filter(|base| self.contents.contains_key(base)).map_or(Object::Other, Object::Delta)
    }

    fn add_commit(&mut self, offset: usize, content: Vec<u8>) -> Result<(), Stop> {
        let header = format!("commit {}\0", content.len());
        let id = if self.id_length == 40 {
            hex::encode(Sha1::new().chain_update(header).chain_update(&content).finalize())
        } else {
            hex::encode(Sha256::new().chain_update(header).chain_update(&content).finalize())
        };
        let lines =
            content.split(|byte| *byte == b'\n').skip(1).map_while(|line| line.strip_prefix(b"parent "));
        let parent =
            |id| std::str::from_utf8(id).ok().filter(|id| is_object_id(id) && id.len() == self.id_length);
        let parents: Option<_> = lines.map(|id| parent(id).map(str::to_owned)).collect();
        self.parents.insert(id.clone(), parents.ok_or(Stop::End)?);
        self.kept += content.len();
        if self.kept > MAX_KEPT {
            return Err(Stop::End);
        }
        self.offsets.insert(id, offset);
        self.contents.insert(offset, content);
        Ok(())
    }
}

/// The result of a search for an ancestor.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Search {
    Found,
    /// The pack refers to these commits without containing them.
    Missing(Vec<String>),
}

/// Applies a delta to its base.
fn apply_delta(base: &[u8], delta: &[u8]) -> Option<Vec<u8>> {
    let mut rest = delta.iter().copied();
    if variable_length_size(&mut rest)? != base.len() {
        return None;
    }
    let expected = variable_length_size(&mut rest).filter(|size| *size <= MAX_COMMIT)?;
    let mut out = Vec::new();
    while let Some(op) = rest.next() {
        if op & 0x80 == 0 {
            let start = out.len();
            out.extend(rest.by_ref().take(usize::from(op)));
            if op == 0 || out.len() != start + usize::from(op) {
                return None;
            }
        } else {
            let mut number = |bits: std::ops::Range<u32>| {
                let mut value = 0;
                for (shift, bit) in bits.enumerate() {
                    if op & (1 << bit) != 0 {
                        value |= usize::from(rest.next()?) << (8 * shift);
                    }
                }
                Some(value)
            };
            let (from, length) = (number(0..4)?, number(4..7)?);
            let length = if length == 0 { 0x10000 } else { length };
            out.extend_from_slice(base.get(from..from.checked_add(length)?)?);
        }
        if out.len() > expected {
            return None;
        }
    }
    (out.len() == expected).then_some(out)
}

fn variable_length_size(bytes: &mut impl Iterator<Item = u8>) -> Option<usize> {
    let (mut size, mut shift) = (0_usize, 0);
    loop {
        let byte = bytes.next()?;
        size |= usize::from(byte & 0x7f).checked_shl(shift).filter(|_| shift < 32)?;
        shift += 7;
        if byte & 0x80 == 0 {
            return Some(size);
        }
    }
}

#[cfg(test)]
mod tests;
