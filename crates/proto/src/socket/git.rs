//! Git in the sandbox, as the socket shows it.

use serde::{Deserialize, Serialize};

use crate::words::words;

words! {
    /// What was asked of git.
    GitAction as "git action" {
        GetStatus = "get_status",
        CreateBranch = "create_branch",
        Commit = "commit",
        Push = "push",
        CreatePr = "create_pr",
    }

    /// How it went.
    GitCode as "git code" {
        Success = "SUCCESS",
        /// Nothing was staged.
        NothingToCommit = "NOTHING_TO_COMMIT",
        /// There is nowhere to push to.
        NoRemote = "NO_REMOTE",
        /// The workspace is no repository.
        NotARepo = "NOT_A_REPO",
        /// The remote refused a push from a shallow clone, also after deepening it.
        ShallowPushFailed = "SHALLOW_PUSH_FAILED",
        /// The remote did not accept our credential.
        AuthFailed = "AUTH_FAILED",
        /// The sandbox has no `gh`.
        GhNotAvailable = "GH_NOT_AVAILABLE",
        /// The remote is not on GitHub.
        NotGithubRemote = "NOT_GITHUB_REMOTE",
        /// There is a branch of this name.
        BranchExists = "BRANCH_EXISTS",
        /// Conflicts are to be resolved first.
        MergeConflict = "MERGE_CONFLICT",
        /// Another git process holds the index.
        RepoBusy = "REPO_BUSY",
        /// There are several remotes and none is `origin`.
        MultipleRemotes = "MULTIPLE_REMOTES",
        UnknownError = "UNKNOWN_ERROR",
    }
}

/// The state of a working tree. A file changed in index and worktree is in both lists.
#[expect(clippy::struct_excessive_bools, reason = "the wire has five independent facts, and calls them so")]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GitState {
    /// `HEAD (detached)` when there is none.
    pub branch: String,
    pub detached: bool,
    pub staged_changes: Vec<GitChange>,
    pub unstaged_changes: Vec<GitChange>,
    pub untracked_files: Vec<String>,
    pub conflicted_files: Vec<String>,
    pub commits: Vec<GitCommit>,
    /// `null` when unknown, as in a shallow clone.
    pub ahead: Option<u64>,
    pub behind: Option<u64>,
    pub is_shallow: bool,
    pub is_busy: bool,
    pub rebase_in_progress: bool,
    pub merge_in_progress: bool,
}

/// A changed file; a status of `.` means unchanged on that side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GitChange {
    /// `old -> new` for a rename.
    pub path: String,
    pub index_status: String,
    pub worktree_status: String,
}

/// A commit of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitCommit {
    pub sha: String,
    /// The subject line.
    pub message: String,
    pub author: String,
    /// As git writes it in ISO form, with its own offset.
    pub date: String,
}

/// The answer to a git message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GitResult {
    pub action: GitAction,
    pub success: bool,
    pub code: GitCode,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pr_url: Option<String>,
}
