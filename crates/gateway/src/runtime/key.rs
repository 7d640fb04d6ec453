//! The keys that authenticate the gateway to the supervisors inside sandboxes. A sandbox outlives the gateway
//! process, so its key must too: each key is derived from one secret in the data directory and the sandbox's name,
//! and is stored nowhere else.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use channel::Key;
use clock::Rng;
use hmac::{Hmac, KeyInit as _, Mac as _};
use proto::SessionId;
use sandbox::SandboxId;
use sha2::Sha256;

use files::secret_file;

/// The root key that all sandbox keys of a data directory are derived from.
pub(super) struct RootKey([u8; 32]);

impl RootKey {
    /// Reads the root key, or creates it on first use. If two processes create it at once, the first one wins.
    pub(super) fn open(file: &Path, rng: &Rng) -> io::Result<Self> {
        if !file.exists() {
            secret_file::make(file, &rng.bytes::<32>())?;
        }
        if !secret_file::is_private(file)? {
            let remedy = format!("others can read it: chmod 600 {}", file.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, remedy));
        }
        let mut key = [0; 32];
        File::open(file)?.read_exact(&mut key)?;
        Ok(Self(key))
    }

    /// Derives the key of one sandbox. The sandbox knows these bytes, and cannot derive another sandbox's key from
    /// them.
    pub(super) fn bytes_of(&self, id: &SandboxId) -> [u8; 32] {
        self.mac(b"proliferate sandboxd v1\0", id.as_str())
    }

    /// Hashes the environment of a session's sandbox. Without this key, nobody can try out which values have this hash.
    pub(super) fn hash_environment(&self, session: SessionId, content: &str) -> String {
        hex::encode(self.mac(b"proliferate environment v1\0", &format!("{session}\0{content}")))
    }

    fn mac(&self, purpose: &[u8], text: &str) -> [u8; 32] {
        // HMAC pads a shorter key with zeros to the block size. We pad it here, because a full block cannot have a
        // wrong length.
        let mut block = [0; 64];
        block[..self.0.len()].copy_from_slice(&self.0);
        let mut mac = Hmac::<Sha256>::new(&block.into());
        mac.update(purpose);
        mac.update(text.as_bytes());
        mac.finalize().into_bytes().into()
    }

    pub(super) fn of(&self, id: &SandboxId) -> Key {
        Key::new(self.bytes_of(id))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_key_is_the_same_after_a_restart_and_another_for_each_sandbox() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("sandboxes.key");
        let (one, two) = (SandboxId::new("one").unwrap(), SandboxId::new("two").unwrap());
        let first = RootKey::open(&file, &Rng::system()).unwrap();
        let again = RootKey::open(&file, &Rng::system()).unwrap();
        assert_eq!(first.bytes_of(&one), again.bytes_of(&one));
        assert_ne!(first.bytes_of(&one), first.bytes_of(&two));
        let [session, other] = [1, 2].map(|number| uuid::Uuid::from_u128(number).into());
        let hash = first.hash_environment(session, "A=1");
        assert_eq!(again.hash_environment(session, "A=1"), hash);
        for different in [first.hash_environment(session, "A=2"), first.hash_environment(other, "A=1")] {
            assert_ne!(different, hash);
        }
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "a part of a file was left behind");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
        let error = RootKey::open(&file, &Rng::system()).err().unwrap().to_string();
        assert!(error.contains("chmod 600"), "{error}");
    }

    #[test]
    fn a_file_that_is_too_short_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("sandboxes.key");
        secret_file::make(&file, b"short").unwrap();
        let error = RootKey::open(&file, &Rng::system()).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
