//! Pull requests: the branch that is checked out is pushed from the sandbox, then the gateway opens the pull request at
//! the forge. Each of the two is a call of the gate.

use std::sync::Arc;

use futures_util::FutureExt as _;
use gate::{CallOutcome, CallResult, Permit};
use proto::socket::{GitAction, GitCode, GitResult};
use proto::{ToolErrorCode, UserId};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use store::{PlacedRepo, Telemetry};

use super::GitService;
use super::call::{Initiator, data};
use super::forge::{self, ForgeError, PullError, PullRequestContent, canonical, canonical_url};
use super::workspace::{ActionResult, WorkspaceRepo, failed, is_branch_name, succeeded};

/// The name of the tool.
pub(crate) const CREATE_PULL_REQUEST: &str = "git.create_pull_request";
const ACTION: GitAction = GitAction::CreatePr;
/// The longest title and text that GitHub accepts.
const MAX_TITLE: usize = 256;
const MAX_BODY: usize = 65_536;

/// A client's request for a pull request.
pub(crate) struct NewPullRequest {
    pub(crate) title: String,
    pub(crate) body: String,
    /// The repository's default branch, if absent.
    pub(crate) base: Option<String>,
}

/// The outcome of a pull request, stored in the data of its run's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub(crate) enum PullRequestOutcome {
    Created {
        url: String,
    },
    CredentialRefused,
    /// The pull request was not created, for another reason.
    NotCreated,
    /// The forge may have created it.
    Unknown,
}

impl PullRequestOutcome {
    pub(crate) fn of_error(error: &PullError) -> Self {
        match error {
            PullError::CredentialRefused => Self::CredentialRefused,
            PullError::Unknown => Self::Unknown,
            _ => Self::NotCreated,
        }
    }

    /// The outcome that the gate's answer carries.
    fn of(answered: &CallResult) -> Self {
        Self::deserialize(data(answered)).unwrap_or(match answered.outcome {
            CallOutcome::Success
            | CallOutcome::Failed(ToolErrorCode::ToolError | ToolErrorCode::ToolTimeout) => Self::Unknown,
            _ => Self::NotCreated,
        })
    }
}

/// Pushes the branch, and opens the pull request. What the sandbox reports only selects one of the session's
/// repositories.
pub(crate) async fn create_pull_request(
    git: &Arc<GitService>,
    user: UserId,
    workspace: &WorkspaceRepo,
    new: &NewPullRequest,
) -> ActionResult {
    let Some(branch) = workspace.branch().await? else {
        return Ok(failed(ACTION, GitCode::UnknownError, "Cannot push from detached HEAD"));
    };
    let repo = match workspace.repository(git).await? {
        Some(repo) if workspace.is_origin(&repo).await? => repo,
        _ => {
            let problem = "The remote `origin` is not the session's repository at this path";
            return Ok(failed(ACTION, GitCode::NotGithubRemote, problem));
        }
    };
    let parameters = json!({
        "repository": canonical_url(&repo).map(String::from), "title": new.title, "body": new.body,
        "head": branch, "base": new.base.as_deref().unwrap_or(&repo.default_branch),
    });
    if let Some(problem) = parameter_problem(&parameters) {
        return Ok(failed(ACTION, GitCode::UnknownError, problem));
    }
    // Do not push for a pull request that cannot be opened.
    let reader = (workspace.sandbox.owner.session(), Initiator::Person(user));
    let checked = git.read(reader, &repo, |forge| async { forge.github_token().map(drop) }.boxed()).await;
    if let Err(error) = checked.map_err(PullError::from).flatten() {
        return Ok(failed(ACTION, code(&error), &error.to_string()));
    }
    let pushed = workspace.push(git, user, Some(&branch)).await?;
    if !pushed.success {
        return Ok(GitResult { action: ACTION, ..pushed });
    }
    let owner = workspace.sandbox.owner;
    let initiator = (owner.org(), owner.session(), Initiator::Person(user));
    let call = match git.call(initiator, CREATE_PULL_REQUEST, &branch, parameters).await {
        Ok(call) => call,
        Err(error) => return Ok(failed(ACTION, GitCode::UnknownError, &error.to_string())),
    };
    let answered = git.gate.call(call).await;
    Ok(record_pull_request(git, workspace, &answered).await)
}

async fn record_pull_request(
    git: &GitService,
    workspace: &WorkspaceRepo,
    answered: &CallResult,
) -> GitResult {
    let text = answered.text();
    if answered.outcome == CallOutcome::Failed(ToolErrorCode::PolicyDenied) {
        return failed(ACTION, GitCode::AuthFailed, &format!("Denied by policy: {text}"));
    }
    let url = match PullRequestOutcome::of(answered) {
        PullRequestOutcome::Created { url } => url,
        PullRequestOutcome::CredentialRefused => return failed(ACTION, GitCode::AuthFailed, text),
        PullRequestOutcome::NotCreated | PullRequestOutcome::Unknown => {
            return failed(ACTION, GitCode::UnknownError, text);
        }
    };
    let owner = workspace.sandbox.owner;
    let telemetry = Telemetry { new_pr_urls: vec![url.clone()], ..Telemetry::default() };
    if let Err(error) = git.store.flush_telemetry(&owner, telemetry).await {
        let session = owner.session();
        tracing::warn!(%session, %error, "the URL of a new pull request was not stored with its session");
    }
    GitResult { pr_url: Some(url), ..succeeded(ACTION, "Pull request created") }
}

fn code(error: &PullError) -> GitCode {
    match error {
        PullError::NotGithub => GitCode::NotGithubRemote,
        PullError::NoCredential => GitCode::GhNotAvailable,
        PullError::CredentialRefused
        | PullError::Denied(_)
        | PullError::Forge(ForgeError::Denied(_) | ForgeError::Private(_)) => GitCode::AuthFailed,
        PullError::NotRead(_)
        | PullError::Refused(_)
        | PullError::Unreachable
        | PullError::Unknown
        | PullError::Forge(_) => GitCode::UnknownError,
    }
}

/// Describes what is wrong with the parameters of a call.
pub(crate) fn parameter_problem(parameters: &Value) -> Option<&'static str> {
    let text = |field: &str| parameters.get(field).and_then(Value::as_str);
    let fits = |text: &str, max| text.chars().count() <= max;
    match (text("title"), text("body")) {
        (Some(title), Some(body))
            if !title.trim().is_empty() && fits(title, MAX_TITLE) && fits(body, MAX_BODY) => {}
        _ => {
            return Some(
                "A pull request needs a title of at most 256 and a text of at most 65536 characters",
            );
        }
    }
    if !["head", "base"].iter().all(|field| text(field).is_some_and(is_branch_name)) {
        return Some("This is not a valid branch name");
    }
    let extra = parameters.as_object().is_none_or(|fields| fields.len() > 5);
    if text("repository").and_then(canonical).is_none() || extra {
        return Some("A pull request has the parameters repository, title, body, head and base");
    }
    None
}

/// Opens the pull request of a call whose parameters were checked. `None` if its repository is not one of the
/// session's.
pub(crate) async fn open_pull_request(
    git: &GitService,
    permit: &Permit,
    repos: &[PlacedRepo],
    parameters: &Value,
) -> Option<Result<String, PullError>> {
    let text = |field: &str| parameters[field].as_str().unwrap_or_default();
    let url = canonical(text("repository"))?;
    let placed = repos.iter().find(|placed| canonical_url(&placed.repo).as_ref() == Some(&url))?;
    let content = PullRequestContent {
        title: text("title"),
        body: text("body"),
        head: text("head"),
        base: text("base"),
    };
    Some(forge::open(git, permit, &placed.repo, &content).await)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::git::call::result;

    #[test]
    fn only_complete_and_valid_parameters_are_accepted() {
        let right =
            json!({"repository": "https://h/o/r", "title": "t", "body": "", "head": "work", "base": "main"});
        assert_eq!(parameter_problem(&right), None);
        for (field, wrong) in [
            ("repository", json!("o/r")),
            ("title", json!(" ")),
            ("title", json!("x".repeat(257))),
            ("body", json!("x".repeat(65_537))),
            ("body", Value::Null),
            ("head", json!("--upload-pack=x")),
            ("base", json!("a..b")),
            ("draft", json!(true)),
        ] {
            let mut changed = right.clone();
            changed[field] = wrong;
            assert!(parameter_problem(&changed).is_some(), "{changed}");
        }
        assert!(parameter_problem(&json!([])).is_some());
    }

    #[test]
    fn the_outcome_of_a_pull_request_survives_in_the_answer_of_its_run() {
        let answered = |outcome, data: Value| result(outcome, "x", &data);
        let failed = CallOutcome::Failed(ToolErrorCode::ToolError);
        let refused = serde_json::to_value(PullRequestOutcome::CredentialRefused).unwrap();
        assert_eq!(PullRequestOutcome::of(&answered(failed, refused)), PullRequestOutcome::CredentialRefused);
        let url = "https://h/o/r/pull/1".to_owned();
        let created = PullRequestOutcome::Created { url };
        let data = serde_json::to_value(&created).unwrap();
        assert_eq!(PullRequestOutcome::of(&answered(CallOutcome::Success, data)), created);
        assert_eq!(PullRequestOutcome::of(&answered(failed, Value::Null)), PullRequestOutcome::Unknown);
        let unavailable = answered(CallOutcome::Unavailable, Value::Null);
        assert_eq!(PullRequestOutcome::of(&unavailable), PullRequestOutcome::NotCreated);
    }
}
