//! The credential for a tool, and the forms in which it may leak back: some tools echo what they were sent.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::AUTHORIZATION;

const SCHEMES: [&str; 3] = ["bearer ", "basic ", "token "];

/// The header that authenticates us to a tool. It does not implement `Debug`, so that it cannot end up in a log.
pub(super) struct Credential {
    pub(super) header: String,
    pub(super) value: String,
}

impl Credential {
    pub(super) fn new(header: &str, value: String) -> Self {
        Self { header: header.to_owned(), value }
    }

    pub(super) fn bearer(secret: &str) -> Self {
        Self::new(AUTHORIZATION.as_str(), format!("Bearer {secret}"))
    }

    /// Every form of the credential that must be redacted: the whole value, what follows the scheme, and what
    /// `Basic` encodes.
    pub(super) fn spellings(&self) -> Vec<String> {
        let mut all = vec![self.value.clone()];
        let scheme = SCHEMES.iter().find(|scheme| {
            self.value.get(..scheme.len()).is_some_and(|found| found.eq_ignore_ascii_case(scheme))
        });
        let secret = scheme.map_or("", |scheme| self.value[scheme.len()..].trim());
        let decoded = STANDARD.decode(secret).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        if let Some((user, password)) = decoded.as_deref().and_then(|pair| pair.split_once(':')) {
            all.extend([format!("{user}:{password}"), password.to_owned()]);
        }
        all.push(secret.to_owned());
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_that_opens_something_is_looked_for() {
        assert_eq!(Credential::bearer("tops3cret").spellings(), ["Bearer tops3cret", "tops3cret"]);
        let basic = Credential::new("authorization", format!("basic {}", STANDARD.encode("me:pass:word")));
        let parts = basic.spellings();
        for part in [basic.value.as_str(), "me:pass:word", "pass:word", &STANDARD.encode("me:pass:word")] {
            assert!(parts.iter().any(|found| found == part), "{part}: {parts:?}");
        }
        assert_eq!(Credential::new("x-key", "tops3cret".to_owned()).spellings(), ["tops3cret", ""]);
    }
}
