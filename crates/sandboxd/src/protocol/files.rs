//! Files, directories, and the environment files of projects.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A path and what it is relative to.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    pub root: Root,
    /// Empty or `.` for the root itself.
    pub path: String,
}

impl Place {
    pub fn workspace(path: impl Into<String>) -> Self {
        Self { root: Root::Workspace, path: path.into() }
    }

    pub fn home(path: impl Into<String>) -> Self {
        Self { root: Root::Home, path: path.into() }
    }
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Root {
    Workspace,
    Home,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    File,
    Directory,
    Symlink,
    /// A fifo, a device or a socket.
    Other,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Stat {
    pub kind: Kind,
    pub size: u64,
    pub mode: u32,
    /// Milliseconds since 1970.
    pub modified: i64,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// Bytes that are not UTF-8 are replaced, and then no request can name the entry.
    pub name: String,
    #[serde(flatten)]
    pub stat: Stat,
}

/// The entries of a directory, sorted by name.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Listing {
    pub entries: Vec<Entry>,
    /// There are more entries than were requested.
    #[serde(default)]
    pub truncated: bool,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct ReadDone {
    /// How many bytes were sent.
    pub sent: u64,
    /// The size of the entire file when it was opened.
    pub size: u64,
    pub mode: u32,
}

/// The body of env apply and env scrub. The values are secrets: they exist only here and in the written file.
#[derive(Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct EnvBody {
    pub spec: Vec<EnvFile>,
    #[serde(default)]
    pub values: BTreeMap<String, String>,
}

/// One file to write or to scrub. The field names are those of the stored configurations.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnvFile {
    #[serde(default = "dot")]
    pub workspace_path: String,
    pub path: String,
    #[serde(default)]
    pub format: EnvFormat,
    #[serde(default)]
    pub mode: EnvMode,
    pub keys: Vec<EnvKey>,
}

fn dot() -> String {
    ".".to_owned()
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EnvFormat {
    #[default]
    Dotenv,
}

/// Scrub removes only the variables of secret files. No snapshot copies either kind, because both have values of secrets.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EnvMode {
    #[default]
    Secret,
    #[serde(other)]
    Plain,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct EnvKey {
    pub key: String,
    #[serde(default)]
    pub required: bool,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct EnvApplyResult {
    pub applied: Vec<WrittenEnvFile>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WrittenEnvFile {
    pub path: String,
    pub key_count: usize,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct EnvScrubResult {
    pub scrubbed: Vec<String>,
}
