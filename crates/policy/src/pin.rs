//! Version pins of policy files: the git blob id of the content, and its SHA-256.

use serde::{Deserialize, Serialize};
use sha1::Sha1;
use sha2::{Digest, Sha256};

/// The version of one policy file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pin {
    /// The output of `git hash-object`.
    pub git_blob: String,
    pub sha256: String,
}

/// The versions under which decisions are made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pins {
    pub lanes: Pin,
    pub roles: Pin,
    pub tools: Pin,
}

/// `policy_versions` in runs and requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Versions {
    pub lanes: String,
    pub roles: String,
}

impl Pin {
    pub fn from_content(content: &str) -> Self {
        let mut git = Sha1::new();
        git.update(format!("blob {}\0", content.len()));
        git.update(content);
        Self { git_blob: hex::encode(git.finalize()), sha256: hex::encode(Sha256::digest(content)) }
    }

    /// Whether `version` identifies this content. Abbreviated ids are not accepted.
    pub fn matches(&self, version: &str) -> bool {
        version == self.git_blob || version == self.sha256
    }
}

impl Pins {
    /// The versions that are recorded with every run, call and event.
    pub fn versions(&self) -> Versions {
        Versions { lanes: self.lanes.git_blob.clone(), roles: self.roles.git_blob.clone() }
    }

    pub fn match_versions(&self, versions: &Versions) -> bool {
        self.lanes.matches(&versions.lanes) && self.roles.matches(&versions.roles)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_git_hash_object() {
        assert_eq!(Pin::from_content("").git_blob, "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
        assert_eq!(Pin::from_content("hello\n").git_blob, "ce013625030ba8dba906f756967f9e9ca394464a");
        let pin = Pin::from_content("hello\n");
        assert!(pin.matches(&pin.git_blob) && pin.matches(&pin.sha256));
        assert!(!pin.matches(&pin.git_blob[..12]) && !pin.matches(""));
    }
}
