//! The vault: secrets sealed with AES-256-GCM before they reach the database, opened only where they are used.
//!
//! The owner of a value (organisation, scope, name) is associated data: a ciphertext that is copied to another row
//! does not open. A value is never returned by any read; only code that acts with it calls [`Vault::open`].

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use aes_gcm::aead::{Aead as _, KeyInit as _, Payload};
use aes_gcm::{Aes256Gcm, Nonce};
use chrono::{DateTime, Utc};
use clock::{Clock, Rng};
use proto::{OrgId, SecretId, UserId};
use secrecy::{ExposeSecret as _, SecretString};
use sha2::{Digest as _, Sha256};
use store::{NewSecret, Scope, Sealed, Store, StoreError};

use crate::keyring::{Keyring, KeyringError};

/// Longest name and value of a secret.
pub const MAX_NAME: usize = 200;
pub const MAX_VALUE: usize = 64 * 1024;

/// Seals and opens secrets. Cheap to clone.
#[derive(Clone)]
pub struct Vault {
    store: Store,
    clock: Clock,
    rng: Rng,
    keys: Arc<RwLock<Vec<VaultKey>>>,
    file: Option<PathBuf>,
}

#[derive(Clone)]
struct VaultKey {
    id: String,
    cipher: Aes256Gcm,
}

/// A secret cannot be stored or opened.
#[derive(Debug, thiserror::Error)]
pub enum VaultError {
    #[error(
        "the name of a secret has letters, digits and _, does not begin with a digit, and at most {MAX_NAME} characters"
    )]
    BadName,
    #[error("the value of a secret has at most {MAX_VALUE} bytes and no NUL")]
    BadValue,
    #[error("the secret is sealed with key {0}, which is neither USER_SECRETS_ENCRYPTION_KEY nor an old one")]
    UnknownKey(String),
    #[error("the secret does not open: its row was changed or belongs to somebody else")]
    Tampered,
    #[error("a vault key is not 64 hexadecimal digits")]
    BadKey,
    #[error(
        "the secret {name} of organisation {org} stops the rotation: {source}. Set it anew or remove it, then rotate again."
    )]
    Rotation { org: OrgId, name: String, source: Box<VaultError> },
    #[error(transparent)]
    Keyring(#[from] KeyringError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Vault {
    pub fn new(store: Store, keyring: &Keyring, clock: Clock, rng: Rng) -> Result<Self, VaultError> {
        let keys = std::iter::once(&keyring.vault).chain(&keyring.old_vault).map(VaultKey::new);
        let keys = Arc::new(RwLock::new(keys.collect::<Result<_, _>>()?));
        Ok(Self { store, clock, rng, keys, file: keyring.file.clone() })
    }

    /// Stores a secret, replacing one of the same owner and name. `true`: it is new.
    pub async fn set(
        &self,
        org: OrgId,
        scope: Scope,
        name: &str,
        value: &SecretString,
        by: Option<UserId>,
    ) -> Result<bool, VaultError> {
        if !is_name(name) {
            return Err(VaultError::BadName);
        }
        if value.expose_secret().len() > MAX_VALUE || value.expose_secret().contains('\0') {
            return Err(VaultError::BadValue);
        }
        let at: DateTime<Utc> = self.clock.now();
        let mut created = false;
        loop {
            let value = self.seal(org, scope, name, value.expose_secret().as_bytes())?;
            let (id, key_id) = (SecretId::from(self.rng.uuid(at)), value.key_id.clone());
            let new = NewSecret { id, org_id: org, scope, key: name.to_owned(), value, created_by: by, at };
            created |= self.store.put_secret(new).await?;
            // A rotation that ended in between has not seen this value, and forgets the key that seals it.
            if self.present()?.id == key_id {
                return Ok(created);
            }
        }
    }

    /// The value of a secret, for the code that acts with it.
    pub async fn open(
        &self,
        org: OrgId,
        scope: Scope,
        name: &str,
    ) -> Result<Option<SecretString>, VaultError> {
        match self.store.sealed_secret(org, scope, name).await? {
            None => Ok(None),
            Some(sealed) => Ok(Some(self.unseal(org, scope, name, &sealed)?)),
        }
    }

    /// Seals everything that an older key seals with the present one. Returns how many were changed; calls
    /// `progress` with that number as it grows. Safe to run again after an interruption.
    pub async fn rotate(&self, progress: impl Fn(u64)) -> Result<u64, VaultError> {
        const PAGE: i64 = 100;
        let mut done = 0;
        loop {
            let page = self.store.secrets_not_under(&self.present()?.id, PAGE).await?;
            if page.is_empty() {
                return Ok(done);
            }
            for entry in page {
                let (org, scope) = (entry.org_id, entry.scope());
                let Some(old) = self.store.sealed_secret(org, scope, &entry.key).await? else { continue };
                let named =
                    |source| VaultError::Rotation { org, name: entry.key.clone(), source: Box::new(source) };
                let value = self.unseal(org, scope, &entry.key, &old).map_err(named)?;
                let new = self.seal(org, scope, &entry.key, value.expose_secret().as_bytes())?;
                // Somebody who wrote a new value meanwhile has sealed it with the present key.
                if self.store.reseal_secret(entry.id, old, new).await? {
                    done += 1;
                    progress(done);
                }
            }
        }
    }

    fn seal(&self, org: OrgId, scope: Scope, name: &str, value: &[u8]) -> Result<Sealed, VaultError> {
        let key = self.present()?;
        let nonce = self.rng.bytes::<12>();
        let payload = Payload { msg: value, aad: &owner(org, scope, name) };
        let ciphertext =
            key.cipher.encrypt(&Nonce::from(nonce), payload).map_err(|_| VaultError::BadValue)?;
        Ok(Sealed { key_id: key.id, nonce: nonce.to_vec(), ciphertext })
    }

    fn unseal(
        &self,
        org: OrgId,
        scope: Scope,
        name: &str,
        sealed: &Sealed,
    ) -> Result<SecretString, VaultError> {
        let wanted = |key: &VaultKey| key.id == sealed.key_id;
        if self.key(wanted).is_none() {
            self.reload()?;
        }
        let key = self.key(wanted).ok_or_else(|| VaultError::UnknownKey(sealed.key_id.clone()))?;
        let nonce: [u8; 12] = sealed.nonce.as_slice().try_into().map_err(|_| VaultError::Tampered)?;
        let payload = Payload { msg: &sealed.ciphertext, aad: &owner(org, scope, name) };
        let value = key.cipher.decrypt(&Nonce::from(nonce), payload).map_err(|_| VaultError::Tampered)?;
        String::from_utf8(value).map(SecretString::from).map_err(|_| VaultError::Tampered)
    }

    fn key(&self, wanted: impl Fn(&VaultKey) -> bool) -> Option<VaultKey> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        keys.iter().find(|key| wanted(key)).cloned()
    }

    /// The key that seals new values. What is sealed with an older one is lost once that one is forgotten.
    fn present(&self) -> Result<VaultKey, VaultError> {
        self.reload()?;
        self.key(|_| true).ok_or(VaultError::BadKey)
    }

    /// A rotation beside this running process may have put a new key into the data dir: take it from there, and keep
    /// those that are known for what it has not reached.
    fn reload(&self) -> Result<(), VaultError> {
        let Some(file) = self.file.as_deref() else { return Ok(()) };
        let mut fresh: Vec<VaultKey> =
            Keyring::vault_keys_in(file)?.iter().map(VaultKey::new).collect::<Result<_, _>>()?;
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        for known in keys.drain(..) {
            if fresh.iter().all(|key| key.id != known.id) {
                fresh.push(known);
            }
        }
        *keys = fresh;
        Ok(())
    }
}

impl VaultKey {
    fn new(secret: &SecretString) -> Result<Self, VaultError> {
        let bytes = hex::decode(secret.expose_secret()).map_err(|_| VaultError::BadKey)?;
        let cipher = Aes256Gcm::new_from_slice(&bytes).map_err(|_| VaultError::BadKey)?;
        // A fingerprint under a label of its own, so that it says nothing about any other use of the bytes.
        let digest = Sha256::new().chain_update(b"proliferate vault key id").chain_update(&bytes).finalize();
        Ok(Self { id: hex::encode(&digest[..6]), cipher })
    }
}

/// The owner of a value as bytes; each part with its length, so that no two owners have the same.
fn owner(org: OrgId, scope: Scope, name: &str) -> Vec<u8> {
    let id = match scope {
        Scope::Org => org.uuid(),
        Scope::Repo(id) => id.uuid(),
        Scope::Configuration(id) => id.uuid(),
    };
    let mut out = b"proliferate secret v1".to_vec();
    for part in [
        org.uuid().as_bytes().as_slice(),
        scope.as_str().as_bytes(),
        id.as_bytes().as_slice(),
        name.as_bytes(),
    ] {
        out.extend_from_slice(&(part.len() as u64).to_be_bytes());
        out.extend_from_slice(part);
    }
    out
}

/// A name that can be an environment variable, and nothing else: no path, no option, no header.
pub(crate) fn is_name(name: &str) -> bool {
    let mut letters = name.chars();
    name.len() <= MAX_NAME
        && letters.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && letters.all(|c| c.is_ascii_alphanumeric() || c == '_')
}
