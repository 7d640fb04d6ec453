//! The repositories of a session where its agent finds them: cloned, or brought up to date where a copy brought them.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use sandboxd::protocol::{Code, Exec, ExitReason, Place};
use sandboxd::{ClientError, Sandboxd};
use store::{PlacedRepo, Repo};

use super::git::is_branch;
use super::launch::LaunchError;
use crate::app::App;

/// How long a clone may take, and how long bringing one up to date.
const CLONE_MS: u64 = 10 * 60 * 1000;
const PULL_MS: u64 = 30_000;
const QUICK_MS: u64 = 10_000;
const OUTPUT: usize = 16 * 1024;
const REMOTE: &str = "origin/";

/// Repositories that are not there yet, and those that a snapshot or an earlier sandbox has brought.
pub(super) async fn sorted<'a>(
    inside: &Sandboxd,
    repos: &'a [PlacedRepo],
) -> Result<(Vec<&'a PlacedRepo>, Vec<&'a PlacedRepo>), LaunchError> {
    let (mut missing, mut there) = (Vec::new(), Vec::new());
    for placed in repos {
        match inside.stat(Place::workspace(format!("{}/.git", placed.workspace_path))).await {
            Ok(_) => there.push(placed),
            Err(ClientError::Refused(refusal)) if refusal.code == Code::NotFound => missing.push(placed),
            Err(error) => return Err(error.into()),
        }
    }
    Ok((missing, there))
}

pub(super) async fn clone(app: &App, inside: &Sandboxd, repos: &[&PlacedRepo]) -> Result<(), LaunchError> {
    for PlacedRepo { repo, workspace_path } in repos {
        let Some(url) = &repo.url else { continue };
        let mut arguments = vec!["clone", "--depth", "50"];
        if repo.branch_given {
            arguments.extend(["--branch", &repo.default_branch]);
        }
        arguments.extend(["--", url, workspace_path]);
        let failed = |reason| LaunchError::Clone { name: repo.name.clone(), reason };
        git(inside, "", &arguments, CLONE_MS).await?.map_err(failed)?;
        note_default_branch(app, inside, repo, workspace_path).await?;
    }
    Ok(())
}

/// Keeps what the forge calls its default branch: pull requests go there, and people see it.
async fn note_default_branch(
    app: &App,
    inside: &Sandboxd,
    repo: &Repo,
    path: &str,
) -> Result<(), LaunchError> {
    if repo.branch_given {
        return Ok(());
    }
    let head = git(inside, path, &["symbolic-ref", "--short", "refs/remotes/origin/HEAD"], QUICK_MS).await?;
    // An empty repository has none yet.
    let Ok(said) = head else { return Ok(()) };
    let branch = said.trim().strip_prefix(REMOTE).filter(|branch| is_branch(branch));
    if let Some(branch) = branch.filter(|branch| *branch != repo.default_branch) {
        app.store.found_branch(repo.org_id, repo.id, branch).await?;
    }
    Ok(())
}

/// Brings repositories up to date that came with a copy of somebody else's work. What does not go by itself is left as
/// it is: an agent can work with older files.
pub(super) async fn update(inside: &Sandboxd, repos: &[&PlacedRepo]) {
    let pulls = repos.iter().map(|placed| async {
        let pulled = git(inside, &placed.workspace_path, &["pull", "--ff-only"], PULL_MS).await;
        let reason = match pulled {
            Ok(Ok(_)) => return,
            Ok(Err(reason)) => reason,
            Err(error) => error.to_string(),
        };
        tracing::info!(repo = %placed.repo.id, reason, "a repository of a snapshot stays as old as it is");
    });
    join_all(pulls).await;
}

/// What git says, or why it did not do it.
async fn git(
    inside: &Sandboxd,
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
    let ran = inside.run(exec, "", OUTPUT).await?;
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    if ran.done.ended == ExitReason::Exit(0) {
        return Ok(Ok(said));
    }
    let reason = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no reason was given");
    Ok(Err(reason.chars().filter(|c| !c.is_control()).take(300).collect()))
}
