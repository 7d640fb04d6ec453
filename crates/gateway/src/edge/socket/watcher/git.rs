//! Git actions of a client over the WebSocket. Only the client that asked gets the result.

use proto::UserId;
use proto::socket::{ClientMessage, GitAction, GitCode, GitResult, ServerMessage};

use crate::app::AppState;
use crate::git::{self, GitError, NewPullRequest, WorkspaceRepo, create_pull_request};
use crate::hub::Hub;

/// The git action that a message asks for, if any.
pub(super) fn action(message: &ClientMessage) -> Option<GitAction> {
    match message {
        ClientMessage::GetGitStatus { .. } => Some(GitAction::GetStatus),
        ClientMessage::GitCreateBranch { .. } => Some(GitAction::CreateBranch),
        ClientMessage::GitCommit { .. } => Some(GitAction::Commit),
        ClientMessage::GitPush { .. } => Some(GitAction::Push),
        ClientMessage::GitCreatePr { .. } => Some(GitAction::CreatePr),
        _ => None,
    }
}

/// Executes a git action. Returns its result, and after a success also the new status of the repository.
pub(super) async fn run(
    app: &AppState,
    hub: &Hub,
    user: Option<UserId>,
    action: GitAction,
    message: ClientMessage,
) -> Vec<ServerMessage> {
    let sandbox = match hub.inside().await {
        Ok(Ok(sandbox)) => sandbox,
        Ok(Err(reason)) => return vec![result(git::failed(action, GitCode::UnknownError, &reason))],
        Err(error) => return vec![result(git::failed(action, GitCode::UnknownError, &error.to_string()))],
    };
    let Some(repo) = WorkspaceRepo::at(sandbox, path(&message)) else {
        return vec![result(git::failed(action, GitCode::UnknownError, "Invalid workspace path"))];
    };
    let done = match (message, user) {
        (ClientMessage::GitCreateBranch { branch_name, .. }, _) => repo.create_branch(&branch_name).await,
        (ClientMessage::GitCommit { message, include_untracked, files, .. }, _) => {
            repo.commit(&message, include_untracked, &files.unwrap_or_default()).await
        }
        (ClientMessage::GitPush { branch_name, .. }, Some(user)) => {
            repo.push(&app.git, user, branch_name.as_deref()).await
        }
        (ClientMessage::GitCreatePr { title, body, base_branch, .. }, Some(user)) => {
            let new = NewPullRequest { title, body: body.unwrap_or_default(), base: base_branch };
            create_pull_request(&app.git, user, &repo, &new).await
        }
        (ClientMessage::GitPush { .. } | ClientMessage::GitCreatePr { .. }, None) => {
            Ok(git::failed(action, GitCode::AuthFailed, "Unauthorized"))
        }
        _ => return vec![status(app, &repo).await],
    };
    match done {
        Ok(done) if done.success => vec![result(done), status(app, &repo).await],
        Ok(done) => vec![result(done)],
        Err(error) => vec![result(failed_result(action, &error))],
    }
}

async fn status(app: &AppState, repo: &WorkspaceRepo) -> ServerMessage {
    match repo.status().await {
        Ok(state) => {
            if let Err(error) = repo.record_branch(&app.git, &state).await {
                tracing::warn!(%error, "the branch of a session was not stored");
            }
            ServerMessage::GitStatus(state)
        }
        Err(error) => result(failed_result(GitAction::GetStatus, &error)),
    }
}

fn result(result: GitResult) -> ServerMessage {
    ServerMessage::GitResult(result)
}

fn failed_result(action: GitAction, error: &GitError) -> GitResult {
    git::failed(action, GitCode::UnknownError, &error.to_string())
}

fn path(message: &ClientMessage) -> Option<&str> {
    match message {
        ClientMessage::GetGitStatus { workspace_path }
        | ClientMessage::GitCreateBranch { workspace_path, .. }
        | ClientMessage::GitCommit { workspace_path, .. }
        | ClientMessage::GitPush { workspace_path, .. }
        | ClientMessage::GitCreatePr { workspace_path, .. } => workspace_path.as_deref(),
        _ => None,
    }
}
