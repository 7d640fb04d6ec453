//! Statements in the ledger that explain what a verifier would otherwise take for an attack: a database that was
//! restored from a backup, and a signing key that was lost.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::hash::Hash;
use crate::key::{PublicKey, SigningKey};
use crate::note::Note;

const RESTORE: &str = "proliferate restore v1";

/// The statement that the ledger was rolled back to an earlier size by a restore. It stands in the notes of the first
/// record after the restore, a `system` event whose target is [`Restore::TARGET`], signed by the key in force: whoever
/// can write to the database alone cannot explain lost records with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restore {
    /// How many records the backup had, and their root.
    pub size: u64,
    pub root: Hash,
    /// The size of the newest checkpoint from before: those of more than `size` records are of what was rolled back.
    pub newest: u64,
    note: Note,
}

impl Restore {
    /// The target's name and operation of the event that carries it.
    pub const TARGET: (&'static str, &'static str) = ("database", "restore");

    /// The text for the event's notes.
    pub fn sign(key: &SigningKey, size: u64, root: &Hash, newest: u64) -> String {
        let text = format!("{RESTORE}\n{size}\n{}\n{newest}\n", STANDARD.encode(root.as_bytes()));
        Note::sign(text, &[key]).to_string()
    }

    /// Reads the text; who signed it is asked by [`Restore::is_signed_by`].
    pub fn parse(text: &str) -> Option<Self> {
        let (note, rest) = Note::read(text)?;
        let mut lines = note.text.lines();
        let (title, size, root, newest) = (lines.next()?, lines.next()?, lines.next()?, lines.next()?);
        let root: [u8; 32] = STANDARD.decode(root).ok()?.try_into().ok()?;
        let whole = rest.is_empty() && lines.next().is_none() && title == RESTORE;
        let (size, newest) = (size.parse().ok()?, newest.parse().ok()?);
        whole.then(|| Self { size, root: Hash::from_bytes(root), newest, note: note.clone() })
    }

    pub fn is_signed_by(&self, key: &PublicKey) -> bool {
        self.note.is_signed_by(key)
    }
}

/// The statement that the signing key was lost and another one signs from here on. Nobody could sign it with the lost
/// key, so a verifier who has the one key proves nothing of what the other signed. It stands in the notes of a `system`
/// event whose target is [`LostKey::TARGET`]: the public key in its one line.
pub struct LostKey;

impl LostKey {
    /// The target's name and operation of the event that carries it.
    pub const TARGET: (&'static str, &'static str) = ("audit_signing_key", "replace_lost");
}
