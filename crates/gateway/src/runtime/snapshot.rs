//! Snapshots: copies of a session's files that outlive its sandbox, without the files with secrets and without the secrets
//! that the agent's history has.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use gate::{Permit, ToolScope};
use proto::socket::SnapshotTarget;
use sandbox::{CleanCopy, LeftOut, SandboxError, SandboxId, SnapshotId};
use store::{NewSnapshot, Owner, SessionRecord, StoreError};

use super::Runtime;
use super::environment::{EnvironmentError, secret_paths};
use super::sandbox_handle::OWN_DIRECTORY;

/// The directory of the user's files in the home directory.
const WORKSPACE_DIR: &str = "workspace";
/// The directory of evidence in the workspace, unless the agent names another one.
pub(crate) const EVIDENCE_DIR: &str = ".proliferate/.verification";
/// Shorter values that are words stay in the agent's history.
const SHORTEST_MASKED_WORD: usize = 16;

/// The reason why a snapshot failed. Each is one sentence for the waiting users.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// Also reports which capability the provider lacks.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    #[error("{0}")]
    NotRunning(String),
    /// The gate does not allow it, or cannot record it.
    #[error("{0}")]
    Refused(String),
    #[error("files with secrets cannot be left out: {0}")]
    Secrets(String),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A completed snapshot.
#[derive(Clone, Debug)]
pub struct Saved {
    pub id: SnapshotId,
    /// Whether the session or its configuration starts from the snapshot from now on.
    pub target: SnapshotTarget,
}

/// Copies the files of a session's sandbox, and makes the target start from the copy.
pub(crate) async fn keep_files(
    permit: &Permit,
    runtime: &Runtime,
    owner: &Owner,
    record: &SessionRecord,
    sandbox: &SandboxId,
    target: SnapshotTarget,
) -> Result<SnapshotId, SnapshotError> {
    if record.org_id != permit.org() {
        return Err(SnapshotError::Refused("the call was permitted for another organization".to_owned()));
    }
    let without = left_out(runtime, record, target).await?;
    let clean = mask_history(runtime, record).await?;
    let id = runtime.sandboxes.provider.snapshot(sandbox, &without, clean).await?;
    let sandbox_provider = runtime.sandboxes.engine().to_owned();
    let (run_id, at) = (permit.run_id().to_owned(), runtime.clock.now());
    let new = NewSnapshot { id: id.to_string(), target, sandbox_provider, run_id, at };
    let unnamed = match runtime.store.record_snapshot(owner, new).await {
        Ok(unnamed) => unnamed,
        Err(error) => {
            drop_copy(runtime, id.as_str()).await;
            return Err(error.into());
        }
    };
    tracing::info!(session = %record.id, snapshot = %id, target = target.as_str(), "snapshot made");
    for old in unnamed {
        drop_copy(runtime, &old).await;
    }
    Ok(id)
}

/// What is not copied: the gateway's own directory, which contains the credential of this sandbox and is written again for
/// every other sandbox, and the file at every path that ever had an environment file or a secret file. They are excluded
/// instead of being removed during the copy: programs inside may need them, could write them again before the copy
/// ends, and a crash in between would lose them.
///
/// A configuration's snapshot starts sessions of other people, so it has neither the conversation of the session that made
/// it nor its evidence.
async fn left_out(
    runtime: &Runtime,
    record: &SessionRecord,
    target: SnapshotTarget,
) -> Result<LeftOut, SnapshotError> {
    let paths = secret_paths(runtime, record).await.map_err(|error| match error {
        EnvironmentError::Store(error) => SnapshotError::Store(error),
        other => SnapshotError::Secrets(other.to_string()),
    })?;
    let files = paths.into_iter().map(|path| Path::new(WORKSPACE_DIR).join(path)).collect();
    let mut directories = vec![PathBuf::from(OWN_DIRECTORY)];
    if target == SnapshotTarget::Configuration {
        directories.push(Path::new(WORKSPACE_DIR).join(EVIDENCE_DIR));
        directories.extend(runtime.settings.agent_type.history_directory().map(PathBuf::from));
    }
    Ok(LeftOut { directories, files })
}

/// Overwrites the known secrets in the copied history of the agent, which has whatever its tools printed. The agent needs
/// the history in the next sandbox, so it cannot be left out.
async fn mask_history(runtime: &Runtime, record: &SessionRecord) -> Result<CleanCopy, SnapshotError> {
    let scope = ToolScope { org: record.org_id, session: Some(record.id) };
    let redactor = runtime.vault.redactor(scope).await;
    let redactor = redactor.map_err(|error| SnapshotError::Secrets(error.to_string()))?;
    let (directory, session) = (runtime.settings.agent_type.history_directory(), record.id);
    Ok(Arc::new(move |copy| {
        let Some(directory) = directory.filter(|_| !redactor.is_empty()) else { return Ok(()) };
        let find = |bytes: &[u8]| {
            let mut found = redactor.find_known(bytes);
            found.retain(|range| !is_word(&bytes[range.clone()]));
            found
        };
        let removed = files::mask(copy, Path::new(directory), &find)?;
        if removed > 0 {
            tracing::warn!(%session, removed, "files of the agent's history are too large to search and were not copied");
        }
        Ok(())
    }))
}

/// Whether a value is a word, such as `session`: the history's own tables and fields have such names, and would be gone.
fn is_word(value: &[u8]) -> bool {
    value.len() < SHORTEST_MASKED_WORD && value.iter().all(|byte| byte.is_ascii_alphabetic() || *byte == b'_')
}

/// Removes the snapshots of deleted sessions that nothing starts from.
pub(super) async fn drop_orphans(runtime: &Runtime) -> Result<(), StoreError> {
    for id in runtime.store.forget_orphaned_snapshots(runtime.sandboxes.engine()).await? {
        drop_copy(runtime, &id).await;
    }
    Ok(())
}

async fn drop_copy(runtime: &Runtime, id: &str) {
    let removed = match SnapshotId::new(id) {
        Ok(id) => runtime.sandboxes.provider.remove_snapshot(&id).await,
        Err(error) => Err(error),
    };
    if let Err(error) = removed {
        tracing::error!(snapshot = %id, %error, "cannot delete a snapshot that is not recorded");
    }
}
