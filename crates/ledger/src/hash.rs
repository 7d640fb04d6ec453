//! SHA-256 with domain separation: a hash made for one purpose cannot be used for another.

use std::fmt;
use std::str::FromStr;

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::canonical::{CanonicalError, canonical, canonical_without};

/// Fields that differ when the same request is sent twice: its timestamps, and the hashes that the sender
/// computed. They are ignored only at the top level of the payload; a `timestamp_utc` among a tool's
/// parameters is content.
pub const VOLATILE_FIELDS: [&str; 5] =
    ["created_at_utc", "request_hash_sha256", "requested_at_utc", "response_hash_sha256", "timestamp_utc"];

/// 32 bytes of SHA-256, written as 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hash([u8; 32]);

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a SHA-256 hash: expected 64 lower-case hexadecimal digits")]
pub struct HashError;

/// The plain SHA-256 of some bytes, as in an artifact's `hash_sha256`.
pub fn sha256(bytes: &[u8]) -> Hash {
    Hash(Sha256::digest(bytes).into())
}

/// The hash of a request or response payload: SHA-256 of its canonical JSON without [`VOLATILE_FIELDS`].
/// There is no domain prefix, so that callers can compute it with any RFC 8785 library.
pub fn payload_hash(payload: &Value) -> Result<Hash, CanonicalError> {
    let text = match payload {
        Value::Object(object) => canonical_without(object, &VOLATILE_FIELDS)?,
        other => canonical(other)?,
    };
    Ok(sha256(text.as_bytes()))
}

/// HMAC-SHA-256 for values that can be guessed, such as a phone number: the plain hash of such a value could
/// be reversed by trying all candidates. `label` separates the uses of one key.
pub fn keyed_hash(key: &[u8; 32], label: &str, value: &[u8]) -> Hash {
    // HMAC zero-pads short keys anyway; padding here lets us use the constructor that cannot fail.
    let mut block = [0; 64];
    block[..32].copy_from_slice(key);
    let mut mac = Hmac::<Sha256>::new(&block.into());
    mac.update(b"proliferate/keyed/v1\n");
    mac.update(&(label.len() as u64).to_be_bytes());
    mac.update(label.as_bytes());
    mac.update(value);
    Hash(mac.finalize().into_bytes().into())
}

/// Hashes the concatenation of `parts`. Callers must make the boundaries between the parts unambiguous.
pub(crate) fn hash_parts(parts: &[&[u8]]) -> Hash {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part);
    }
    Hash(hasher.finalize().into())
}

impl Hash {
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The hexadecimal digits without an allocation, because verification formats millions of hashes.
    pub(crate) fn digits(&self) -> [u8; 64] {
        let mut digits = [0; 64];
        for (byte, pair) in self.0.iter().zip(digits.chunks_exact_mut(2)) {
            pair.copy_from_slice(&[HEX_DIGITS[usize::from(byte >> 4)], HEX_DIGITS[usize::from(byte & 15)]]);
        }
        digits
    }
}

const HEX_DIGITS: &[u8; 16] = b"0123456789abcdef";

/// The value of each lower-case hexadecimal digit; 16 marks every other byte.
const HEX_VALUES: [u8; 256] = {
    let mut values = [16; 256];
    let mut value = 0;
    while value < 16 {
        values[HEX_DIGITS[value as usize] as usize] = value;
        value += 1;
    }
    values
};

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(str::from_utf8(&self.digits()).unwrap_or_default())
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hash({self})")
    }
}

impl FromStr for Hash {
    type Err = HashError;
    fn from_str(text: &str) -> Result<Self, HashError> {
        let digits: &[u8; 64] = text.as_bytes().try_into().map_err(|_| HashError)?;
        let mut bytes = [0; 32];
        let mut seen = 0;
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let (high, low) = (HEX_VALUES[usize::from(pair[0])], HEX_VALUES[usize::from(pair[1])]);
            seen |= high | low;
            *byte = high << 4 | low;
        }
        if seen < 16 { Ok(Self(bytes)) } else { Err(HashError) }
    }
}

impl Serialize for Hash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(str::from_utf8(&self.digits()).unwrap_or_default())
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Digits;
        impl de::Visitor<'_> for Digits {
            type Value = Hash;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("64 lower-case hexadecimal digits")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Hash, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Digits)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_payload_hash_is_the_hash_of_the_canonical_text() {
        let payload = json!({"tool_name": "transcription", "parameters": {"b": 1.0, "a": [true, null]}});
        let text = r#"{"parameters":{"a":[true,null],"b":1},"tool_name":"transcription"}"#;
        assert_eq!(payload_hash(&payload), Ok(sha256(text.as_bytes())));
        assert_eq!(
            sha256(b"").to_string(),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
    }

    #[test]
    fn payload_hash_ignores_timestamps_at_the_top_level_only() {
        let first = json!({"tool_name": "t", "timestamp_utc": "1", "parameters": {"timestamp_utc": "1"}});
        let again = json!({"tool_name": "t", "timestamp_utc": "2", "parameters": {"timestamp_utc": "1"},
            "request_hash_sha256": "x"});
        let other = json!({"tool_name": "t", "timestamp_utc": "1", "parameters": {"timestamp_utc": "2"}});
        assert_eq!(payload_hash(&first), payload_hash(&again));
        assert_ne!(payload_hash(&first), payload_hash(&other));
    }

    #[test]
    fn a_keyed_hash_depends_on_key_label_and_value() {
        let base = keyed_hash(&[1; 32], "phone", b"555");
        assert_eq!(base, keyed_hash(&[1; 32], "phone", b"555"));
        assert_ne!(base, keyed_hash(&[2; 32], "phone", b"555"));
        assert_ne!(base, keyed_hash(&[1; 32], "fax", b"555"));
        assert_ne!(keyed_hash(&[1; 32], "ab", b"c"), keyed_hash(&[1; 32], "a", b"bc"));
        assert_ne!(base, sha256(b"555"));
    }

    #[test]
    fn hash_parses_only_lower_case_hex() {
        let hash = sha256(b"a");
        assert_eq!(hash.to_string().parse(), Ok(hash));
        for text in ["", "ab", &hash.to_string().to_uppercase(), &format!(" {hash}"), &"g".repeat(64)] {
            assert_eq!(text.parse::<Hash>(), Err(HashError), "{text}");
        }
    }
}
