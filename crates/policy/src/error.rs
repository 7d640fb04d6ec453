//! Errors in policy files, with their line numbers.

/// The first mistake in a policy file. A file with a mistake is rejected completely.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {message}")]
pub struct PolicyError {
    pub file: &'static str,
    /// The line number, from 1.
    pub line: usize,
    pub message: String,
}

/// A mistake and its line; the caller adds the name of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mistake {
    pub(crate) line: usize,
    pub(crate) message: String,
}

impl Mistake {
    pub(crate) fn new(line: usize, message: impl Into<String>) -> Self {
        Self { line, message: message.into() }
    }

    pub(crate) fn in_file(self, file: &'static str) -> PolicyError {
        PolicyError { file, line: self.line, message: self.message }
    }
}
