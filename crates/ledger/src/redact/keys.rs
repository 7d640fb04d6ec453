//! Recognizes the names of fields, headers and variables that hold secrets.

use serde_json::{Map, Value};

/// Substrings of names, in lower case and without separators.
const SENSITIVE_PARTS: [&str; 12] = [
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
const SENSITIVE_NAMES: [&str; 3] = ["auth", "pwd", "pass"];
/// Names of positions in a list, such as `nextPageToken`. They open nothing, and who approves a call must see which page it
/// asks for. Only whole names count: `facebook_page_token` is a credential.
const PAGE_TOKENS: [&str; 10] = [
    "pagetoken",
    "nextpagetoken",
    "prevpagetoken",
    "previouspagetoken",
    "nexttoken",
    "cursortoken",
    "continuationtoken",
    "nextcontinuationtoken",
    "continuetoken",
    "paginationtoken",
];

/// Whether a key such as `access_token`, `X-Api-Key` or `clientSecret` indicates that its value is a secret.
pub fn is_sensitive_key(key: &str) -> bool {
    let name: String =
        key.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect();
    if PAGE_TOKENS.contains(&name.as_str()) {
        return false;
    }
    let api_key = name.split_once("api").is_some_and(|(_, rest)| rest.contains("key"));
    api_key
        || SENSITIVE_PARTS.iter().any(|part| name.contains(part))
        || SENSITIVE_NAMES.contains(&name.as_str())
}

/// Values that stay even under a sensitive key: `null`, and counts of tokens.
pub(super) fn is_exempt(key: &str, value: &Value) -> bool {
    value.is_null() || (value.is_number() && is_token_count(key))
}

pub(super) fn is_token_count(key: &str) -> bool {
    let name = key.to_ascii_lowercase();
    name.ends_with("tokens") || name.ends_with("token_count") || name.ends_with("tokencount")
}

/// Matches `{"name": "Authorization", "value": "…"}`, where the secret's name is itself a value.
pub(super) fn names_secret_in_value(entries: &Map<String, Value>) -> bool {
    let is_name = |key: &str| ["name", "key", "header", "field"].contains(&key.to_ascii_lowercase().as_str());
    entries.iter().any(|(key, value)| is_name(key) && value.as_str().is_some_and(is_sensitive_key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_in_a_list_are_no_secrets() {
        for key in ["pageToken", "next_page_token", "NextToken", "continuation-token", "cursor", "page"] {
            assert!(!is_sensitive_key(key), "{key}");
        }
        let secrets = [
            "token",
            "nextAuthToken",
            "page_access_token",
            "facebook_page_token",
            "pageTokenSecret",
            "user_token",
            "tokens",
        ];
        for key in secrets {
            assert!(is_sensitive_key(key), "{key}");
        }
    }

    #[test]
    fn only_counts_of_tokens_are_shown() {
        for key in ["maxTokens", "max_output_tokens", "token_count"] {
            assert!(is_exempt(key, &100.into()) && !is_exempt(key, &"abc".into()), "{key}");
        }
    }
}
