//! Git for a client: done beside the stream, and answered to the one who asked.

use proto::UserId;
use proto::socket::{ClientMessage, GitAction, GitCode, GitResult, ServerMessage};

use crate::app::AppState;
use crate::hub::Hub;
use crate::runtime::{Git, GitError, Pull, create_pull, git_failed};

/// What a message asks of git, if it is about git.
pub(super) fn kind(message: &ClientMessage) -> Option<GitAction> {
    match message {
        ClientMessage::GetGitStatus { .. } => Some(GitAction::GetStatus),
        ClientMessage::GitCreateBranch { .. } => Some(GitAction::CreateBranch),
        ClientMessage::GitCommit { .. } => Some(GitAction::Commit),
        ClientMessage::GitPush { .. } => Some(GitAction::Push),
        ClientMessage::GitCreatePr { .. } => Some(GitAction::CreatePr),
        _ => None,
    }
}

/// What the client is told: the result, and after a success the new state.
pub(super) async fn answer(
    app: &AppState,
    hub: &Hub,
    user: Option<UserId>,
    action: GitAction,
    message: ClientMessage,
) -> Vec<ServerMessage> {
    let inside = match hub.inside().await {
        Ok(Ok(inside)) => inside,
        Ok(Err(reason)) => return vec![result(git_failed(action, GitCode::UnknownError, &reason))],
        Err(error) => return vec![result(git_failed(action, GitCode::UnknownError, &error.to_string()))],
    };
    let Some(git) = Git::at(inside, path(&message)) else {
        return vec![result(git_failed(action, GitCode::UnknownError, "Invalid workspace path"))];
    };
    let done = match (message, user) {
        (ClientMessage::GitCreateBranch { branch_name, .. }, _) => git.create_branch(&branch_name).await,
        (ClientMessage::GitCommit { message, include_untracked, files, .. }, _) => {
            git.commit(&message, include_untracked, &files.unwrap_or_default()).await
        }
        (ClientMessage::GitPush { branch_name, .. }, Some(user)) => {
            git.push(app, user, branch_name.as_deref()).await
        }
        (ClientMessage::GitCreatePr { title, body, base_branch, .. }, Some(user)) => {
            let pull = Pull { title, body: body.unwrap_or_default(), base: base_branch };
            create_pull(app, user, &git, &pull).await
        }
        (ClientMessage::GitPush { .. } | ClientMessage::GitCreatePr { .. }, None) => {
            Ok(git_failed(action, GitCode::AuthFailed, "Unauthorized"))
        }
        _ => return vec![status(app, &git).await],
    };
    match done {
        Ok(done) if done.success => vec![result(done), status(app, &git).await],
        Ok(done) => vec![result(done)],
        Err(error) => vec![result(broken(action, &error))],
    }
}

async fn status(app: &AppState, git: &Git) -> ServerMessage {
    match git.status().await {
        Ok(state) => {
            if let Err(error) = git.note_branch(app, &state).await {
                tracing::warn!(%error, "the branch of a session was not noted");
            }
            ServerMessage::GitStatus(state)
        }
        Err(error) => result(broken(GitAction::GetStatus, &error)),
    }
}

fn result(result: GitResult) -> ServerMessage {
    ServerMessage::GitResult(result)
}

fn broken(action: GitAction, error: &GitError) -> GitResult {
    git_failed(action, GitCode::UnknownError, &error.to_string())
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
