//! The vault: secrets are encrypted with AES-256-GCM before they reach the database, and decrypted only where they
//! are used.
//!
//! The owner of a value (organization, scope, name) and its purpose are associated data: a ciphertext copied to another row does not
//! decrypt. No API returns a value; only code that acts with it calls [`Vault::open_for`], and a few listed files
//! [`Vault::open_without_permit`].

mod known_secrets;

use std::path::PathBuf;
use std::sync::Arc;

use aes_gcm::aead::{Aead as _, KeyInit as _, Payload};
use aes_gcm::{Aes256Gcm, Nonce};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, Utc};
use clock::{Clock, Rng};
use gate::Permit;
use ledger::{Redactor, RedactorError};
use parking_lot::RwLock;
use proto::http::SecretPurpose;
use proto::{InvocationId, OrgId, SecretId, SessionId, UserId};
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use store::{NewEvent, NewSecret, Scope, Sealed, SealedSecret, Store, StoreError};

use crate::keyring::{Keyring, KeyringError, key_id};
use known_secrets::KnownSecrets;

/// The maximum lengths of a secret's name and value.
pub const MAX_NAME: usize = 200;
pub const MAX_VALUE: usize = 64 * 1024;

/// Encrypts and decrypts secrets. Cheap to clone.
#[derive(Clone)]
pub struct Vault {
    store: Store,
    clock: Clock,
    rng: Rng,
    keys: Arc<RwLock<Vec<VaultKey>>>,
    file: Option<PathBuf>,
    known: Arc<KnownSecrets>,
    /// Looks for the gateway's own keys, which no organization has.
    own_keys: Redactor,
}

/// The secrets that a sandbox may get. There is no variant for platform secrets.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Injected {
    Variables,
    Files,
}

/// A decrypted secret of a session.
pub(crate) struct OpenSecret {
    pub(crate) scope: Scope,
    /// The name of a variable, or the path of a file.
    pub(crate) key: String,
    pub(crate) value: SecretString,
}

#[derive(Clone)]
struct VaultKey {
    id: String,
    cipher: Aes256Gcm,
}

/// The reason why a secret cannot be stored or decrypted.
#[derive(Debug, thiserror::Error)]
pub enum VaultError {
    #[error(
        "the name of a secret has letters, digits and _, does not begin with a digit, and at most {MAX_NAME} characters"
    )]
    BadName,
    #[error("the value of a secret has at most {MAX_VALUE} bytes and no NUL")]
    BadValue,
    #[error(
        "the value of {0} is empty, and a credential for the gateway needs one. Is it a variable for sandboxes, which may be \
         empty? Then store it with the purpose env (--purpose env)"
    )]
    EmptyValue(String),
    #[error("the secret is sealed with key {0}, which is neither USER_SECRETS_ENCRYPTION_KEY nor an old one")]
    UnknownKey(String),
    #[error(
        "secrets of the database are sealed with key {0}, which is neither in keys.env of the data dir nor \
         USER_SECRETS_ENCRYPTION_KEY or USER_SECRETS_ENCRYPTION_KEY_OLD: restore keys.env from your backup, or set the key"
    )]
    LostKey(String),
    #[error("the secret does not open: its row was changed or belongs to somebody else")]
    Tampered,
    #[error("a vault key is not 64 hexadecimal digits")]
    BadKey,
    #[error(
        "the secret {name} of organization {org} stops the rotation: {source}. Set it anew or remove it, then rotate again."
    )]
    Rotation { org: OrgId, name: String, source: Box<VaultError> },
    #[error(transparent)]
    Redactor(#[from] RedactorError),
    #[error(transparent)]
    Keyring(#[from] KeyringError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Vault {
    pub fn new(store: Store, keyring: &Keyring, clock: Clock, rng: Rng) -> Result<Self, VaultError> {
        let keys = std::iter::once(&keyring.vault).chain(&keyring.old_vault).map(VaultKey::new);
        let keys = Arc::new(RwLock::new(keys.collect::<Result<_, _>>()?));
        Ok(Self {
            store,
            clock,
            rng,
            keys,
            file: keyring.file.clone(),
            known: Arc::default(),
            own_keys: Redactor::default(),
        })
    }

    /// Fails if the database has values encrypted with a key that is missing here. Without this check, the gateway
    /// would run, encrypt new values with another key, and show only later that the old ones are lost.
    pub async fn check_keys(&self) -> Result<(), VaultError> {
        let sealing = self.store.secret_key_ids().await?;
        let is_unknown = |id: &&String| self.key(|key| key.id == **id).is_none();
        if sealing.iter().any(|id| is_unknown(&id)) {
            self.reload()?;
        }
        sealing.iter().find(is_unknown).map_or(Ok(()), |id| Err(VaultError::LostKey(id.clone())))
    }

    /// The same vault, whose redactors also remove these keys of the gateway.
    pub(crate) fn hiding<'a>(
        self,
        keys: impl IntoIterator<Item = &'a SecretString>,
    ) -> Result<Self, VaultError> {
        let own_keys = Redactor::new(keys.into_iter().map(SecretString::expose_secret))?;
        Ok(Self { own_keys, ..self })
    }

    /// The same vault, whose writes are recorded with this event.
    #[must_use]
    pub fn recorded(&self, event: NewEvent) -> Self {
        Self { store: self.store.recorded(event), ..self.clone() }
    }

    /// Stores a platform secret, replacing one of the same owner and name. Returns `true` if it is new.
    pub async fn set(
        &self,
        org: OrgId,
        scope: Scope,
        name: &str,
        value: &SecretString,
        by: Option<UserId>,
    ) -> Result<bool, VaultError> {
        Ok(self.set_all(org, scope, &[(name.to_owned(), value.clone())], by).await? == 1)
    }

    /// Stores all of these platform secrets or none, replacing those of the same owner and name. Returns how many are
    /// new.
    pub async fn set_all(
        &self,
        org: OrgId,
        scope: Scope,
        pairs: &[(String, SecretString)],
        by: Option<UserId>,
    ) -> Result<usize, VaultError> {
        self.put(org, scope, SecretPurpose::Platform, pairs, by).await
    }

    /// Stores all of these secrets or none, for any purpose. A secret keeps its purpose for life.
    pub async fn put(
        &self,
        org: OrgId,
        scope: Scope,
        purpose: SecretPurpose,
        pairs: &[(String, SecretString)],
        by: Option<UserId>,
    ) -> Result<usize, VaultError> {
        pairs.iter().try_for_each(|(name, value)| check_value(purpose, name, value))?;
        let at: DateTime<Utc> = self.clock.now();
        let mut created = None;
        loop {
            let key = self.present()?;
            let seal = |(name, value): &(String, SecretString)| {
                let associated = owner(org, scope, purpose, name);
                let value = self.seal(&key, &associated, value.expose_secret().as_bytes())?;
                let (id, key) = (SecretId::from(self.rng.uuid(at)), name.clone());
                Ok(NewSecret { id, org_id: org, scope, purpose, key, value, created_by: by, at })
            };
            let all = pairs.iter().map(seal).collect::<Result<Vec<_>, VaultError>>()?;
            let store = if created.is_none() { self.store.clone() } else { self.store.unrecorded() };
            let made = store.put_secrets(all).await?;
            self.known.forget();
            let created = *created.get_or_insert(made);
            // A rotation that ended in between has not re-encrypted these values, and deletes the key that encrypts
            // them. So write them again.
            if self.present()?.id == key.id {
                return Ok(usize::try_from(created).unwrap_or(usize::MAX));
            }
        }
    }

    /// Decrypts a platform secret for a call that the gate has allowed.
    pub async fn open_for(
        &self,
        permit: &Permit,
        scope: Scope,
        name: &str,
    ) -> Result<Option<SecretString>, VaultError> {
        self.open_without_permit(permit.org(), scope, name).await
    }

    /// Decrypts a platform secret without a permit: to verify the signature of a webhook, or to list the tools of a
    /// connector, which sends it to the connector's server. A call that acts with a secret uses [`Vault::open_for`].
    pub async fn open_without_permit(
        &self,
        org: OrgId,
        scope: Scope,
        name: &str,
    ) -> Result<Option<SecretString>, VaultError> {
        let purpose = SecretPurpose::Platform;
        match self.store.sealed_secret(org, scope, purpose, name).await? {
            None => Ok(None),
            Some(sealed) => Ok(Some(self.unseal(&owner(org, scope, purpose, name), &sealed)?)),
        }
    }

    /// Decrypts the wanted variables or files of those that a session may use, for its sandbox. Never a platform secret.
    pub(crate) async fn open_for_session(
        &self,
        org: OrgId,
        session: SessionId,
        what: Injected,
        wanted: impl Fn(&SealedSecret) -> bool,
    ) -> Result<Vec<OpenSecret>, VaultError> {
        let purpose = match what {
            Injected::Variables => SecretPurpose::Env,
            Injected::Files => SecretPurpose::File,
        };
        let sealed = self.store.sealed_secrets_of_session(org, session, purpose).await?;
        let open = |found: SealedSecret| {
            let value = self.unseal(&owner(org, found.scope, purpose, &found.key), &found.value)?;
            Ok(OpenSecret { scope: found.scope, key: found.key, value })
        };
        sealed.into_iter().filter(|found| wanted(found)).map(open).collect()
    }

    /// Decrypts a secret of an organization, to look for its value.
    fn open_sealed(&self, org: OrgId, secret: &SealedSecret) -> Result<SecretString, VaultError> {
        self.unseal(&owner(org, secret.scope, secret.purpose, &secret.key), &secret.value)
    }

    /// Encrypts the request of a call that waits for approval. It decrypts for this invocation only.
    pub fn seal_request(&self, org: OrgId, id: InvocationId, request: &str) -> Result<Value, VaultError> {
        let sealed = self.seal(&self.present()?, &waiting_call(org, id), request.as_bytes())?;
        let stored = SealedRequest {
            key_id: sealed.key_id,
            nonce: hex::encode(sealed.nonce),
            ciphertext: STANDARD.encode(sealed.ciphertext),
        };
        serde_json::to_value(stored).map_err(|_| VaultError::BadValue)
    }

    pub fn unseal_request(
        &self,
        org: OrgId,
        id: InvocationId,
        stored: &Value,
    ) -> Result<SecretString, VaultError> {
        let stored = SealedRequest::deserialize(stored).map_err(|_| VaultError::Tampered)?;
        let nonce = hex::decode(stored.nonce).map_err(|_| VaultError::Tampered)?;
        let ciphertext = STANDARD.decode(stored.ciphertext).map_err(|_| VaultError::Tampered)?;
        self.unseal(&waiting_call(org, id), &Sealed { key_id: stored.key_id, nonce, ciphertext })
    }

    /// Re-encrypts everything under an older key with the current one. Returns how many values were changed, and
    /// calls `progress` with that number as it grows. Safe to run again after an interruption.
    pub async fn rotate(&self, progress: impl Fn(u64)) -> Result<u64, VaultError> {
        const ROWS_PER_PAGE: i64 = 100;
        let mut done = 0;
        loop {
            let page = self.store.secrets_not_under(&self.present()?.id, ROWS_PER_PAGE).await?;
            if page.is_empty() {
                return Ok(done);
            }
            for entry in page {
                let (org, scope, purpose) = (entry.org_id, entry.scope, entry.purpose);
                let Some(old) = self.store.sealed_secret(org, scope, purpose, &entry.key).await? else {
                    continue;
                };
                let associated = owner(org, scope, purpose, &entry.key);
                let named =
                    |source| VaultError::Rotation { org, name: entry.key.clone(), source: Box::new(source) };
                let value = self.unseal(&associated, &old).map_err(named)?;
                let new = self.seal(&self.present()?, &associated, value.expose_secret().as_bytes())?;
                // A value that was written meanwhile is already encrypted with the current key.
                if self.store.reseal_secret(entry.id, old, new).await? {
                    done += 1;
                    progress(done);
                }
            }
        }
    }

    fn seal(&self, key: &VaultKey, associated: &[u8], value: &[u8]) -> Result<Sealed, VaultError> {
        let nonce = self.rng.bytes::<12>();
        let payload = Payload { msg: value, aad: associated };
        let ciphertext =
            key.cipher.encrypt(&Nonce::from(nonce), payload).map_err(|_| VaultError::BadValue)?;
        Ok(Sealed { key_id: key.id.clone(), nonce: nonce.to_vec(), ciphertext })
    }

    fn unseal(&self, associated: &[u8], sealed: &Sealed) -> Result<SecretString, VaultError> {
        let wanted = |key: &VaultKey| key.id == sealed.key_id;
        if self.key(wanted).is_none() {
            self.reload()?;
        }
        let key = self.key(wanted).ok_or_else(|| VaultError::UnknownKey(sealed.key_id.clone()))?;
        let nonce: [u8; 12] = sealed.nonce.as_slice().try_into().map_err(|_| VaultError::Tampered)?;
        let payload = Payload { msg: &sealed.ciphertext, aad: associated };
        let value = key.cipher.decrypt(&Nonce::from(nonce), payload).map_err(|_| VaultError::Tampered)?;
        String::from_utf8(value).map(SecretString::from).map_err(|_| VaultError::Tampered)
    }

    fn key(&self, wanted: impl Fn(&VaultKey) -> bool) -> Option<VaultKey> {
        let keys = self.keys.read();
        keys.iter().find(|key| wanted(key)).cloned()
    }

    /// The key that encrypts new values. It is read fresh, because values under an older key are lost once that key
    /// is deleted.
    fn present(&self) -> Result<VaultKey, VaultError> {
        self.reload()?;
        self.key(|_| true).ok_or(VaultError::BadKey)
    }

    /// Reads the keys from the data directory again, since a rotation in another process may have added one. Known
    /// keys are kept for values that the rotation has not reached.
    fn reload(&self) -> Result<(), VaultError> {
        let Some(file) = self.file.as_deref() else { return Ok(()) };
        let mut fresh: Vec<VaultKey> =
            Keyring::vault_keys_in(file)?.iter().map(VaultKey::new).collect::<Result<_, _>>()?;
        let mut keys = self.keys.write();
        for known in keys.drain(..) {
            if fresh.iter().all(|key| key.id != known.id) {
                fresh.push(known);
            }
        }
        *keys = fresh;
        Ok(())
    }
}

/// The encrypted request of a call that waits, as its column holds it.
#[derive(Serialize, Deserialize)]
struct SealedRequest {
    key_id: String,
    nonce: String,
    ciphertext: String,
}

/// The associated data of a request that waits.
fn waiting_call(org: OrgId, id: InvocationId) -> Vec<u8> {
    let (org, id) = (org.uuid(), id.uuid());
    [b"proliferate waiting call v1".as_slice(), org.as_bytes(), id.as_bytes()].concat()
}

impl VaultKey {
    fn new(secret: &SecretString) -> Result<Self, VaultError> {
        let bytes = hex::decode(secret.expose_secret()).map_err(|_| VaultError::BadKey)?;
        let cipher = Aes256Gcm::new_from_slice(&bytes).map_err(|_| VaultError::BadKey)?;
        Ok(Self { id: key_id(secret).ok_or(VaultError::BadKey)?, cipher })
    }
}

fn check_value(purpose: SecretPurpose, name: &str, value: &SecretString) -> Result<(), VaultError> {
    // The route that stores a file has checked its path.
    if purpose != SecretPurpose::File && !is_name(name) {
        return Err(VaultError::BadName);
    }
    if value.expose_secret().len() > MAX_VALUE || value.expose_secret().contains('\0') {
        return Err(VaultError::BadValue);
    }
    if purpose == SecretPurpose::Platform && value.expose_secret().trim().is_empty() {
        return Err(VaultError::EmptyValue(name.to_owned()));
    }
    Ok(())
}

/// The owner and purpose of a value as bytes. Each part has its length, so that no two owners have the same encoding.
fn owner(org: OrgId, scope: Scope, purpose: SecretPurpose, name: &str) -> Vec<u8> {
    let id = match scope {
        Scope::Org => org.uuid(),
        Scope::Repo(id) => id.uuid(),
        Scope::Configuration(id) => id.uuid(),
        Scope::Session(id) => id.uuid(),
    };
    let mut out = b"proliferate secret v1".to_vec();
    let org = org.uuid();
    let parts =
        [org.as_bytes().as_slice(), scope.as_str().as_bytes(), id.as_bytes().as_slice(), name.as_bytes()];
    // Platform secrets were stored before there were purposes.
    let purpose = Some(purpose.as_str().as_bytes()).filter(|_| purpose != SecretPurpose::Platform);
    for part in parts.into_iter().chain(purpose) {
        out.extend_from_slice(&(part.len() as u64).to_be_bytes());
        out.extend_from_slice(part);
    }
    out
}

/// Whether this is a valid name of an environment variable. This excludes paths, options and headers.
pub(crate) fn is_name(name: &str) -> bool {
    let mut letters = name.chars();
    name.len() <= MAX_NAME
        && letters.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && letters.all(|c| c.is_ascii_alphanumeric() || c == '_')
}
