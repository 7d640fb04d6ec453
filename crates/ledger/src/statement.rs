//! Statements in the ledger that explain what would otherwise look like an attack to a verifier: a database
//! restored from a backup, and a lost signing key.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::hash::Hash;
use crate::key::{PublicKey, SigningKey};
use crate::note::Note;

const RESTORE_HEADER: &str = "proliferate restore v1";

/// The statement that a restore rolled the ledger back to an earlier size. It is stored in the notes of the
/// first record after the restore, a `system` event whose target is [`Restore::TARGET`], and is signed by the
/// key in force. Somebody who can only write to the database therefore cannot use it to explain missing
/// records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restore {
    /// The number of records in the backup.
    pub size: u64,
    /// The Merkle root over these records.
    pub root: Hash,
    /// The size of the newest checkpoint before the restore. Checkpoints of more than `size` records, up to
    /// this size, cover records that were rolled back.
    pub newest: u64,
    note: Note,
}

impl Restore {
    /// Name and operation of the target of the event that carries the statement.
    pub const TARGET: (&'static str, &'static str) = ("database", "restore");

    /// Returns the signed text for the event's notes.
    pub fn sign(key: &SigningKey, size: u64, root: &Hash, newest: u64) -> String {
        let text = format!("{RESTORE_HEADER}\n{size}\n{}\n{newest}\n", STANDARD.encode(root.as_bytes()));
        Note::sign(text, &[key]).to_string()
    }

    /// Parses the text without checking its signature; see [`Restore::is_signed_by`].
    pub fn parse(text: &str) -> Option<Self> {
        let (note, rest) = Note::read(text)?;
        let mut lines = note.text.lines();
        let (title, size, root, newest) = (lines.next()?, lines.next()?, lines.next()?, lines.next()?);
        let root: [u8; 32] = STANDARD.decode(root).ok()?.try_into().ok()?;
        let well_formed = rest.is_empty() && lines.next().is_none() && title == RESTORE_HEADER;
        let (size, newest) = (size.parse().ok()?, newest.parse().ok()?);
        well_formed.then(|| Self { size, root: Hash::from_bytes(root), newest, note: note.clone() })
    }

    pub fn is_signed_by(&self, key: &PublicKey) -> bool {
        self.note.is_signed_by(key)
    }
}

/// The statement that the signing key was lost and that another key signs from here on. It cannot be signed
/// with the lost key, so a verifier who holds one of the two keys cannot verify what the other signed. It is
/// stored in the notes of a `system` event whose target is [`LostKey::TARGET`]; the notes are the new public
/// key.
pub struct LostKey;

impl LostKey {
    /// Name and operation of the target of the event that carries the statement.
    pub const TARGET: (&'static str, &'static str) = ("audit_signing_key", "replace_lost");
}
