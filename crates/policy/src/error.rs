//! What is wrong with a policy file, and on which line.

/// The first mistake in a policy file. Nothing of a file with a mistake is used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {message}")]
pub struct PolicyError {
    pub file: &'static str,
    /// Counts from 1.
    pub line: usize,
    pub message: String,
}

/// A mistake on a line; the caller adds the file.
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
