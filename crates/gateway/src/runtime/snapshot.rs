//! A copy of a session's files that outlives its sandbox, without the values that were submitted for the app alone.

use std::path::{Component, Path, PathBuf};

use proto::socket::SnapshotTarget;
use sandbox::{SandboxError, SandboxId, SnapshotId};
use sandboxd::protocol::{EnvFile, EnvMode};
use store::{NewSnapshot, Owner, SessionRecord, StoreError};

use super::Runtime;
use super::room::OURS;

/// Where the user's files are in the home.
const WORKSPACE: &str = "workspace";

/// Why there is no snapshot. Each is one sentence for the people who wait.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// Also says which capability the provider lacks.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    #[error("{0}")]
    NotRunning(String),
    #[error("the list of environment files cannot be read: save it again")]
    EnvFiles,
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A snapshot that was made.
#[derive(Clone, Debug)]
pub struct Saved {
    pub id: SnapshotId,
    /// What starts from it from now on.
    pub target: SnapshotTarget,
}

/// Copies the files of a session's sandbox, and lets the target start from the copy.
pub(crate) async fn keep_files(
    runtime: &Runtime,
    owner: &Owner,
    record: &SessionRecord,
    sandbox: &SandboxId,
    target: SnapshotTarget,
) -> Result<SnapshotId, SnapshotError> {
    let without = left_out(runtime, record).await?;
    let id = runtime.sandboxes.provider.snapshot(sandbox, &without).await?;
    let sandbox_provider = runtime.sandboxes.engine().to_owned();
    let new = NewSnapshot { id: id.to_string(), target, sandbox_provider, at: runtime.clock.now() };
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

/// What is not copied: our own files, which hold the credential of this session's sandbox and are written anew for every
/// other, and the files that hold submitted values. They are left out and not taken away meanwhile, so no program inside
/// misses them, none can put them back too early, and a crash loses none.
async fn left_out(runtime: &Runtime, record: &SessionRecord) -> Result<Vec<PathBuf>, SnapshotError> {
    let mut out = vec![PathBuf::from(OURS)];
    let Some(configuration) = record.configuration_id else { return Ok(out) };
    let configuration = runtime.store.configuration(record.org_id, configuration).await?;
    let Some(files) = configuration.and_then(|found| found.env_files) else { return Ok(out) };
    let files: Vec<EnvFile> = serde_json::from_value(files).map_err(|_| SnapshotError::EnvFiles)?;
    for file in files.iter().filter(|file| file.mode == EnvMode::Secret) {
        let path = Path::new(&file.workspace_path).join(&file.path);
        out.push(Path::new(WORKSPACE).join(plain(&path).ok_or(SnapshotError::EnvFiles)?));
    }
    Ok(out)
}

/// A path as the names that it is made of. `None` for one that leaves its folder, or is none.
fn plain(path: &Path) -> Option<PathBuf> {
    let names: Option<PathBuf> = path
        .components()
        .filter(|part| *part != Component::CurDir)
        .map(|part| matches!(part, Component::Normal(_)).then_some(part))
        .collect();
    names.filter(|names| !names.as_os_str().is_empty())
}

/// Removes the copies of sessions that were deleted, from which nothing starts.
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
        tracing::error!(snapshot = %id, %error, "a snapshot that nobody knows of is left behind");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_left_out_by_its_names() {
        let found = |text: &str| plain(Path::new(text)).map(|path| path.display().to_string());
        assert_eq!(found("./app/./.env").as_deref(), Some("app/.env"));
        assert_eq!(found("app//.env").as_deref(), Some("app/.env"));
        for wrong in ["", ".", "../x", "app/../../x", "/etc/x"] {
            assert_eq!(found(wrong), None, "{wrong}");
        }
    }
}
