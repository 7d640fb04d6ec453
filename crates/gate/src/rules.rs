//! The policy in force: the built-in one, or the files of a directory, which are read again when they change.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use files::FileWork;
use parking_lot::RwLock;
use policy::{Files, Policy, PolicyError};

const LANES_FILE: &str = "lanes.yaml";
const ROLES_FILE: &str = "roles.yaml";
const TOOLS_FILE: &str = "tools.yaml";
/// The maximum size of a policy file. People write and read a policy, so a larger file is something else.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The policy, and the directory that it is loaded from.
pub(super) struct Rules {
    directory: Option<PathBuf>,
    policy: RwLock<Arc<Policy>>,
    files: FileWork,
    /// Whether the last attempt to read the directory failed or hung.
    unreadable: AtomicBool,
}

/// The reason why there is no policy.
#[derive(Debug, thiserror::Error)]
pub enum RulesError {
    #[error("PROLIFERATE_POLICY_DIR: cannot read {}: {source}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("PROLIFERATE_POLICY_DIR: {first}")]
    Wrong { first: PolicyError, others: Vec<PolicyError> },
}

impl Rules {
    pub(super) async fn load(directory: Option<&Path>) -> Result<Self, RulesError> {
        let files = FileWork::default();
        let policy = read_in_time(&files, directory).await?;
        Ok(Self {
            directory: directory.map(Path::to_owned),
            policy: RwLock::new(Arc::new(policy)),
            files,
            unreadable: AtomicBool::new(false),
        })
    }

    pub(super) fn policy(&self) -> Arc<Policy> {
        self.policy.read().clone()
    }

    /// Whether the directory could be read the last time. A directory with an invalid policy counts as readable.
    pub(super) fn is_readable(&self) -> bool {
        !self.unreadable.load(Ordering::Acquire)
    }

    /// Reads the directory again. `Some` if it has a different policy than the one in force, which this does not
    /// replace yet.
    pub(super) async fn candidate(&self) -> Result<Option<Policy>, RulesError> {
        let Some(directory) = &self.directory else { return Ok(None) };
        let read = read_in_time(&self.files, Some(directory)).await;
        self.unreadable.store(matches!(read, Err(RulesError::Unreadable { .. })), Ordering::Release);
        let candidate = read?;
        Ok((candidate.pins() != self.policy().pins()).then_some(candidate))
    }

    pub(super) fn replace(&self, policy: Policy) {
        *self.policy.write() = Arc::new(policy);
    }
}

/// Like [`read_policy`], with a time limit for a directory that may hang.
async fn read_in_time(files: &FileWork, directory: Option<&Path>) -> Result<Policy, RulesError> {
    let Some(directory) = directory.map(Path::to_owned) else { return read_policy(None) };
    let path = directory.clone();
    let read = files.run(move || read_policy(Some(&directory))).await;
    read.map_err(|source| RulesError::Unreadable { path, source })?
}

/// Reads the policy of a directory, or the built-in one.
pub fn read_policy(directory: Option<&Path>) -> Result<Policy, RulesError> {
    let read = |name: &str| match directory {
        None => Ok(None),
        Some(directory) => read_file(&directory.join(name)),
    };
    if let Some(directory) = directory {
        // Single files may be missing, but a misspelled directory must not result in the built-in policy.
        fs::read_dir(directory)
            .map_err(|source| RulesError::Unreadable { path: directory.to_owned(), source })?;
    }
    let (lanes, roles, tools) = (read(LANES_FILE)?, read(ROLES_FILE)?, read(TOOLS_FILE)?);
    let files = Files { lanes: lanes.as_deref(), roles: roles.as_deref(), tools: tools.as_deref() };
    Policy::check(files).map_err(|(first, others)| RulesError::Wrong { first, others })
}

fn read_file(path: &Path) -> Result<Option<String>, RulesError> {
    let failed = |source| RulesError::Unreadable { path: path.to_owned(), source };
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
        Ok(found) if found.len() > MAX_FILE_BYTES => {
            return Err(failed(io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than 1 MiB")));
        }
        Ok(_) => {}
    }
    fs::read_to_string(path).map(Some).map_err(failed)
}
