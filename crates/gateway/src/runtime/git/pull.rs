//! A pull request of what is checked out: pushed from inside, made by us at the forge. Each is a call of the gate.

use proto::socket::{GitAction, GitCode, GitResult};
use proto::{ToolErrorCode, UserId};
use serde_json::json;
use store::Telemetry;

use super::{Git, Outcome, done, failed};
use crate::app::AppState;
use crate::gate::{Answered, Gate, Outcome as CallOutcome};
use crate::runtime::forge::{ForgeError, PullError, place, way_to_github};
use crate::sources::git::{By, PULL_REQUEST, pull_request_problem, to_call};

const ACTION: GitAction = GitAction::CreatePr;

/// What the client wants.
pub(crate) struct Pull {
    pub(crate) title: String,
    pub(crate) body: String,
    /// Absent: the repository's default branch.
    pub(crate) base: Option<String>,
}

/// Pushes, and makes the pull request. What the sandbox says of itself only chooses among the session's repositories.
pub(crate) async fn create_pull(app: &AppState, user: UserId, git: &Git, pull: &Pull) -> Outcome {
    let Some(branch) = git.head().await? else {
        return Ok(failed(ACTION, GitCode::UnknownError, "Cannot push from detached HEAD"));
    };
    let repo = match git.repository(app).await? {
        Some(repo) if git.is_origin(&repo).await? => repo,
        _ => {
            let why = "The remote `origin` is not the repository of this session that is at this path";
            return Ok(failed(ACTION, GitCode::NotGithubRemote, why));
        }
    };
    let parameters = json!({
        "repository": place(&repo).map(String::from), "title": pull.title, "body": pull.body, "head": branch,
        "base": pull.base.as_deref().unwrap_or(&repo.default_branch),
    });
    if let Some(problem) = pull_request_problem(&parameters) {
        return Ok(failed(ACTION, GitCode::UnknownError, problem));
    }
    // Nothing is pushed for a pull request that cannot be.
    if let Err(error) = way_to_github(app, &repo).await {
        return Ok(failed(ACTION, code_of(&error), &error.to_string()));
    }
    let pushed = git.push(app, user, Some(&branch)).await?;
    if !pushed.success {
        return Ok(GitResult { action: ACTION, ..pushed });
    }
    let owner = git.inside.owner;
    let whose = (owner.org(), owner.session(), By::Person(user));
    let call = match to_call(app, whose, PULL_REQUEST, &branch, parameters).await {
        Ok(call) => call,
        Err(error) => return Ok(failed(ACTION, GitCode::UnknownError, &error.to_string())),
    };
    made(app, git, Gate::call(app, call).await).await
}

async fn made(app: &AppState, git: &Git, answered: Answered) -> Outcome {
    let said = answered.body["result"].as_str().unwrap_or_default();
    let url = match (answered.outcome, answered.body["data"]["url"].as_str()) {
        (CallOutcome::Success, Some(url)) => url.to_owned(),
        (CallOutcome::Failed(ToolErrorCode::PolicyDenied), _) => {
            return Ok(failed(ACTION, GitCode::AuthFailed, &format!("{}: {said}", super::DENIED)));
        }
        _ if said == PullError::Credential.to_string() => {
            return Ok(failed(ACTION, GitCode::AuthFailed, said));
        }
        _ => return Ok(failed(ACTION, GitCode::UnknownError, said)),
    };
    let owner = git.inside.owner;
    let told = Telemetry { new_pr_urls: vec![url.clone()], ..Telemetry::default() };
    if let Err(error) = app.store.flush_telemetry(&owner, told).await {
        tracing::warn!(session = %owner.session(), %error, "a pull request was made and not noted");
    }
    Ok(GitResult { pr_url: Some(url), ..done(ACTION, "Pull request created") })
}

fn code_of(error: &PullError) -> GitCode {
    match error {
        PullError::NotGithub => GitCode::NotGithubRemote,
        PullError::NoCredential => GitCode::GhNotAvailable,
        PullError::Credential | PullError::Forge(ForgeError::Denied(_) | ForgeError::Private(_)) => {
            GitCode::AuthFailed
        }
        PullError::Refused(_) | PullError::Unreachable | PullError::Unknown | PullError::Forge(_) => {
            GitCode::UnknownError
        }
    }
}
