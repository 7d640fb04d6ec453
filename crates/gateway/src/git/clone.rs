//! Checks out a session's repositories in its sandbox: clones them, or updates those that a snapshot brought.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, join_all};
use proto::SessionId;
use sandboxd::protocol::{Code, Exec, ExitReason, Place};
use sandboxd::{ClientError, Sandboxd};
use secrecy::SecretString;
use store::{PlacedRepo, Repo, SessionRecord};

use super::workspace::{WorkspaceRepo, is_branch_name};
use super::{GitService, config};
use crate::runtime::{Checkout, ConnectedSandbox, GIT_CONFIG, GIT_IDENTITY, LaunchError, Repositories};

const CLONE_TIMEOUT_MS: u64 = 10 * 60 * 1000;
const PULL_TIMEOUT_MS: u64 = 30_000;
const QUICK_TIMEOUT_MS: u64 = 10_000;
const MAX_OUTPUT: usize = 16 * 1024;
const REMOTE_PREFIX: &str = "origin/";

impl Repositories for GitService {
    fn check_out(self: Arc<Self>, checkout: Checkout<'_>) -> BoxFuture<'_, Result<(), LaunchError>> {
        async move {
            let Checkout { sandbox, session, token, is_copy, stage } = checkout;
            let repos = self.store.session_repos(session.id).await?;
            self.configure(&sandbox, session, token, &repos).await?;
            let (missing, present) = find_clones(&sandbox.supervisor, &repos).await?;
            if is_copy && !present.is_empty() {
                stage("Updating").await;
                self.update_all(&sandbox.supervisor, session.id, &present).await;
            }
            if !missing.is_empty() {
                stage("Cloning").await;
                self.clone_all(&sandbox.supervisor, session.id, &missing).await?;
            }
            if let (None, Some(first)) = (&session.branch_name, repos.first()) {
                self.record_first_branch(sandbox, &first.workspace_path).await?;
            }
            Ok(())
        }
        .boxed()
    }
}

impl GitService {
    /// Writes git's configuration into the sandbox's home.
    async fn configure(
        &self,
        sandbox: &ConnectedSandbox,
        session: &SessionRecord,
        token: &SecretString,
        repos: &[PlacedRepo],
    ) -> Result<(), LaunchError> {
        let creator = match session.created_by {
            Some(user) => self.store.member(session.org_id, user).await?,
            None => None,
        };
        let files = [
            (GIT_CONFIG, config::gateway_routes(&sandbox.gateway_url, token, repos)),
            (GIT_IDENTITY, config::author(creator.as_ref())),
        ];
        for (path, text) in files {
            sandbox.supervisor.write_file(Place::home(path), text, Some(0o600)).await?;
        }
        Ok(())
    }

    async fn clone_all(
        self: &Arc<Self>,
        supervisor: &Sandboxd,
        session: SessionId,
        repos: &[&PlacedRepo],
    ) -> Result<(), LaunchError> {
        for PlacedRepo { repo, workspace_path } in repos {
            let Some(url) = &repo.url else { continue };
            let mut arguments = vec!["clone", "--depth", "50"];
            if repo.branch_given {
                arguments.extend(["--branch", &repo.default_branch]);
            }
            arguments.extend(["--", url, workspace_path]);
            let failed = |reason| LaunchError::Clone { name: repo.name.clone(), reason };
            let read = self.read_as_system(session, repo).await;
            let _read = read.map_err(|error| failed(error.to_string()))?;
            git(supervisor, "", &arguments, CLONE_TIMEOUT_MS).await?.map_err(failed)?;
            self.record_default_branch(supervisor, repo, workspace_path).await?;
        }
        Ok(())
    }

    /// Fast-forwards repositories that came with a snapshot of another session. If that fails they stay as they are: an
    /// agent can work with older files.
    async fn update_all(self: &Arc<Self>, supervisor: &Sandboxd, session: SessionId, repos: &[&PlacedRepo]) {
        let pulls = repos.iter().map(|placed| async {
            if let Err(reason) = self.update(supervisor, session, placed).await {
                tracing::info!(repo = %placed.repo.id, reason, "a repository of a snapshot was not updated");
            }
        });
        join_all(pulls).await;
    }

    async fn update(
        self: &Arc<Self>,
        supervisor: &Sandboxd,
        session: SessionId,
        placed: &PlacedRepo,
    ) -> Result<(), String> {
        let read = self.read_as_system(session, &placed.repo).await;
        let _read = read.map_err(|error| error.to_string())?;
        let pulled = git(supervisor, &placed.workspace_path, &["pull", "--ff-only"], PULL_TIMEOUT_MS).await;
        pulled.map_err(|error| error.to_string())?.map(drop)
    }

    /// Stores the forge's default branch, unless a member chose one: people see it, and it is the base of pull
    /// requests.
    async fn record_default_branch(
        &self,
        supervisor: &Sandboxd,
        repo: &Repo,
        path: &str,
    ) -> Result<(), LaunchError> {
        if repo.branch_given {
            return Ok(());
        }
        let arguments = ["symbolic-ref", "--short", "refs/remotes/origin/HEAD"];
        // An empty repository has no default branch yet.
        let Ok(head) = git(supervisor, path, &arguments, QUICK_TIMEOUT_MS).await? else { return Ok(()) };
        let branch = head.trim().strip_prefix(REMOTE_PREFIX).filter(|branch| is_branch_name(branch));
        if let Some(branch) = branch.filter(|branch| *branch != repo.default_branch) {
            self.store.found_branch(repo.org_id, repo.id, branch).await?;
        }
        Ok(())
    }

    /// Stores the branch and commit that a session starts from. A repository that git cannot read is left to the agent.
    async fn record_first_branch(&self, sandbox: ConnectedSandbox, path: &str) -> Result<(), LaunchError> {
        let owner = sandbox.owner;
        let Some(repo) = WorkspaceRepo::at(sandbox, Some(path)) else { return Ok(()) };
        match repo.branch_and_commit().await {
            Ok(Some((branch, commit))) => {
                self.store.set_branch(&owner, &branch, commit.as_deref()).await?;
            }
            Ok(None) => {}
            Err(error) => {
                tracing::info!(session = %owner.session(), %error, "the first branch of a session is unknown");
            }
        }
        Ok(())
    }
}

/// The repositories that are missing in the sandbox, and those that a snapshot or an earlier sandbox brought.
async fn find_clones<'a>(
    supervisor: &Sandboxd,
    repos: &'a [PlacedRepo],
) -> Result<(Vec<&'a PlacedRepo>, Vec<&'a PlacedRepo>), LaunchError> {
    let (mut missing, mut present) = (Vec::new(), Vec::new());
    for placed in repos {
        match supervisor.stat(Place::workspace(format!("{}/.git", placed.workspace_path))).await {
            Ok(_) => present.push(placed),
            Err(ClientError::Refused(refusal)) if refusal.code == Code::NotFound => missing.push(placed),
            Err(error) => return Err(error.into()),
        }
    }
    Ok((missing, present))
}

/// Runs git. Returns its output; if git fails, the error is the last line of the output.
async fn git(
    supervisor: &Sandboxd,
    path: &str,
    arguments: &[&str],
    timeout_ms: u64,
) -> Result<Result<String, String>, ClientError> {
    let exec = Exec {
        argv: [&["git"], arguments].concat().into_iter().map(str::to_owned).collect(),
        cwd: Some(Place::workspace(path)),
        timeout_ms: Some(timeout_ms),
        env: BTreeMap::from([("GIT_TERMINAL_PROMPT".to_owned(), "0".to_owned())]),
        merge: true,
        ..Exec::default()
    };
    let ran = supervisor.run(exec, "", MAX_OUTPUT).await?;
    let output = String::from_utf8_lossy(&ran.stdout).into_owned();
    if ran.done.ended == ExitReason::Exit(0) {
        return Ok(Ok(output));
    }
    let reason = output.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("git printed no reason");
    Ok(Err(reason.chars().filter(|c| !c.is_control()).take(300).collect()))
}
