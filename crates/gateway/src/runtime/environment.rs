//! The environment of a session's app: environment files and secret files with values of the vault, and the values that
//! people submitted. They are written when a sandbox starts and when something changes (`environment_refresh`), and no
//! snapshot copies them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proto::RepoId;
use sandbox::SandboxError;
use sandboxd::protocol::{Code, EnvFile, EnvMode, Exec, Place};
use sandboxd::{ClientError, Sandboxd};
use secrecy::{ExposeSecret as _, SecretString};
use store::{PlacedRepo, Scope, SessionRecord, StoreError};

use super::written_environment::WrittenEnvironment;
use super::written_files::WrittenFiles;
use super::{Runtime, env_files};
use crate::vault::{Injected, OpenSecret, VaultError};

/// The file with the values that people submitted for the session, as one JSON object. `/tmp` is part of no snapshot.
const SUBMITTED_VALUES_FILE: &str = "/tmp/.proliferate_env.json";
/// Replaces that file. The content comes from standard input, where no other process can see it.
const WRITE_SUBMITTED: &str = "umask 077 && cat > \"$0.new\" && mv \"$0.new\" \"$0\"";
const TIMEOUT_MS: u64 = 10_000;
const MAX_EXCLUDE: u64 = 1024 * 1024;

/// The reason why an environment could not be applied. Never contains a value.
#[derive(Debug, thiserror::Error)]
pub enum EnvironmentError {
    #[error("the list of environment files cannot be read: save it again")]
    EnvFiles,
    #[error("the sandbox's supervisor: {0}")]
    Supervisor(#[from] ClientError),
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    #[error(transparent)]
    Vault(#[from] VaultError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The values and files that a session's sandbox gets.
pub(crate) struct Environment {
    pub(crate) files: Vec<EnvFile>,
    variables: Vec<OpenSecret>,
    pub(crate) secret_files: Vec<SecretFile>,
    repos: Vec<(RepoId, PathBuf)>,
}

/// A file of the vault.
pub(crate) struct SecretFile {
    /// Inside the workspace.
    pub(crate) path: PathBuf,
    content: SecretString,
}

/// The result of applying an environment.
pub(crate) struct Applied {
    /// The paths of the files that were written, and how many variables or bytes each has.
    pub(crate) files: Vec<(String, usize)>,
    /// The required variables that have no value. While there are any, no environment file is created, but those that
    /// the sandbox has lose the values that were removed.
    pub(crate) missing: Vec<String>,
}

impl Environment {
    /// Writes a session's environment into its sandbox.
    pub(crate) async fn write(
        runtime: &Runtime,
        record: &SessionRecord,
        inside: &Sandboxd,
    ) -> Result<Applied, EnvironmentError> {
        let _one_at_a_time = runtime.sandboxes.environment_locks.lock(record.id).await;
        let environment = Self::of(runtime, record).await?;
        let written = WrittenEnvironment::new(runtime, record.id, &environment.content());
        environment.apply_recorded(runtime, record, inside, &written).await
    }

    /// Writes a session's environment into its running sandbox, unless that one was written last. What the agent has
    /// removed of it stays removed. Returns `None` if nothing was written.
    pub(super) async fn update(
        runtime: &Runtime,
        record: &SessionRecord,
        inside: &Sandboxd,
    ) -> Result<Option<Applied>, EnvironmentError> {
        let _one_at_a_time = runtime.sandboxes.environment_locks.lock(record.id).await;
        let environment = Self::of(runtime, record).await?;
        let written = WrittenEnvironment::new(runtime, record.id, &environment.content());
        if written.is_recorded(inside).await? {
            return Ok(None);
        }
        environment.apply_recorded(runtime, record, inside, &written).await.map(Some)
    }

    /// Removes all secrets from the files of a session's sandbox, for example before the agent copies its workspace
    /// elsewhere. Returns the paths of the files.
    pub(crate) async fn remove(
        runtime: &Runtime,
        record: &SessionRecord,
        inside: &Sandboxd,
    ) -> Result<Vec<String>, EnvironmentError> {
        let _one_at_a_time = runtime.sandboxes.environment_locks.lock(record.id).await;
        let environment = Self::of(runtime, record).await?;
        let scrubbed = environment.scrub(inside).await?;
        // Only what changes from now on is written again.
        WrittenEnvironment::new(runtime, record.id, &environment.content()).record(inside).await?;
        Ok(scrubbed)
    }

    /// Collects the environment of a session. Values whose name no file has stay encrypted.
    pub(crate) async fn of(runtime: &Runtime, record: &SessionRecord) -> Result<Self, EnvironmentError> {
        let (files, repos) = specification(runtime, record).await?;
        let named = |secret: &store::SealedSecret| {
            let keys = files.iter().flat_map(|file| &file.keys);
            matches!(secret.scope, Scope::Session(_)) || keys.into_iter().any(|key| key.key == secret.key)
        };
        let vault = &runtime.vault;
        let (org, session) = (record.org_id, record.id);
        let variables = vault.open_for_session(org, session, Injected::Variables, named).await?;
        let mut found = vault.open_for_session(org, session, Injected::Files, |_| true).await?;
        // The strongest owner's file is written last.
        found.sort_by_key(|secret| std::cmp::Reverse(rank(secret.scope, &[])));
        let mut secret_files = BTreeMap::new();
        for secret in found {
            let path = env_files::workspace_file(&secret.key).ok_or(EnvironmentError::EnvFiles)?;
            secret_files.insert(path, secret.value);
        }
        let secret_files =
            secret_files.into_iter().map(|(path, content)| SecretFile { path, content }).collect();
        Ok(Self { files, variables, secret_files, repos })
    }

    /// The value of a variable for files in this directory of the workspace, with its owner: the session's, or else the
    /// configuration's, the repository's or the organization's.
    fn value(&self, key: &str, directory: &Path) -> Option<&OpenSecret> {
        let here: Vec<RepoId> =
            self.repos.iter().filter(|(_, path)| path == directory).map(|(id, _)| *id).collect();
        let named = self.variables.iter().filter(|secret| secret.key == key);
        named.min_by_key(|secret| rank(secret.scope, &here))
    }

    /// The owner of a variable's value.
    pub(crate) fn source(&self, file: &EnvFile, key: &str) -> Option<Scope> {
        self.value(key, &directory(file)).map(|secret| secret.scope)
    }

    /// The required variables of all files that have no value, each once.
    pub(crate) fn missing(&self) -> Vec<String> {
        let mut missing: Vec<String> = Vec::new();
        for file in &self.files {
            let absent = |key: &str| self.value(key, &directory(file)).is_none();
            for key in file.keys.iter().filter(|key| key.required && absent(&key.key)) {
                if !missing.contains(&key.key) {
                    missing.push(key.key.clone());
                }
            }
        }
        missing
    }

    fn env_paths(&self) -> BTreeSet<String> {
        self.files.iter().filter(|file| has_values(file)).filter_map(path).collect()
    }

    fn secret_file_paths(&self) -> BTreeSet<String> {
        self.secret_files.iter().map(|file| file.path.to_string_lossy().into_owned()).collect()
    }

    /// Everything that a sandbox with this environment gets, with the values.
    fn content(&self) -> SecretString {
        let scope = |scope: Scope| format!("{scope:?}");
        let mut variables: Vec<_> = self.variables.iter().collect();
        variables.sort_by_key(|secret| (secret.key.clone(), scope(secret.scope)));
        let values =
            variables.iter().map(|secret| (&secret.key, scope(secret.scope), secret.value.expose_secret()));
        let secret_files = self.secret_files.iter().map(|file| (&file.path, file.content.expose_secret()));
        let (values, secret_files): (Vec<_>, Vec<_>) = (values.collect(), secret_files.collect());
        let repos = &self.repos;
        serde_json::json!([self.files, values, secret_files, repos]).to_string().into()
    }

    /// Writes all files, and records that the sandbox has this environment. While it is being written, the sandbox has none
    /// for certain.
    async fn apply_recorded(
        &self,
        runtime: &Runtime,
        record: &SessionRecord,
        inside: &Sandboxd,
        written: &WrittenEnvironment,
    ) -> Result<Applied, EnvironmentError> {
        WrittenEnvironment::forget(inside).await?;
        let applied = self.apply(runtime, record, inside).await?;
        written.record(inside).await?;
        Ok(applied)
    }

    /// Writes all files into a sandbox, and removes those that it has from earlier. Their paths are recorded first, so
    /// that no snapshot copies them, whenever the gateway stops.
    async fn apply(
        &self,
        runtime: &Runtime,
        record: &SessionRecord,
        inside: &Sandboxd,
    ) -> Result<Applied, EnvironmentError> {
        let (env_files, secret_files) = (self.env_paths(), self.secret_file_paths());
        let paths = env_files.union(&secret_files).cloned().collect();
        runtime.store.add_secret_paths(record.org_id, record.id, paths).await?;
        let present = WrittenFiles::of(inside).await?;
        present.keep_only(inside, &env_files, &secret_files).await?;
        let mut written = Vec::new();
        for file in &self.secret_files {
            let path = file.path.to_string_lossy().into_owned();
            let content = file.content.expose_secret().as_bytes().to_vec();
            let size = content.len();
            inside.write_file(Place::workspace(path.clone()), content, Some(0o600)).await?;
            self.exclude(inside, &file.path).await?;
            written.push((path, size));
        }
        if runtime.sandboxes.has_own_network() {
            self.write_submitted(inside).await?;
        }
        let missing = self.missing();
        for file in &self.files {
            if missing.is_empty() || path(file).is_some_and(|path| present.has_env_file(&path)) {
                let done = inside.env_apply(vec![optional(file)], self.values(file)).await?;
                written.extend(done.applied.into_iter().map(|file| (file.path, file.key_count)));
            }
        }
        Ok(Applied { files: written, missing })
    }

    fn values(&self, file: &EnvFile) -> BTreeMap<String, String> {
        let directory = directory(file);
        let value = |key: &str| Some(self.value(key, &directory)?.value.expose_secret().to_owned());
        file.keys.iter().filter_map(|key| Some((key.key.clone(), value(&key.key)?))).collect()
    }

    /// Writes the values that were submitted for the session where its agent reads them.
    async fn write_submitted(&self, inside: &Sandboxd) -> Result<(), EnvironmentError> {
        let submitted: BTreeMap<&str, &str> = self
            .variables
            .iter()
            .filter(|secret| matches!(secret.scope, Scope::Session(_)))
            .map(|secret| (secret.key.as_str(), secret.value.expose_secret()))
            .collect();
        if submitted.is_empty() {
            return Ok(());
        }
        let exec = Exec {
            argv: ["sh", "-c", WRITE_SUBMITTED, SUBMITTED_VALUES_FILE].map(str::to_owned).to_vec(),
            timeout_ms: Some(TIMEOUT_MS),
            ..Exec::default()
        };
        let content = serde_json::to_vec(&submitted).unwrap_or_default();
        inside.run(exec, content, 0).await?;
        Ok(())
    }

    /// Keeps a secret file out of commits of the repository that contains it.
    async fn exclude(&self, inside: &Sandboxd, path: &Path) -> Result<(), EnvironmentError> {
        let containing = self
            .repos
            .iter()
            .filter_map(|(_, directory)| Some((directory, path.strip_prefix(directory).ok()?)));
        let Some((directory, inner)) = containing.max_by_key(|(directory, _)| directory.components().count())
        else {
            return Ok(());
        };
        let place = Place::workspace(directory.join(".git/info/exclude").to_string_lossy());
        let mut lines = match inside.read_file(place.clone(), 0, MAX_EXCLUDE).await {
            Ok(found) => found.bytes,
            Err(ClientError::Refused(refusal)) if refusal.code == Code::NotFound => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        let line = format!("/{}", inner.display());
        if lines.split(|byte| *byte == b'\n').any(|known| known == line.as_bytes()) {
            return Ok(());
        }
        if !lines.is_empty() && !lines.ends_with(b"\n") {
            lines.push(b'\n');
        }
        lines.extend(format!("{line}\n").into_bytes());
        inside.write_file(place, lines, None).await?;
        Ok(())
    }

    async fn scrub(&self, inside: &Sandboxd) -> Result<Vec<String>, EnvironmentError> {
        let mut scrubbed = inside.env_scrub(self.files.clone()).await?.scrubbed;
        for file in &self.secret_files {
            let path = file.path.to_string_lossy().into_owned();
            match inside.remove(Place::workspace(path.clone()), false).await {
                Ok(()) => scrubbed.push(path),
                Err(ClientError::Refused(refusal)) if refusal.code == Code::NotFound => {}
                Err(error) => return Err(error.into()),
            }
        }
        // What the agent writes at these paths afterwards is its own.
        WrittenFiles::of(inside).await?.keep_only(inside, &self.env_paths(), &BTreeSet::new()).await?;
        Ok(scrubbed)
    }
}

/// How strong an owner's value is; the lowest number wins. Repositories in the same directory come before others.
fn rank(scope: Scope, here: &[RepoId]) -> u8 {
    match scope {
        Scope::Session(_) => 0,
        Scope::Configuration(_) => 1,
        Scope::Repo(id) if here.contains(&id) => 2,
        Scope::Repo(_) => 3,
        Scope::Org => 4,
    }
}

fn directory(file: &EnvFile) -> PathBuf {
    env_files::workspace_file(&file.workspace_path).unwrap_or_default()
}

/// Whether we write values into the file, or it is said to be secret. All else in a `plain` file is the agent's.
fn has_values(file: &EnvFile) -> bool {
    file.mode == EnvMode::Secret || !file.keys.is_empty()
}

/// The path of a file in the workspace, as it is recorded.
fn path(file: &EnvFile) -> Option<String> {
    env_files::place(file).map(|path| path.to_string_lossy().into_owned())
}

/// The file with variables that may all be missing: the supervisor would refuse the whole file.
fn optional(file: &EnvFile) -> EnvFile {
    let mut file = file.clone();
    file.keys.iter_mut().for_each(|key| key.required = false);
    file
}

/// The environment files of a session, and where its repositories are: the configuration's files, and those of each
/// repository in its directory. The configuration's file takes precedence over a repository's at the same place.
async fn specification(
    runtime: &Runtime,
    record: &SessionRecord,
) -> Result<(Vec<EnvFile>, Vec<(RepoId, PathBuf)>), EnvironmentError> {
    let mut files = match record.configuration_id {
        None => Vec::new(),
        Some(id) => {
            let found = runtime.store.configuration(record.org_id, id).await?;
            let stored = found.and_then(|configuration| configuration.env_files);
            env_files::parse(stored).ok_or(EnvironmentError::EnvFiles)?
        }
    };
    let mut repos = Vec::new();
    for PlacedRepo { repo, workspace_path } in runtime.store.session_repos(record.id).await? {
        repos.push((repo.id, env_files::workspace_file(&workspace_path).unwrap_or_default()));
        for file in env_files::parse(repo.env_files).ok_or(EnvironmentError::EnvFiles)? {
            let file = EnvFile { workspace_path: workspace_path.clone(), ..file };
            if files.iter().all(|known| env_files::place(known) != env_files::place(&file)) {
                files.push(file);
            }
        }
    }
    Ok((files, repos))
}

/// The paths of a session's workspace that no snapshot may copy: files with secrets that the sandbox gets now or ever got.
pub(super) async fn secret_paths(
    runtime: &Runtime,
    record: &SessionRecord,
) -> Result<Vec<PathBuf>, EnvironmentError> {
    let (files, _) = specification(runtime, record).await?;
    let recorded = runtime.store.secret_paths(record.id).await?;
    let recorded = recorded.iter().filter_map(|path| env_files::workspace_file(path));
    let files = files.iter().filter(|file| has_values(file));
    Ok(files.filter_map(env_files::place).chain(recorded).collect())
}
