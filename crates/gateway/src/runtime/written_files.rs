//! The files of the environment that a sandbox has got so far. A file that somebody removed must leave a running sandbox
//! too, so the sandbox itself keeps a list of what was written into it.

use std::collections::BTreeSet;

use sandboxd::protocol::{Code, ENV_RECORD, EnvFile, EnvFormat, EnvMode, Place};
use sandboxd::{ClientError, Sandboxd};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::env_files::workspace_file;

/// The file in the home directory with the paths of the secret files that were written, as a JSON list. No snapshot has
/// its directory.
const SECRET_FILES: &str = ".proliferate/secret-files.json";
const MAX_RECORD: u64 = 1024 * 1024;
/// How many paths of a list count. The agent can write anything into it.
const MAX_PATHS: usize = 1_000;

/// The paths of written files, relative to the workspace.
pub(super) struct WrittenFiles {
    env_files: BTreeSet<String>,
    secret_files: BTreeSet<String>,
}

impl WrittenFiles {
    pub(super) async fn of(inside: &Sandboxd) -> Result<Self, ClientError> {
        let env_files: Map<String, Value> = read(inside, ENV_RECORD).await?;
        let secret_files: Vec<String> = read(inside, SECRET_FILES).await?;
        Ok(Self {
            env_files: valid(env_files.into_iter().map(|(path, _)| path)),
            secret_files: valid(secret_files),
        })
    }

    pub(super) fn has_env_file(&self, path: &str) -> bool {
        self.env_files.contains(path)
    }

    /// Removes from the sandbox what is not among these files any more, and records the secret files that are about to
    /// be written. What the agent added to an environment file stays. This also removes the file with submitted values if
    /// an environment file is gone.
    pub(super) async fn keep_only(
        &self,
        inside: &Sandboxd,
        env_files: &BTreeSet<String>,
        secret_files: &BTreeSet<String>,
    ) -> Result<(), ClientError> {
        let mut recorded = secret_files.clone();
        for path in self.secret_files.difference(secret_files) {
            let removed = inside.remove(Place::workspace(path.as_str()), false).await;
            // If the removal fails, the next pass repeats it.
            if !is_gone(removed)? {
                recorded.insert(path.clone());
            }
        }
        if recorded != self.secret_files {
            let content = serde_json::to_vec(&recorded).unwrap_or_default();
            inside.write_file(Place::home(SECRET_FILES), content, Some(0o600)).await?;
        }
        let kept = |path: &&String| env_files.contains(*path) || secret_files.contains(*path);
        for path in self.env_files.iter().filter(|path| !kept(path)) {
            is_gone(inside.env_scrub(vec![without_variables(path)]).await)?;
        }
        Ok(())
    }
}

/// A specification of which scrub removes all variables that were written.
fn without_variables(path: &str) -> EnvFile {
    EnvFile {
        workspace_path: ".".to_owned(),
        path: path.to_owned(),
        format: EnvFormat::Dotenv,
        mode: EnvMode::Secret,
        keys: Vec::new(),
    }
}

/// Whether a removal succeeded, or there was nothing to remove. The agent can put something at the path that is no file
/// of ours, which must not keep the others from being written.
fn is_gone<T>(removed: Result<T, ClientError>) -> Result<bool, ClientError> {
    match removed {
        Ok(_) => Ok(true),
        Err(ClientError::Refused(refusal)) => {
            let gone = refusal.code == Code::NotFound;
            if !gone {
                tracing::info!(code = ?refusal.code, "a removed file of the environment is still in its sandbox");
            }
            Ok(gone)
        }
        Err(error) => Err(error),
    }
}

/// Reads a record. One that is missing or not valid is empty.
async fn read<T: DeserializeOwned + Default>(inside: &Sandboxd, record: &str) -> Result<T, ClientError> {
    match inside.read_file(Place::home(record), 0, MAX_RECORD).await {
        Ok(found) => Ok(serde_json::from_slice(&found.bytes).unwrap_or_default()),
        Err(ClientError::Refused(_)) => Ok(T::default()),
        Err(error) => Err(error),
    }
}

fn valid(paths: impl IntoIterator<Item = String>) -> BTreeSet<String> {
    let inside = |path: &String| workspace_file(path).is_some_and(|plain| plain.as_os_str() == path.as_str());
    paths.into_iter().take(MAX_PATHS).filter(inside).collect()
}
