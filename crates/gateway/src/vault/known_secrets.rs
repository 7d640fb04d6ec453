//! The values of an organization's and a session's secrets as a redactor, which removes them from whatever is stored,
//! broadcast or returned. The gate has one by the trait [`gate::Secrets`], which also encrypts the calls that wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use gate::{SecretsUnread, ToolScope};
use ledger::{Redactor, is_sensitive_key};
use lru::LruCache;
use parking_lot::Mutex;
use proto::http::SecretPurpose;
use proto::{InvocationId, OrgId, SessionId};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::Value;
use store::SecretsMark;

use super::Vault;

/// How long an answer of the database counts. Another process may have changed a secret.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum number of bytes of the values of one owner. A redactor takes some hundred times as much.
const MAX_BYTES: i64 = 128 * 1024;
/// The maximum memory of all redactors. Those used longest ago are dropped first.
const MAX_MEMORY: usize = 128 * 1024 * 1024;
/// The maximum number of owners whose redactors are kept.
const MAX_OWNERS: std::num::NonZeroUsize = std::num::NonZeroUsize::new(10_000).unwrap();
/// Shorter values are in ordinary texts by chance.
const MIN_BYTES: usize = 6;
/// The same for values that nothing calls a secret.
const MIN_UNNAMED_BYTES: usize = 8;

/// The secrets of one owner: of an organization with its repositories and configurations, or of a session.
type Owner = (OrgId, Option<SessionId>);
type Slot = Arc<tokio::sync::Mutex<Option<Known>>>;

/// The redactors that were used lately.
pub(super) struct KnownSecrets {
    slots: Mutex<LruCache<Owner, (Slot, usize)>>,
    /// How often this process has stored values.
    writes: AtomicU64,
}

impl Default for KnownSecrets {
    fn default() -> Self {
        Self { slots: Mutex::new(LruCache::new(MAX_OWNERS)), writes: AtomicU64::new(0) }
    }
}

/// What was known of an owner at a time.
struct Known {
    checked_at: Duration,
    writes: u64,
    mark: SecretsMark,
    redactor: Redactor,
}

impl KnownSecrets {
    /// Makes the next call of each owner ask the database, because this process has stored values.
    pub(super) fn forget(&self) {
        self.writes.fetch_add(1, Ordering::Release);
    }

    /// Notes what the redactor of an owner takes, and drops others if all take too much.
    fn account(&self, owner: Owner, bytes: usize) {
        let mut slots = self.slots.lock();
        if let Some((_, taken)) = slots.get_mut(&owner) {
            *taken = bytes;
        }
        let taken =
            |slots: &LruCache<_, (Slot, usize)>| slots.iter().map(|(_, (_, bytes))| *bytes).sum::<usize>();
        while slots.len() > 1 && taken(&slots) > MAX_MEMORY {
            slots.pop_lru();
        }
    }
}

impl Vault {
    /// The redactor of everything that a scope must not show.
    pub(crate) async fn redactor(&self, scope: ToolScope) -> Result<Redactor, SecretsUnread> {
        let of_org = self.redactor_of((scope.org, None)).await?.and(&self.own_keys);
        match scope.session {
            None => Ok(of_org),
            Some(session) => Ok(of_org.and(&self.redactor_of((scope.org, Some(session))).await?)),
        }
    }

    async fn redactor_of(&self, owner: Owner) -> Result<Redactor, SecretsUnread> {
        let slot = self.known.slots.lock().get_or_insert_mut(owner, Default::default).0.clone();
        let mut slot = slot.lock().await;
        // Read before the database is, so that a write in between is noticed by the next call.
        let (now, writes) = (self.clock.elapsed(), self.known.writes.load(Ordering::Acquire));
        let fresh = |known: &&Known| known.writes == writes && now < known.checked_at + CHECK_INTERVAL;
        if let Some(known) = slot.as_ref().filter(fresh) {
            return Ok(known.redactor.clone());
        }
        let mark = self.store.secrets_mark(owner.0, owner.1).await.map_err(unread)?;
        let redactor = match slot.take() {
            Some(known) if known.mark == mark => known.redactor,
            _ => self.build(owner, &mark).await?,
        };
        *slot = Some(Known { checked_at: now, writes, mark, redactor: redactor.clone() });
        Ok(redactor)
    }

    async fn build(&self, owner: Owner, mark: &SecretsMark) -> Result<Redactor, SecretsUnread> {
        let (org, session) = owner;
        let sealed = self.store.shortest_secrets(org, session, MAX_BYTES).await.map_err(unread)?;
        if i64::try_from(sealed.len()).is_ok_and(|opened| opened < mark.0) {
            let (found, searched) = (mark.0, sealed.len());
            tracing::warn!(%org, found, searched, "an organization's secrets are too large to look for all of them");
        }
        let mut values = Vec::new();
        for secret in &sealed {
            match self.open_sealed(org, secret) {
                Ok(value) => values.extend(values_of(secret.purpose, &secret.key, &value)),
                // What cannot be decrypted cannot be used, so it cannot come back either.
                Err(error) => {
                    tracing::error!(%org, key = secret.key, %error, "a secret cannot be looked for");
                }
            }
        }
        // Building takes a while for long secrets.
        let built = tokio::task::spawn_blocking(move || {
            Redactor::new(values.iter().map(SecretString::expose_secret)).map_err(unread)
        });
        let redactor = built.await.map_err(unread)??;
        self.known.account(owner, redactor.memory());
        Ok(redactor)
    }
}

impl gate::Secrets for Vault {
    fn redactor(&self, scope: ToolScope) -> BoxFuture<'_, Result<Redactor, SecretsUnread>> {
        Self::redactor(self, scope).boxed()
    }

    fn seal(&self, org: OrgId, id: InvocationId, request: &str) -> Option<Value> {
        let sealed = self.seal_request(org, id, request);
        sealed.inspect_err(|error| tracing::error!(%error, "a call that waits cannot be encrypted")).ok()
    }

    fn unseal(&self, org: OrgId, id: InvocationId, sealed: &Value) -> Option<SecretString> {
        let request = self.unseal_request(org, id, sealed);
        request.inspect_err(|error| tracing::warn!(%error, "a call that waits cannot be decrypted")).ok()
    }
}

fn unread(error: impl std::fmt::Display) -> SecretsUnread {
    SecretsUnread(error.to_string())
}

/// What to look for of a secret: its value, and the values inside a file. Values of variables that are ordinary words,
/// numbers or addresses are not looked for unless their name says that they are secret.
fn values_of(purpose: SecretPurpose, key: &str, value: &SecretString) -> Vec<SecretString> {
    let text = value.expose_secret();
    let counts = match purpose {
        SecretPurpose::Platform => text.trim().len() >= MIN_BYTES,
        SecretPurpose::Env => is_secret(key, text),
        SecretPurpose::File => return values_in_file(text),
    };
    counts.then(|| value.clone()).into_iter().collect()
}

/// The content of a file, and the values of its variables or JSON fields.
fn values_in_file(content: &str) -> Vec<SecretString> {
    let mut values = Vec::new();
    if content.trim().len() >= MIN_UNNAMED_BYTES {
        values.push(content.to_owned());
    }
    match serde_json::from_str(content) {
        Ok(json) => collect_texts("", &json, &mut values),
        Err(_) => values.extend(content.lines().filter_map(|line| {
            let (key, value) = line.split_once('=')?;
            let value = value.trim().trim_matches(['"', '\'']);
            is_secret(key.trim(), value).then(|| value.to_owned())
        })),
    }
    values.into_iter().map(SecretString::from).collect()
}

fn collect_texts(key: &str, json: &Value, values: &mut Vec<String>) {
    match json {
        Value::String(text) if is_secret(key, text) => values.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| collect_texts(key, item, values)),
        Value::Object(fields) => fields.iter().for_each(|(key, value)| collect_texts(key, value, values)),
        _ => {}
    }
}

fn is_secret(key: &str, value: &str) -> bool {
    let value = value.trim();
    if is_sensitive_key(key) {
        return value.len() >= MIN_BYTES;
    }
    value.len() >= MIN_UNNAMED_BYTES && !is_ordinary(value)
}

/// Whether a value is a single word, a number, a path, or the address of a server without a credential.
fn is_ordinary(value: &str) -> bool {
    let is_path =
        value.starts_with(['/', '.']) && value.chars().all(|c| c.is_ascii_alphabetic() || "/._-".contains(c));
    let is_origin = value.split_once("://").is_some_and(|(_, rest)| {
        let host = rest.strip_suffix('/').unwrap_or(rest);
        host.chars().all(|c| c.is_ascii_alphanumeric() || ".:-".contains(c))
    });
    is_path
        || is_origin
        || value.chars().all(|c| c.is_ascii_alphabetic())
        || value.chars().all(|c| c.is_ascii_digit() || c == '.')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(purpose: SecretPurpose, key: &str, value: &str) -> Vec<String> {
        let values = values_of(purpose, key, &SecretString::from(value));
        values.iter().map(|value| value.expose_secret().to_owned()).collect()
    }

    #[test]
    fn ordinary_values_of_variables_are_not_looked_for() {
        for (key, value) in [
            ("NODE_ENV", "production"),
            ("PORT", "30000000"),
            ("API_URL", "https://api.example.com"),
            ("API_URL", "http://localhost:3000/"),
            ("DATA", "./data/files"),
            ("MODE", "a1b2"),
            ("API_KEY", "abc"),
        ] {
            assert_eq!(found(SecretPurpose::Env, key, value), [""; 0], "{key}={value}");
        }
        for (key, value) in [
            ("API_KEY", "abcdef"),
            ("DATABASE_URL", "postgres://me:pw@db/app"),
            ("HOOK", "https://hooks.example.com/T0/B0/x"),
            ("GREETING", "canary-0815"),
        ] {
            assert_eq!(found(SecretPurpose::Env, key, value), [value], "{key}={value}");
        }
        assert_eq!(found(SecretPurpose::Platform, "WORD", "production"), ["production"]);
        assert_eq!(found(SecretPurpose::Platform, "WORD", "abc"), [""; 0]);
    }

    #[test]
    fn the_values_inside_a_file_are_looked_for() {
        let env = "# settings\nAPI_TOKEN='canary'\nNODE_ENV=production\n";
        assert_eq!(found(SecretPurpose::File, ".env", env), [env, "canary"]);
        let json = r#"{"project": "production", "key": {"private_key": "canary", "ids": ["a1b2c3d4"]}}"#;
        assert_eq!(found(SecretPurpose::File, "a.json", json), [json, "a1b2c3d4", "canary"]);
    }
}
