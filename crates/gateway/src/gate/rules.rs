//! The policy in force: built in, or the files of a folder, read again when they change.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use policy::{Files, Policy, PolicyError, ToolFacts};

use crate::file_work::FileWork;
use crate::sources;

const LANES: &str = "lanes.yaml";
const ROLES: &str = "roles.yaml";
const TOOLS: &str = "tools.yaml";
/// A policy is read by people; one that is larger is something else.
const LARGEST: u64 = 1 << 20;

/// What decides.
pub(super) struct Rules {
    folder: Option<PathBuf>,
    policy: RwLock<Arc<Policy>>,
    files: FileWork,
    /// The last attempt to read the folder failed or hung.
    unreadable: AtomicBool,
}

/// There is no policy to decide by.
#[derive(Debug, thiserror::Error)]
pub enum RulesError {
    #[error("PROLIFERATE_POLICY_DIR: cannot read {}: {source}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("PROLIFERATE_POLICY_DIR: {first}")]
    Wrong { first: PolicyError, others: Vec<PolicyError> },
}

impl Rules {
    pub(super) async fn load(folder: Option<&Path>) -> Result<Self, RulesError> {
        let files = FileWork::default();
        let policy = read_in_time(&files, folder).await?;
        Ok(Self {
            folder: folder.map(Path::to_owned),
            policy: RwLock::new(Arc::new(policy)),
            files,
            unreadable: AtomicBool::new(false),
        })
    }

    pub(super) fn policy(&self) -> Arc<Policy> {
        self.policy.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the folder could be read the last time. One that holds mistakes could.
    pub(super) fn is_readable(&self) -> bool {
        !self.unreadable.load(Ordering::Acquire)
    }

    /// Reads the folder again. `Some`: it holds another policy than the one in force, which is not changed yet.
    pub(super) async fn candidate(&self) -> Result<Option<Policy>, RulesError> {
        let Some(folder) = &self.folder else { return Ok(None) };
        let read = read_in_time(&self.files, Some(folder)).await;
        self.unreadable.store(matches!(read, Err(RulesError::Unreadable { .. })), Ordering::Release);
        let candidate = read?;
        Ok((candidate.pins() != self.policy().pins()).then_some(candidate))
    }

    pub(super) fn replace(&self, policy: Policy) {
        *self.policy.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(policy);
    }
}

/// The same as [`read_policy`], for a folder that may hang.
async fn read_in_time(files: &FileWork, folder: Option<&Path>) -> Result<Policy, RulesError> {
    let Some(folder) = folder.map(Path::to_owned) else { return read_policy(None) };
    let path = folder.clone();
    let read = files.run(move || read_policy(Some(&folder))).await;
    read.map_err(|source| RulesError::Unreadable { path, source })?
}

/// The policy of a folder, or the one that is built in.
pub fn read_policy(folder: Option<&Path>) -> Result<Policy, RulesError> {
    let read = |name: &str| match folder {
        None => Ok(None),
        Some(folder) => read_file(&folder.join(name)),
    };
    if let Some(folder) = folder {
        // Its files may be missing; a folder that is misspelt must not become the built-in policy.
        fs::read_dir(folder).map_err(|source| RulesError::Unreadable { path: folder.to_owned(), source })?;
    }
    let (lanes, roles, tools) = (read(LANES)?, read(ROLES)?, read(TOOLS)?);
    let files = Files { lanes: lanes.as_deref(), roles: roles.as_deref(), tools: tools.as_deref() };
    Policy::check(files).map_err(|(first, others)| RulesError::Wrong { first, others })
}

/// What a policy makes of a tool, looked for exactly as for a call: what is replayed must be what would be executed.
pub fn known_tool(policy: &Policy, name: &str, operation: &str) -> Option<ToolFacts> {
    let tool = sources::find(policy, name, operation)?;
    Some(ToolFacts { risk: tool.risk(), writes: tool.writes().cloned(), mode_key: tool.mode_key() })
}

fn read_file(path: &Path) -> Result<Option<String>, RulesError> {
    let failed = |source| RulesError::Unreadable { path: path.to_owned(), source };
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
        Ok(found) if found.len() > LARGEST => {
            return Err(failed(io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than 1 MiB")));
        }
        Ok(_) => {}
    }
    fs::read_to_string(path).map(Some).map_err(failed)
}
