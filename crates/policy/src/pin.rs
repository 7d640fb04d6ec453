//! The version of a policy file: the id that git gives its content, with its SHA-256 beside it.

use serde::{Deserialize, Serialize};
use sha1::Sha1;
use sha2::{Digest, Sha256};

/// One file's version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pin {
    /// What `git hash-object` prints.
    pub git_blob: String,
    pub sha256: String,
}

/// The versions that decisions are made under.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pins {
    pub lanes: Pin,
    pub roles: Pin,
    pub tools: Pin,
}

/// `policy_versions` as runs and requests carry them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Versions {
    pub lanes: String,
    pub roles: String,
}

impl Pin {
    pub fn of(content: &str) -> Self {
        let mut git = Sha1::new();
        git.update(format!("blob {}\0", content.len()));
        git.update(content);
        Self { git_blob: hex::encode(git.finalize()), sha256: hex::encode(Sha256::digest(content)) }
    }

    /// Whether `version` names this content; a shortened id names nothing.
    pub fn is(&self, version: &str) -> bool {
        version == self.git_blob || version == self.sha256
    }
}

impl Pins {
    /// What is recorded on every run, call and event.
    pub fn versions(&self) -> Versions {
        Versions { lanes: self.lanes.git_blob.clone(), roles: self.roles.git_blob.clone() }
    }

    pub fn are(&self, versions: &Versions) -> bool {
        self.lanes.is(&versions.lanes) && self.roles.is(&versions.roles)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_is_the_one_that_git_gives() {
        assert_eq!(Pin::of("").git_blob, "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
        assert_eq!(Pin::of("hello\n").git_blob, "ce013625030ba8dba906f756967f9e9ca394464a");
        let pin = Pin::of("hello\n");
        assert!(pin.is(&pin.git_blob) && pin.is(&pin.sha256));
        assert!(!pin.is(&pin.git_blob[..12]) && !pin.is(""));
    }
}
