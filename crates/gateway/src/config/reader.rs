//! Reads settings by name, and collects all errors instead of stopping at the first.

use std::collections::BTreeMap;

use secrecy::SecretString;

use super::ConfigErrors;

/// The names of settings whose values must never be shown, nor be given on a command line that others can see.
const SECRET_SETTINGS: [&str; 7] = [
    "DATABASE_URL",
    "GATEWAY_JWT_SECRET",
    "SERVICE_TO_SERVICE_AUTH_TOKEN",
    "USER_SECRETS_ENCRYPTION_KEY",
    "USER_SECRETS_ENCRYPTION_KEY_OLD",
    "ANTHROPIC_API_KEY",
    "OPENAI_API_KEY",
];

/// The names of URL settings. A URL may contain user:password@, so their values are not shown either.
const URL_SETTINGS: [&str; 5] =
    ["PUBLIC_URL", "ALLOWED_ORIGINS", "ANTHROPIC_BASE_URL", "OPENAI_BASE_URL", "SANDBOX_ATTACH_URL"];

/// Settings that this version does not support yet, and why. Ignoring them would let an operator believe that
/// several gateways share sessions, or that files are in a bucket.
const UNSUPPORTED_SETTINGS: [(&str, &str); 6] = [
    ("REDIS_URL", ONE_GATEWAY),
    ("S3_BUCKET", DATA_DIR_ONLY),
    ("S3_REGION", DATA_DIR_ONLY),
    ("S3_ENDPOINT_URL", DATA_DIR_ONLY),
    ("S3_ACCESS_KEY", DATA_DIR_ONLY),
    ("S3_SECRET_KEY", DATA_DIR_ONLY),
];
const ONE_GATEWAY: &str =
    "is not supported yet: one gateway serves a database, and needs no Redis. Unset it.";
const DATA_DIR_ONLY: &str =
    "is not supported yet: snapshots and artifacts are kept in the data dir and the database. Unset it.";

/// The values by name, and the errors so far.
pub(super) struct Reader {
    defaults: BTreeMap<String, String>,
    values: BTreeMap<String, String>,
    errors: Vec<String>,
}

impl Reader {
    pub(super) fn new(
        defaults: &str,
        environment: &BTreeMap<String, String>,
        flags: &[(String, String)],
    ) -> Result<Self, ConfigErrors> {
        let defaults: BTreeMap<String, String> =
            toml::from_str(defaults).map_err(|e| ConfigErrors(vec![format!("config.default.toml: {e}")]))?;
        let mut errors = Vec::new();
        let mut values = defaults.clone();
        for (name, value) in &mut values {
            if let Some(given) = environment.get(name).filter(|given| !given.is_empty()) {
                value.clone_from(given);
            }
        }
        for (name, why) in UNSUPPORTED_SETTINGS {
            let in_environment = environment.get(name).is_some_and(|given| !given.is_empty());
            if in_environment || flags.iter().any(|(flag, _)| flag == name) {
                errors.push(format!("{name} {why}"));
            }
        }
        for (name, given) in flags {
            match values.get_mut(name) {
                None if UNSUPPORTED_SETTINGS.iter().any(|(unsupported, _)| unsupported == name) => {}
                None => errors.push(format!("{name}: there is no setting of this name")),
                Some(_) if SECRET_SETTINGS.contains(&name.as_str()) => errors.push(format!(
                    "{name}: a secret on the command line can be seen by every process; set it in the environment"
                )),
                Some(value) => value.clone_from(given),
            }
        }
        Ok(Self { defaults, values, errors })
    }

    /// Reads a setting that always has a value. On an error, the error is collected and the default is used, so
    /// that the other settings can be read too. `None` if there is no valid default, which is also an error.
    pub(super) fn required<T>(&mut self, name: &str, parse: fn(&str) -> Result<T, String>) -> Option<T> {
        let value = self.optional(name, parse).or_else(|| parse(self.defaults.get(name)?).ok());
        if value.is_none() {
            self.errors.push(format!("{name}: has no valid default in config.default.toml"));
        }
        value
    }

    /// Reads a setting that may be absent.
    pub(super) fn optional<T>(&mut self, name: &str, parse: fn(&str) -> Result<T, String>) -> Option<T> {
        let value = self.values.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())?;
        match parse(value) {
            Ok(value) => Some(value),
            Err(why) if SECRET_SETTINGS.contains(&name) || URL_SETTINGS.contains(&name) => {
                self.errors.push(format!("{name}: {why}"));
                None
            }
            Err(why) => {
                self.errors.push(format!("{name}={value}: {why}"));
                None
            }
        }
    }

    /// Reads a comma-separated list.
    pub(super) fn list<T>(&mut self, name: &str, parse: fn(&str) -> Result<T, String>) -> Vec<T> {
        let text = self.values.get(name).cloned().unwrap_or_default();
        let mut items = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            match parse(part) {
                Ok(item) => items.push(item),
                Err(why) => self.errors.push(format!("{name}: {why}")),
            }
        }
        items
    }

    /// Reads a secret that may be absent.
    pub(super) fn secret(
        &mut self,
        name: &str,
        check: fn(&str) -> Result<(), String>,
    ) -> Option<SecretString> {
        debug_assert!(SECRET_SETTINGS.contains(&name), "{name} must be listed as a secret");
        let value = self.values.get(name).map(|value| value.trim().to_owned()).filter(|v| !v.is_empty())?;
        match check(&value) {
            Ok(()) => Some(value.into()),
            Err(why) => {
                self.errors.push(format!("{name}: {why}"));
                None
            }
        }
    }

    /// Reads a comma-separated list of secrets.
    pub(super) fn secrets(&mut self, name: &str, check: fn(&str) -> Result<(), String>) -> Vec<SecretString> {
        let text = self.values.get(name).cloned().unwrap_or_default();
        let parts: Vec<&str> = text.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
        if let Some(why) = parts.iter().find_map(|part| check(part).err()) {
            self.errors.push(format!("{name}: {why}"));
        }
        parts.into_iter().map(SecretString::from).collect()
    }

    /// Adds an error that concerns several settings.
    pub(super) fn complain(&mut self, error: &str) {
        self.errors.push(error.to_owned());
    }

    /// Adds an error if two settings that must differ are the same.
    pub(super) fn differ(&mut self, one: &str, other: &str) {
        let value = |name| self.values.get(name).filter(|value| !value.is_empty());
        if value(one).is_some() && value(one) == value(other) {
            self.errors.push(format!("{one}: must not be the same as {other}"));
        }
    }

    pub(super) fn finish<T>(self, config: Option<T>) -> Result<T, ConfigErrors> {
        match config {
            Some(config) if self.errors.is_empty() => Ok(config),
            _ => Err(ConfigErrors(self.errors)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_that_is_missing_or_wrong_is_an_error_like_any_other() {
        for defaults in ["", "COUNT = \"many\""] {
            let mut reader = Reader::new(defaults, &BTreeMap::new(), &[]).unwrap();
            let count = reader.required("COUNT", crate::config::values::count);
            let errors = reader.finish(count).unwrap_err().to_string();
            assert!(errors.contains("COUNT: has no valid default"), "{errors}");
        }
    }
}
