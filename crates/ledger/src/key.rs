//! Named ed25519 keys that sign checkpoints, in the text format of signed notes.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signer, VerifyingKey};

use crate::hash::hash_parts;

/// The algorithm byte that precedes an ed25519 key in the text format.
const ED25519_ALGORITHM: u8 = 1;

/// The first four bytes of a key's hash. It selects a key and proves nothing.
pub type KeyId = [u8; 4];

/// A private key. Its seed is generated and stored outside this crate, apart from the database.
pub struct SigningKey {
    public: PublicKey,
    secret: ed25519_dalek::SigningKey,
}

/// A public key as auditors hold it: `name+id+key`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey {
    name: String,
    key: VerifyingKey,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("not a valid key name: use 1 to 100 printable ASCII characters without spaces and `+`")]
    Name,
    #[error("not a public key: expected one line `name+id+key`")]
    Text,
    #[error("the id in this public key does not match the key: the text was changed; copy it again")]
    Id,
}

impl SigningKey {
    /// Derives the key from `seed`. `name` is the name of the log and appears in every checkpoint.
    pub fn from_seed(name: &str, seed: &[u8; 32]) -> Result<Self, KeyError> {
        check_name(name)?;
        let secret = ed25519_dalek::SigningKey::from_bytes(seed);
        let public = PublicKey { name: name.to_owned(), key: secret.verifying_key() };
        Ok(Self { public, secret })
    }

    pub fn public(&self) -> &PublicKey {
        &self.public
    }

    pub(crate) fn sign(&self, text: &str) -> [u8; 64] {
        self.secret.sign(text.as_bytes()).to_bytes()
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey({})", self.public)
    }
}

impl PublicKey {
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn id(&self) -> KeyId {
        let hash = hash_parts(&[self.name.as_bytes(), b"\n", &[ED25519_ALGORITHM], self.key.as_bytes()]);
        let [a, b, c, d, ..] = *hash.as_bytes();
        [a, b, c, d]
    }

    /// Uses strict verification, so that a signature has one valid encoding and weak keys are rejected.
    pub(crate) fn verifies(&self, text: &str, signature: &[u8; 64]) -> bool {
        let signature = ed25519_dalek::Signature::from_bytes(signature);
        self.key.verify_strict(text.as_bytes(), &signature).is_ok()
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = STANDARD.encode([&[ED25519_ALGORITHM], &self.key.as_bytes()[..]].concat());
        write!(f, "{}+{}+{key}", self.name, hex::encode(self.id()))
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;
    fn from_str(text: &str) -> Result<Self, KeyError> {
        let mut parts = text.trim_end().splitn(3, '+');
        let (Some(name), Some(id), Some(key)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(KeyError::Text);
        };
        check_name(name)?;
        let bytes = STANDARD.decode(key).map_err(|_| KeyError::Text)?;
        let key = match bytes.split_first() {
            Some((&ED25519_ALGORITHM, key)) => VerifyingKey::try_from(key).map_err(|_| KeyError::Text)?,
            _ => return Err(KeyError::Text),
        };
        let public = Self { name: name.to_owned(), key };
        if hex::encode(public.id()) == id { Ok(public) } else { Err(KeyError::Id) }
    }
}

pub(crate) fn check_name(name: &str) -> Result<(), KeyError> {
    let valid =
        (1..=100).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'+');
    if valid { Ok(()) } else { Err(KeyError::Name) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_key_round_trips_and_rejects_changes() {
        let key = SigningKey::from_seed("example/ledger", &[7; 32]).unwrap();
        let text = key.public().to_string();
        assert_eq!(text.parse(), Ok(key.public().clone()));
        assert_eq!(text.replace("example", "exbmple").parse::<PublicKey>(), Err(KeyError::Id));
        for wrong in ["", "a+b", "a b+c+d", "example/ledger+00000000+AAAA"] {
            assert!(wrong.parse::<PublicKey>().is_err(), "{wrong}");
        }
        assert!(!format!("{key:?}").contains(&hex::encode([7; 32])));
    }

    /// Tests 1 and 2 of RFC 8032.
    #[test]
    fn matches_rfc_8032_test_vectors() {
        let tests = [
            (
                "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
                "",
                "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
            ),
            (
                "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
                "\u{72}",
                "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
            ),
        ];
        for (seed, message, expected) in tests {
            let seed: [u8; 32] = hex::decode(seed).unwrap().try_into().unwrap();
            let key = SigningKey::from_seed("test", &seed).unwrap();
            let signature = key.sign(message);
            assert_eq!(hex::encode(signature), expected);
            assert!(key.public().verifies(message, &signature));
            assert!(!key.public().verifies("another", &signature));
        }
    }
}
