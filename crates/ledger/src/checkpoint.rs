//! Checkpoints (the signed size and root of the ledger at one moment, for storage outside the database) and
//! changes of the signing key.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::hash::Hash;
use crate::key::{KeyId, PublicKey, SigningKey, check_name};
use crate::note::Note;
use crate::tree::Tree;

const KEY_CHANGE: &str = "proliferate key change v1";

/// A signed statement that the ledger named `origin` had `size` events and this root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    pub origin: String,
    pub size: u64,
    pub root: Hash,
    note: Note,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    #[error(
        "checkpoint {number} of the file is malformed: expected name, size, root, an empty line and a signature"
    )]
    Malformed { number: usize },
    #[error("the file contains no checkpoint")]
    Empty,
}

impl Checkpoint {
    pub fn sign(key: &SigningKey, tree: &Tree) -> Self {
        let (origin, size, root) = (key.public().name().to_owned(), tree.size(), tree.root());
        let text = format!("{origin}\n{size}\n{}\n", STANDARD.encode(root.as_bytes()));
        Self { origin, size, root, note: Note::sign(text, &[key]) }
    }

    /// Parses a file of concatenated checkpoints.
    pub fn parse_all(text: &str) -> Result<Vec<Self>, CheckpointError> {
        let mut found = Vec::new();
        let mut rest = text.trim_start_matches('\n');
        while !rest.is_empty() {
            let malformed = CheckpointError::Malformed { number: found.len() + 1 };
            let (checkpoint, after) = Note::read(rest)
                .and_then(|(note, after)| Some((Self::from_note(&note)?, after)))
                .ok_or(malformed)?;
            found.push(checkpoint);
            rest = after.trim_start_matches('\n');
        }
        if found.is_empty() { Err(CheckpointError::Empty) } else { Ok(found) }
    }

    pub fn is_signed_by(&self, key: &PublicKey) -> bool {
        self.origin == key.name() && self.note.is_signed_by(key)
    }

    pub fn key_ids(&self) -> impl Iterator<Item = KeyId> {
        self.note.signatures.iter().map(|signature| signature.key_id)
    }

    fn from_note(note: &Note) -> Option<Self> {
        let mut lines = note.text.lines();
        let (origin, size, root) = (lines.next()?, lines.next()?, lines.next()?);
        check_name(origin).ok()?;
        // Accept only the canonical spelling of the number: no sign, no leading zeros.
        let number = size.parse::<u64>().ok().filter(|number| number.to_string() == size)?;
        let root: [u8; 32] = STANDARD.decode(root).ok()?.try_into().ok()?;
        let at_end = lines.next().is_none();
        at_end.then(|| Self {
            origin: origin.to_owned(),
            size: number,
            root: Hash::from_bytes(root),
            note: note.clone(),
        })
    }
}

/// The signed text that is written to files and handed to auditors.
impl fmt::Display for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.note.fmt(f)
    }
}

/// The statement that one signing key succeeds another, signed by both keys. It is stored in the notes of a
/// `system` event whose target is [`KeyChange::TARGET`] and takes effect from that event on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyChange {
    pub old: PublicKey,
    pub new: PublicKey,
}

impl KeyChange {
    /// Name and operation of the target of the event that carries a key change.
    pub const TARGET: (&'static str, &'static str) = ("audit_signing_key", "change");

    /// Returns the text for the event's notes. A retired key must never be used again.
    pub fn sign(old: &SigningKey, new: &SigningKey) -> String {
        let text = format!("{KEY_CHANGE}\n{}\n{}\n", old.public(), new.public());
        Note::sign(text, &[old, new]).to_string()
    }

    /// Parses the text; returns `None` unless both signatures are valid.
    pub fn verify(text: &str) -> Option<Self> {
        let (note, rest) = Note::read(text)?;
        let mut lines = note.text.lines();
        let (title, old, new) = (lines.next()?, lines.next()?, lines.next()?);
        let change = Self { old: old.parse().ok()?, new: new.parse().ok()? };
        let well_formed = rest.is_empty() && lines.next().is_none() && title == KEY_CHANGE;
        let signed = note.is_signed_by(&change.old) && note.is_signed_by(&change.new);
        (well_formed && signed && change.old != change.new && change.old.name() == change.new.name())
            .then_some(change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::sha256;

    fn key(seed: u8) -> SigningKey {
        SigningKey::from_seed("example/ledger", &[seed; 32]).unwrap()
    }

    fn tree(size: u8) -> Tree {
        let mut tree = Tree::default();
        tree.extend((0..size).map(|byte| sha256(&[byte])));
        tree
    }

    #[test]
    fn checkpoint_file_round_trips() {
        let (first, second) = (Checkpoint::sign(&key(1), &tree(3)), Checkpoint::sign(&key(2), &tree(5)));
        let text = format!("{first}\n{second}");
        assert!(text.starts_with("example/ledger\n3\n"), "{text}");
        let read = Checkpoint::parse_all(&text).unwrap();
        assert_eq!(read, [first, second]);
        assert!(read[0].is_signed_by(key(1).public()) && !read[0].is_signed_by(key(2).public()));
    }

    #[test]
    fn a_changed_checkpoint_is_malformed_or_unsigned() {
        let text = Checkpoint::sign(&key(1), &tree(3)).to_string();
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            let Ok(changed) = String::from_utf8(bytes) else { continue };
            let read = Checkpoint::parse_all(&changed).unwrap_or_default();
            assert!(!read.iter().any(|checkpoint| checkpoint.is_signed_by(key(1).public())), "byte {at}");
        }
        assert_eq!(Checkpoint::parse_all("\n"), Err(CheckpointError::Empty));
        for wrong in [
            text.replace("\n3\n", "\n03\n"),
            text.replace("\n3\n", "\n+3\n"),
            "x".to_owned(),
            text.replace("\n\n", "\nextra\n\n"),
        ] {
            assert!(
                matches!(Checkpoint::parse_all(&wrong), Err(CheckpointError::Malformed { number: 1 })),
                "{wrong}"
            );
        }
    }

    #[test]
    fn a_key_change_needs_both_signatures() {
        let text = KeyChange::sign(&key(1), &key(2));
        let change = KeyChange::verify(&text).unwrap();
        assert_eq!((&change.old, &change.new), (key(1).public(), key(2).public()));
        assert!(text.chars().count() <= 1000, "a key change must fit into the notes of an event");
        let body = text.split_inclusive('\n').take(4).collect::<String>();
        let signatures: Vec<_> = text.lines().filter(|line| line.starts_with('—')).collect();
        for one in &signatures {
            assert_eq!(KeyChange::verify(&format!("{body}{one}\n")), None);
        }
        assert_eq!(KeyChange::verify(&KeyChange::sign(&key(1), &key(1))), None);
        assert_eq!(KeyChange::verify(&format!("{text}more")), None);
    }
}
