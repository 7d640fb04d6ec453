//! The saved logins: addresses of gateways and API keys for them, in one file that only its owner can read.

use std::io;
use std::path::{Path, PathBuf};

use files::secret_file;
use gateway::DataDir;
use gateway::config;
use proto::ApiKeyId;
use secrecy::SecretString;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use url::Url;

use crate::failure::Failure;

/// No such file of a person is larger; a larger one is not ours.
const MAX_SIZE: u64 = 1024 * 1024;

/// One saved login.
#[derive(Clone, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LoginContext {
    pub(crate) name: String,
    #[serde(with = "url_text")]
    pub(crate) url: Url,
    #[serde(with = "key_text")]
    pub(crate) key: SecretString,
    /// The id of a key that `login` created, which `logout` revokes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key_id: Option<ApiKeyId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) email: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) organization: Option<String>,
}

/// All saved logins, and the name of the one in use.
#[derive(Default, Deserialize, Serialize)]
pub(crate) struct LoginContexts {
    #[serde(default)]
    pub(crate) current: Option<String>,
    #[serde(default)]
    pub(crate) contexts: Vec<LoginContext>,
}

mod url_text {
    use super::{Deserialize, Deserializer, Serializer, Url};

    pub(super) fn serialize<S: Serializer>(url: &Url, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(url.as_str())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Url, D::Error> {
        Url::parse(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

/// The key in the file, and nowhere else.
mod key_text {
    use secrecy::ExposeSecret as _;

    use super::{Deserialize, Deserializer, SecretString, Serializer};

    pub(super) fn serialize<S: Serializer>(key: &SecretString, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(key.expose_secret())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SecretString, D::Error> {
        String::deserialize(deserializer).map(SecretString::from)
    }
}

impl LoginContexts {
    /// Reads the file; a missing one has no logins. A file that others can read is refused, as `ssh` refuses a key.
    pub(crate) fn load() -> Result<Self, Failure> {
        let Some(file) = path() else { return Ok(Self::default()) };
        let text = match read(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(Failure::missing(format!("cannot read {}: {error}", file.display()))),
            Ok(text) => text,
        };
        if !secret_file::is_private(&file).unwrap_or(false) {
            let way =
                format!("`chmod 600 {}`, and revoke its keys if somebody may have read them", file.display());
            return Err(Failure::missing(format!(
                "others can read {}, which holds keys: {way}",
                file.display()
            )));
        }
        // The error of the parser would quote the file, which holds keys.
        serde_json::from_str(&text).map_err(|_| {
            Failure::missing(format!("{} is damaged: remove it and log in again", file.display()))
        })
    }

    /// Replaces the file atomically.
    pub(crate) fn save(&self) -> Result<(), Failure> {
        let file =
            path().ok_or_else(|| Failure::missing("HOME is not set, so there is no place for the login"))?;
        let failed = |error: io::Error| Failure::missing(format!("cannot write {}: {error}", file.display()));
        DataDir::prepare(file.parent().unwrap_or(Path::new(".")))?;
        let text = serde_json::to_vec_pretty(self).map_err(|error| failed(error.into()))?;
        secret_file::replace(&file, &text).map_err(failed)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&LoginContext> {
        self.contexts.iter().find(|one| one.name == name)
    }

    /// The login in use.
    pub(crate) fn current(&self) -> Option<&LoginContext> {
        self.get(self.current.as_deref()?)
    }

    /// A login for this address, preferably the one in use.
    pub(crate) fn for_url(&self, url: &Url) -> Option<&LoginContext> {
        let same = |one: &&LoginContext| bare(&one.url) == bare(url);
        self.current().filter(same).or_else(|| self.contexts.iter().find(same))
    }

    /// Adds a login, or replaces the one of the same name, and makes it the one in use.
    pub(crate) fn put(&mut self, context: LoginContext) {
        self.contexts.retain(|one| one.name != context.name);
        self.current = Some(context.name.clone());
        self.contexts.push(context);
        self.contexts.sort_by(|one, other| one.name.cmp(&other.name));
    }

    pub(crate) fn remove(&mut self, name: &str) -> Option<LoginContext> {
        let at = self.contexts.iter().position(|one| one.name == name)?;
        if self.current.as_deref() == Some(name) {
            self.current = None;
        }
        Some(self.contexts.remove(at))
    }
}

fn bare(url: &Url) -> &str {
    url.as_str().trim_end_matches('/')
}

fn read(file: &Path) -> io::Result<String> {
    let about = std::fs::metadata(file)?;
    if !about.is_file() || about.len() > MAX_SIZE {
        return Err(io::Error::other("it is not a file of ours"));
    }
    std::fs::read_to_string(file)
}

/// `$XDG_CONFIG_HOME/proliferate/contexts.json`.
fn path() -> Option<PathBuf> {
    let environment = config::environment();
    let directory = |name: &str| environment.get(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    let config = directory("XDG_CONFIG_HOME").or_else(|| Some(directory("HOME")?.join(".config")))?;
    Some(config.join("proliferate/contexts.json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(name: &str, url: &str) -> LoginContext {
        LoginContext {
            name: name.to_owned(),
            url: url.parse().unwrap(),
            key: "plk_1".into(),
            key_id: None,
            email: None,
            organization: None,
        }
    }

    #[test]
    fn the_last_login_is_in_use_and_an_address_finds_its_own_login() {
        let mut all = LoginContexts::default();
        all.put(context("b", "https://b.example"));
        all.put(context("a", "https://a.example/"));
        assert_eq!(all.current().unwrap().name, "a");
        let named = |url: &str| all.for_url(&url.parse().unwrap()).map(|one| one.name.clone());
        assert_eq!(named("https://b.example/").as_deref(), Some("b"));
        assert_eq!(named("https://c.example/"), None, "a key goes to its own gateway only");
        assert!(all.remove("a").is_some() && all.current().is_none() && all.remove("a").is_none());
    }
}
