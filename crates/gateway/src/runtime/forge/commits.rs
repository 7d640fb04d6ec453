//! The commits at the start of a pack, with their parents. Git writes commits before trees and files, so whether an
//! update is a fast-forward shows before most of a push has arrived. Ids are computed here and never taken from the
//! sender: a parent is believed because it is in the hashed content.

use std::collections::{HashMap, HashSet};

use sha1::Sha1;
use sha2::{Digest as _, Sha256};

use super::inflate::{InflateError, inflate};
use super::updates::is_id;

/// The most of a pack that is read for its commits.
pub(crate) const MOST_BYTES: usize = 4 * 1024 * 1024;
/// The most that is inflated for one pack, retries of objects that were cut off included.
const MOST_INFLATED: usize = 64 * 1024 * 1024;
/// The content that is kept, as later commits may be deltas of it.
const MOST_KEPT: usize = 4 * 1024 * 1024;
const LARGEST_COMMIT: usize = 256 * 1024;
const HEADER: usize = 12;

/// Whether more of the pack can say more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scan {
    NeedsMore,
    Done,
}

/// Reads the commits of one pack.
pub(crate) struct CommitScan {
    /// How long an id is in hexadecimal: 40 or 64.
    id_length: usize,
    /// How much of the pack is understood, and how many objects follow.
    read: usize,
    objects: Option<u32>,
    parents: HashMap<String, Vec<String>>,
    /// Contents by their place in the pack, and places by id, for deltas.
    contents: HashMap<usize, Vec<u8>>,
    places: HashMap<String, usize>,
    inflated: usize,
    kept: usize,
    done: bool,
}

/// What an object's header says.
enum Object {
    Commit,
    /// An annotated tag stands among the commits and has no parents.
    Tag,
    /// A delta of the object at this place of the pack.
    Delta(usize),
    /// A tree or a file, or a delta of something that is no commit of this pack.
    Other,
}

/// Why scanning stops.
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
    pub(crate) fn new(id_length: usize) -> Self {
        Self {
            id_length,
            read: 0,
            objects: None,
            parents: HashMap::new(),
            contents: HashMap::new(),
            places: HashMap::new(),
            inflated: 0,
            kept: 0,
            done: false,
        }
    }

    /// Goes on with the pack, of which this is all that has arrived. A pack that makes no sense ends the scan: what was
    /// found before stays true.
    pub(crate) fn advance(&mut self, pack: &[u8]) -> Scan {
        while !self.done {
            match self.next(pack) {
                Ok(()) => {}
                Err(Stop::Incomplete) if pack.len() < MOST_BYTES => return Scan::NeedsMore,
                Err(_) => self.done = true,
            }
        }
        Scan::Done
    }

    /// Looks for an ancestor of `tip` among the commits found so far.
    pub(crate) fn search(&self, tip: &str, ancestor: &str) -> Search {
        let (mut seen, mut open) = (HashSet::from([tip]), vec![tip]);
        let mut missing = Vec::new();
        while let Some(id) = open.pop() {
            if id == ancestor {
                return Search::Found;
            }
            match self.parents.get(id) {
                None => missing.push(id.to_owned()),
                Some(parents) => open.extend(parents.iter().map(String::as_str).filter(|id| seen.insert(id))),
            }
        }
        Search::Missing(missing)
    }

    /// Whether any commit of the pack has this parent.
    pub(crate) fn has_child_of(&self, parent: &str) -> bool {
        self.parents.values().flatten().any(|id| id == parent)
    }

    fn next(&mut self, pack: &[u8]) -> Result<(), Stop> {
        let Some(objects) = self.objects else { return self.header(pack) };
        if objects == 0 {
            return Err(Stop::End);
        }
        let place = self.read;
        let rest = pack.get(place..).unwrap_or_default();
        let (object, size, header) = self.object(rest, place)?;
        if size > LARGEST_COMMIT || matches!(object, Object::Other) {
            return Err(Stop::End);
        }
        self.inflated += size;
        if self.inflated > MOST_INFLATED {
            return Err(Stop::End);
        }
        let (content, length) = inflate(rest.get(header..).unwrap_or_default(), size)?;
        if content.len() != size {
            return Err(Stop::End);
        }
        match object {
            Object::Commit => self.commit(place, content)?,
            Object::Delta(base) => {
                let base = self.contents.get(&base).ok_or(Stop::End)?;
                self.commit(place, patched(base, &content).ok_or(Stop::End)?)?;
            }
            Object::Tag | Object::Other => {}
        }
        self.read = place + header + length;
        self.objects = Some(objects - 1);
        Ok(())
    }

    fn header(&mut self, pack: &[u8]) -> Result<(), Stop> {
        let header = pack.get(..HEADER).ok_or(Stop::Incomplete)?;
        let number = |at: usize| {
            let bytes = header.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
            bytes.map(u32::from_be_bytes).ok_or(Stop::End)
        };
        if !header.starts_with(b"PACK") || !matches!(number(4)?, 2 | 3) {
            return Err(Stop::End);
        }
        self.objects = Some(number(8)?);
        self.read = HEADER;
        Ok(())
    }

    /// The object that starts here: what it is, its inflated size, and the length of its header.
    fn object(&self, bytes: &[u8], place: usize) -> Result<(Object, usize, usize), Stop> {
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
                self.base(place.checked_sub(back))
            }
            7 => {
                let id = bytes.get(at..at + self.id_length / 2).ok_or(Stop::Incomplete)?;
                at += id.len();
                self.base(self.places.get(&hex::encode(id)).copied())
            }
            _ => Object::Other,
        };
        Ok((object, size, at))
    }

    fn base(&self, place: Option<usize>) -> Object {
        place.filter(|place| self.contents.contains_key(place)).map_or(Object::Other, Object::Delta)
    }

    fn commit(&mut self, place: usize, content: Vec<u8>) -> Result<(), Stop> {
        let header = format!("commit {}\0", content.len());
        let id = if self.id_length == 40 {
            hex::encode(Sha1::new().chain_update(header).chain_update(&content).finalize())
        } else {
            hex::encode(Sha256::new().chain_update(header).chain_update(&content).finalize())
        };
        let lines =
            content.split(|byte| *byte == b'\n').skip(1).map_while(|line| line.strip_prefix(b"parent "));
        let parent = |id| std::str::from_utf8(id).ok().filter(|id| is_id(id) && id.len() == self.id_length);
        let parents: Option<_> = lines.map(|id| parent(id).map(str::to_owned)).collect();
        self.parents.insert(id.clone(), parents.ok_or(Stop::End)?);
        self.kept += content.len();
        if self.kept > MOST_KEPT {
            return Err(Stop::End);
        }
        self.places.insert(id, place);
        self.contents.insert(place, content);
        Ok(())
    }
}

/// Where a search for an ancestor ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Search {
    Found,
    /// Not among the commits of the pack; these are named and not in it.
    Missing(Vec<String>),
}

/// What a delta makes of its base.
fn patched(base: &[u8], delta: &[u8]) -> Option<Vec<u8>> {
    let mut rest = delta.iter().copied();
    if size(&mut rest)? != base.len() {
        return None;
    }
    let wanted = size(&mut rest).filter(|size| *size <= LARGEST_COMMIT)?;
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
        if out.len() > wanted {
            return None;
        }
    }
    (out.len() == wanted).then_some(out)
}

fn size(bytes: &mut impl Iterator<Item = u8>) -> Option<usize> {
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
