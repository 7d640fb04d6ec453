//! Which names say that what stands under them is secret.

use serde_json::{Map, Value};

/// Parts of names, without case and separators.
const TELLING: [&str; 12] = [
    "token",
    "secret",
    "password",
    "passwd",
    "passphrase",
    "authorization",
    "cookie",
    "privatekey",
    "accesskey",
    "signingkey",
    "credential",
    "sessionkey",
];
const TELLING_WHOLE: [&str; 3] = ["auth", "pwd", "pass"];

/// Whether a key such as `access_token`, `X-Api-Key` or `clientSecret` says that its value is secret.
pub fn is_telling_key(key: &str) -> bool {
    let name: String =
        key.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect();
    let api_key = name.split_once("api").is_some_and(|(_, rest)| rest.contains("key"));
    api_key || TELLING.iter().any(|part| name.contains(part)) || TELLING_WHOLE.contains(&name.as_str())
}

/// Counts of tokens are not tokens, and nothing is no secret.
pub(super) fn is_kept(key: &str, value: &Value) -> bool {
    value.is_null() || (value.is_number() && counts_tokens(key))
}

pub(super) fn counts_tokens(key: &str) -> bool {
    let name = key.to_ascii_lowercase();
    name.ends_with("tokens") || name.ends_with("token_count") || name.ends_with("tokencount")
}

/// `{"name": "Authorization", "value": "…"}`: the name of the secret is a value itself.
pub(super) fn names_a_secret(entries: &Map<String, Value>) -> bool {
    let is_name = |key: &str| ["name", "key", "header", "field"].contains(&key.to_ascii_lowercase().as_str());
    entries.iter().any(|(key, value)| is_name(key) && value.as_str().is_some_and(is_telling_key))
}
