//! Signed notes, the format of transparency logs: a readable text with signatures below it that other tools
//! can check.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::key::{KeyId, PublicKey, SigningKey, check_name};

/// The maximum number of signatures: more than a key rotation needs, and few enough to bound the work of verifying a
/// note.
const MAX_SIGNATURES: usize = 16;
const SIGNATURE_PREFIX: &str = "— ";

/// A text, whose every line ends with a line feed, and its signatures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) text: String,
    pub(crate) signatures: Vec<NoteSignature>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NoteSignature {
    name: String,
    pub(crate) key_id: KeyId,
    signature: [u8; 64],
}

impl Note {
    pub(crate) fn sign(text: String, keys: &[&SigningKey]) -> Self {
        let sign = |key: &&SigningKey| NoteSignature {
            name: key.public().name().to_owned(),
            key_id: key.public().id(),
            signature: key.sign(&text),
        };
        let signatures = keys.iter().map(sign).collect();
        Self { text, signatures }
    }

    /// Parses the first note of `input` and returns it with the rest of the input.
    pub(crate) fn read(input: &str) -> Option<(Self, &str)> {
        let (text, mut rest) = input.split_once("\n\n")?;
        let mut signatures = Vec::new();
        while let Some(line) = rest.strip_prefix(SIGNATURE_PREFIX) {
            let (line, after) = line.split_once('\n').unwrap_or((line, ""));
            signatures.push(NoteSignature::parse(line)?);
            rest = after;
        }
        let valid = !text.is_empty() && (1..=MAX_SIGNATURES).contains(&signatures.len());
        valid.then(|| (Self { text: format!("{text}\n"), signatures }, rest))
    }

    pub(crate) fn is_signed_by(&self, key: &PublicKey) -> bool {
        let by_key =
            |signature: &&NoteSignature| signature.name == key.name() && signature.key_id == key.id();
        self.signatures.iter().filter(by_key).any(|found| key.verifies(&self.text, &found.signature))
    }
}

impl std::fmt::Display for Note {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{}", self.text)?;
        for NoteSignature { name, key_id, signature } in &self.signatures {
            let encoded = STANDARD.encode([&key_id[..], signature].concat());
            writeln!(f, "{SIGNATURE_PREFIX}{name} {encoded}")?;
        }
        Ok(())
    }
}

impl NoteSignature {
    fn parse(line: &str) -> Option<Self> {
        let (name, encoded) = line.split_once(' ')?;
        check_name(name).ok()?;
        let bytes: [u8; 68] = STANDARD.decode(encoded).ok()?.try_into().ok()?;
        let (key_id, signature) = bytes.split_first_chunk()?;
        Some(Self { name: name.to_owned(), key_id: *key_id, signature: signature.try_into().ok()? })
    }
}
