//! A pull request of what is checked out: pushed from inside, made by us at the forge.

use proto::socket::{GitAction, GitCode, GitResult};
use store::{Owner, Repo, StoreError, Telemetry};

use super::{Git, Outcome, done, failed, is_branch};
use crate::app::AppState;
use crate::runtime::forge::{ForgeError, NewPull, PullError, one_form, open_pull, place};

const ACTION: GitAction = GitAction::CreatePr;
/// The longest title and text that GitHub takes.
const MAX_TITLE: usize = 256;
const MAX_BODY: usize = 65_536;

/// What the client wants.
pub(crate) struct Pull {
    pub(crate) title: String,
    pub(crate) body: String,
    /// Absent: the repository's default branch.
    pub(crate) base: Option<String>,
}

/// Pushes, and makes the pull request. What the sandbox says of itself only chooses among the session's repositories.
pub(crate) async fn create_pull(app: &AppState, owner: Owner, git: &Git, pull: &Pull) -> Outcome {
    let fits = |text: &str, most| text.chars().count() <= most;
    if pull.title.trim().is_empty() || !fits(&pull.title, MAX_TITLE) || !fits(&pull.body, MAX_BODY) {
        let limits = "A pull request needs a title of at most 256 and a text of at most 65536 characters";
        return Ok(failed(ACTION, GitCode::UnknownError, limits));
    }
    if pull.base.as_deref().is_some_and(|base| !is_branch(base)) {
        return Ok(failed(ACTION, GitCode::UnknownError, "This is no name for a branch"));
    }
    let Some((branch, remote)) = git.head().await? else {
        return Ok(failed(ACTION, GitCode::UnknownError, "Cannot push from detached HEAD"));
    };
    let repo = match repo_at(app, owner, &remote).await {
        Ok(Some(repo)) => repo,
        Ok(None) => {
            let why = "The remote `origin` is no repository of this session";
            return Ok(failed(ACTION, GitCode::NotGithubRemote, why));
        }
        Err(error) => return Ok(failed(ACTION, GitCode::UnknownError, &error.to_string())),
    };
    let pushed = git.push().await?;
    if !pushed.success {
        return Ok(GitResult { action: ACTION, ..pushed });
    }
    let base = pull.base.as_deref().unwrap_or(&repo.default_branch);
    let new = NewPull { title: &pull.title, body: &pull.body, head: &branch, base };
    made(app, owner, open_pull(app, &repo, &new).await).await
}

async fn made(app: &AppState, owner: Owner, made: Result<String, PullError>) -> Outcome {
    let url = match made {
        Ok(url) => url,
        Err(error) => return Ok(failed(ACTION, code_of(&error), &error.to_string())),
    };
    let told = Telemetry { new_pr_urls: vec![url.clone()], ..Telemetry::default() };
    if let Err(error) = app.store.flush_telemetry(&owner, told).await {
        tracing::warn!(session = %owner.session(), %error, "a pull request was made and not noted");
    }
    Ok(GitResult { pr_url: Some(url), ..done(ACTION, "Pull request created") })
}

async fn repo_at(app: &AppState, owner: Owner, remote: &str) -> Result<Option<Repo>, StoreError> {
    let Some(remote) = one_form(remote) else { return Ok(None) };
    let repos = app.store.session_repos(owner.session()).await?;
    Ok(repos.into_iter().map(|placed| placed.repo).find(|repo| place(repo).as_ref() == Some(&remote)))
}

fn code_of(error: &PullError) -> GitCode {
    match error {
        PullError::NotGithub => GitCode::NotGithubRemote,
        PullError::NoCredential => GitCode::GhNotAvailable,
        PullError::Credential | PullError::Forge(ForgeError::Denied(_) | ForgeError::Private(_)) => {
            GitCode::AuthFailed
        }
        PullError::Refused(_) | PullError::Unreachable | PullError::Forge(_) => GitCode::UnknownError,
    }
}
