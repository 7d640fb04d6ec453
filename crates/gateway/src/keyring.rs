//! The gateway's three secrets, from the settings or generated once and stored in the data directory.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use clock::Rng;
use secrecy::{ExposeSecret as _, SecretString};
use sha2::{Digest as _, Sha256};

use crate::config::{Config, ConfigErrors, Database};
use files::secret_file;

/// The signing secrets and the keys of the vault.
#[derive(Clone, Debug)]
pub struct Keyring {
    pub jwt: SecretString,
    pub service: SecretString,
    /// The key that encrypts new values.
    pub vault: SecretString,
    /// Keys that only decrypt.
    pub old_vault: Vec<SecretString>,
    /// The file of generated keys. The vault reads it again when it meets a key it does not know.
    pub file: Option<PathBuf>,
}

/// The id of a vault key, for reporting which one is missing. `None` if the key is not 32 bytes in hexadecimal.
pub(crate) fn key_id(secret: &SecretString) -> Option<String> {
    let bytes = hex::decode(secret.expose_secret()).ok().filter(|bytes| bytes.len() == 32)?;
    // The hash has a label of its own, so that it reveals nothing about any other use of the bytes.
    let digest = Sha256::new().chain_update(b"proliferate vault key id").chain_update(&bytes).finalize();
    Some(hex::encode(&digest[..6]))
}

const JWT_SETTING: &str = "GATEWAY_JWT_SECRET";
const SERVICE_SETTING: &str = "SERVICE_TO_SERVICE_AUTH_TOKEN";
const VAULT_SETTING: &str = "USER_SECRETS_ENCRYPTION_KEY";
const OLD_VAULT: &str = "USER_SECRETS_ENCRYPTION_KEY_OLD";

/// The reason why the keyring cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum KeyringError {
    #[error(transparent)]
    Missing(#[from] ConfigErrors),
    #[error("{what} {}: {source}", path.display())]
    File { what: &'static str, path: PathBuf, source: io::Error },
    #[error("{} has no {name}: it is damaged; restore it from your backup, sealed secrets cannot be read without it", path.display())]
    Damaged { path: PathBuf, name: &'static str },
    #[error("{} can be read by others, and whoever reads it can act as anybody: run `chmod 600 {}`", path.display(), path.display())]
    Exposed { path: PathBuf },
    #[error(
        "{} is gone, and the database holds secrets that are sealed with its key {key}: restore it from your backup, \
         or set the key as USER_SECRETS_ENCRYPTION_KEY or USER_SECRETS_ENCRYPTION_KEY_OLD",
        path.display()
    )]
    Lost { path: PathBuf, key: String },
}

impl Keyring {
    /// Opens the secrets of `config`. With SQLite, missing ones come from the data directory, and are generated if
    /// there are none. With PostgreSQL several instances must agree, so nothing is generated.
    ///
    /// If a database already exists, call [`Keyring::open_for`] instead.
    pub fn open(config: &Config, rng: &Rng) -> Result<Self, KeyringError> {
        Self::open_for(config, rng, &[])
    }

    /// Opens the secrets for a database in which the keys with the ids `sealing` have encrypted values. A missing key
    /// file is then not replaced by a new one, which could decrypt none of them.
    pub fn open_for(config: &Config, rng: &Rng, sealing: &[String]) -> Result<Self, KeyringError> {
        let missing = Self::missing_settings(config, sealing)?;
        let file = key_file(&config.data_dir);
        let made = if missing.is_empty() { BTreeMap::new() } else { read_or_make(&file, rng)? };
        Self::of(config, &made, file)
    }

    /// Describes what [`Keyring::open_for`] would do, or fails as it would. Creates nothing.
    pub fn check(config: &Config, sealing: &[String]) -> Result<String, KeyringError> {
        let missing = Self::missing_settings(config, sealing)?;
        let file = key_file(&config.data_dir);
        if missing.is_empty() {
            return Ok("given by settings".to_owned());
        }
        if !file.exists() {
            return Ok(format!("{} will be made at the first start", file.display()));
        }
        let shown = file.display().to_string();
        Self::of(config, &parse(&file)?, file)?;
        Ok(shown)
    }

    /// The names of the settings that are missing and have to come from the file.
    fn missing_settings(config: &Config, sealing: &[String]) -> Result<Vec<&'static str>, KeyringError> {
        let given = [
            (JWT_SETTING, &config.jwt_secret),
            (SERVICE_SETTING, &config.service_secret),
            (VAULT_SETTING, &config.vault_key),
        ];
        let missing: Vec<&str> =
            given.iter().filter(|(_, value)| value.is_none()).map(|(name, _)| *name).collect();
        if let ([_, ..], Database::Postgres(_)) = (missing.as_slice(), &config.database) {
            let why = "must be set when DATABASE_URL is (make one with: openssl rand -hex 32)";
            return Err(ConfigErrors(missing.iter().map(|name| format!("{name}: {why}")).collect()).into());
        }
        let file = key_file(&config.data_dir);
        if !missing.is_empty() && !file.exists() {
            let known = config.vault_key.iter().chain(&config.old_vault_keys).filter_map(key_id);
            let known: Vec<String> = known.collect();
            if let Some(key) = sealing.iter().find(|id| !known.contains(id)) {
                return Err(KeyringError::Lost { path: file, key: key.clone() });
            }
        }
        Ok(missing)
    }

    fn of(config: &Config, made: &BTreeMap<String, String>, file: PathBuf) -> Result<Self, KeyringError> {
        let pick = |given: &Option<SecretString>, name: &'static str| match given {
            Some(given) => Ok(given.clone()),
            None => value(made, name).ok_or(KeyringError::Damaged { path: file.clone(), name }),
        };
        Ok(Self {
            jwt: pick(&config.jwt_secret, JWT_SETTING)?,
            service: pick(&config.service_secret, SERVICE_SETTING)?,
            vault: pick(&config.vault_key, VAULT_SETTING)?,
            old_vault: config.old_vault_keys.iter().cloned().chain(old_keys(made)).collect(),
            file: config.vault_key.is_none().then_some(file),
        })
    }

    /// Generates a new vault key in the data directory. The current key, and those that an interrupted rotation left,
    /// are kept for decryption only.
    pub fn renew_vault_key(&mut self, rng: &Rng) -> Result<(), KeyringError> {
        let Some(file) = &self.file else { return Ok(()) };
        let _alone = lock(file)?;
        let kept = parse(file)?;
        let present = value(&kept, VAULT_SETTING)
            .ok_or(KeyringError::Damaged { path: file.clone(), name: VAULT_SETTING })?;
        let old: Vec<SecretString> = std::iter::once(present).chain(old_keys(&kept)).collect();
        let new = hex::encode(rng.bytes::<32>());
        let list = old.iter().map(SecretString::expose_secret).collect::<Vec<_>>().join(",");
        rewrite(file, &[(VAULT_SETTING, Some(&new)), (OLD_VAULT, Some(&list))])?;
        self.vault = new.into();
        self.old_vault.extend(old);
        Ok(())
    }

    /// Removes the keys that a finished rotation replaced, unless another rotation has started meanwhile and needs
    /// them.
    pub fn forget_old_vault_key(&self) -> Result<(), KeyringError> {
        let Some(file) = &self.file else { return Ok(()) };
        let _alone = lock(file)?;
        let present = value(&parse(file)?, VAULT_SETTING);
        let is_ours = present.is_some_and(|present| present.expose_secret() == self.vault.expose_secret());
        if is_ours { rewrite(file, &[(OLD_VAULT, None)]) } else { Ok(()) }
    }

    /// The vault keys that the file has now, the current one first.
    pub(crate) fn vault_keys_in(file: &Path) -> Result<Vec<SecretString>, KeyringError> {
        let kept = parse(file)?;
        Ok(value(&kept, VAULT_SETTING).into_iter().chain(old_keys(&kept)).collect())
    }
}

fn key_file(data_dir: &Path) -> PathBuf {
    data_dir.join("keys.env")
}

fn value(kept: &BTreeMap<String, String>, name: &str) -> Option<SecretString> {
    kept.get(name).map(|value| SecretString::from(value.as_str()))
}

/// The keys that only decrypt, comma-separated as in the setting.
fn old_keys(kept: &BTreeMap<String, String>) -> Vec<SecretString> {
    let list = kept.get(OLD_VAULT).map(String::as_str).unwrap_or_default();
    list.split(',').filter(|key| !key.is_empty()).map(SecretString::from).collect()
}

/// Locks the key file while it is read and rewritten. Without the lock, two commands could overwrite and lose each
/// other's key.
fn lock(file: &Path) -> Result<File, KeyringError> {
    let path = file.with_extension("lock");
    let open = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
    let locked = open.and_then(|lock| lock.lock().map(|()| lock));
    locked.map_err(|e| file_error("cannot lock", &path, e))
}

fn read_or_make(file: &Path, rng: &Rng) -> Result<BTreeMap<String, String>, KeyringError> {
    if !file.exists() {
        let values: Vec<String> = (0..3).map(|_| hex::encode(rng.bytes::<32>())).collect();
        let text = format!(
            "# Made by proliferate. Whoever reads this file can act as anybody; without it sealed secrets are lost.\n\
             {JWT_SETTING}={}\n{SERVICE_SETTING}={}\n{VAULT_SETTING}={}\n",
            values[0], values[1], values[2]
        );
        secret_file::make(file, text.as_bytes()).map_err(|e| file_error("cannot make", file, e))?;
    }
    private(file)?;
    parse(file)
}

/// Refuses a key file that others can read, for example after a copy or a restored backup.
fn private(file: &Path) -> Result<(), KeyringError> {
    if secret_file::is_private(file).map_err(|e| file_error("cannot read", file, e))? {
        Ok(())
    } else {
        Err(KeyringError::Exposed { path: file.to_owned() })
    }
}

fn rewrite(file: &Path, changes: &[(&str, Option<&str>)]) -> Result<(), KeyringError> {
    let text = std::fs::read_to_string(file).map_err(|e| file_error("cannot read", file, e))?;
    let is_old = |line: &str| changes.iter().any(|(name, _)| line.starts_with(&format!("{name}=")));
    let mut lines: Vec<String> = text.lines().filter(|line| !is_old(line)).map(str::to_owned).collect();
    lines.extend(changes.iter().filter_map(|(name, value)| Some(format!("{name}={}", (*value)?))));
    let text = lines.join("\n") + "\n";
    secret_file::replace(file, text.as_bytes()).map_err(|e| file_error("cannot replace", file, e))
}

fn parse(file: &Path) -> Result<BTreeMap<String, String>, KeyringError> {
    let text = std::fs::read_to_string(file).map_err(|e| file_error("cannot read", file, e))?;
    let pairs = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('='));
    Ok(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

fn file_error(what: &'static str, path: &Path, source: io::Error) -> KeyringError {
    KeyringError::File { what, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn config(data_dir: &Path, more: &[(&str, &str)]) -> Config {
        let mut env: BTreeMap<String, String> =
            more.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        env.insert("PROLIFERATE_DATA_DIR".into(), data_dir.to_str().unwrap().into());
        Config::load(&env, &[]).unwrap()
    }

    #[test]
    fn keys_are_generated_once_and_readable_by_their_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path(), &[]);
        let first = Keyring::open(&config, &Rng::system()).unwrap();
        let again = Keyring::open(&config, &Rng::system()).unwrap();
        assert_eq!(first.jwt.expose_secret(), again.jwt.expose_secret());
        assert_ne!(first.jwt.expose_secret(), first.service.expose_secret());
        assert_eq!(first.vault.expose_secret().len(), 64);
        let mode = std::fs::metadata(dir.path().join("keys.env")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "a part of a file was left behind");
    }

    #[test]
    fn a_key_file_that_others_can_read_is_refused_with_the_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path(), &[]);
        Keyring::open(&config, &Rng::system()).unwrap();
        let file = dir.path().join("keys.env");
        for mode in [0o640, 0o604, 0o660, 0o644] {
            std::fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            let error = Keyring::open(&config, &Rng::system()).unwrap_err().to_string();
            assert!(error.contains(&format!("chmod 600 {}", file.display())), "{mode:o}: {error}");
        }
        std::fs::set_permissions(&file, Permissions::from_mode(0o400)).unwrap();
        assert!(Keyring::open(&config, &Rng::system()).is_ok());
    }

    #[test]
    fn a_missing_key_file_is_not_replaced_while_its_key_is_needed() {
        let dir = tempfile::tempdir().unwrap();
        let (given, other) = ("ab".repeat(32), "0123456789ab".to_owned());
        let id = key_id(&given.as_str().into()).unwrap();
        let none = config(dir.path(), &[]);
        let error =
            Keyring::open_for(&none, &Rng::system(), std::slice::from_ref(&id)).unwrap_err().to_string();
        assert!(error.contains(&id) && error.contains("keys.env") && error.contains(OLD_VAULT), "{error}");
        let some = config(dir.path(), &[(VAULT_SETTING, &given)]);
        let lost = Keyring::open_for(&some, &Rng::system(), &[id.clone(), other]);
        assert!(matches!(lost, Err(KeyringError::Lost { .. })), "{lost:?}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "something was made");
        for name in [VAULT_SETTING, OLD_VAULT] {
            let config = config(dir.path(), &[(name, &given)]);
            assert!(Keyring::open_for(&config, &Rng::system(), std::slice::from_ref(&id)).is_ok(), "{name}");
            std::fs::remove_file(dir.path().join("keys.env")).unwrap();
        }
    }

    #[test]
    fn with_postgres_no_key_is_generated_and_every_missing_one_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let config =
            config(dir.path(), &[("DATABASE_URL", "postgres://h/d"), (JWT_SETTING, &"x".repeat(32))]);
        let error = Keyring::open(&config, &Rng::system()).unwrap_err().to_string();
        assert!(
            error.contains(SERVICE_SETTING) && error.contains(VAULT_SETTING) && !error.contains(JWT_SETTING),
            "{error}"
        );
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_renewed_vault_key_keeps_the_old_one_until_it_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path(), &[]);
        let mut keyring = Keyring::open(&config, &Rng::system()).unwrap();
        let before = keyring.vault.expose_secret().to_owned();
        keyring.renew_vault_key(&Rng::system()).unwrap();
        let reopened = Keyring::open(&config, &Rng::system()).unwrap();
        assert_ne!(reopened.vault.expose_secret(), before);
        assert_eq!(reopened.old_vault[0].expose_secret(), before);
        assert_eq!(reopened.jwt.expose_secret(), keyring.jwt.expose_secret());
        keyring.forget_old_vault_key().unwrap();
        assert!(Keyring::open(&config, &Rng::system()).unwrap().old_vault.is_empty());
    }
}
