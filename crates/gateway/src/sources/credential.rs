//! The credential for a tool.

use ledger::{Redactor, RedactorError, credential_parts};
use reqwest::header::AUTHORIZATION;

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

    /// Removes the credential from an answer: some tools echo what they were sent.
    pub(super) fn redactor(&self) -> Result<Redactor, RedactorError> {
        Redactor::new(credential_parts(&self.value))
    }
}
