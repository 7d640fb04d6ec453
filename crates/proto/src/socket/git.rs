//! Git operations in the sandbox, as WebSocket messages.

use serde::{Deserialize, Serialize};

use crate::string_enums::string_enums;

string_enums! {
    /// The git operation that was requested.
    GitAction as "git action" {
        GetStatus = "get_status",
        CreateBranch = "create_branch",
        Commit = "commit",
        Push = "push",
        CreatePr = "create_pr",
    }

    /// The outcome of a git operation.
    GitCode as "git code" {
        Success = "SUCCESS",
        /// There are no staged changes.
        NothingToCommit = "NOTHING_TO_COMMIT",
        /// The repository has no remote.
        NoRemote = "NO_REMOTE",
        /// The workspace is not a repository.
        NotARepo = "NOT_A_REPO",
        /// The remote rejected a push from a shallow clone, even after fetching more history.
        ShallowPushFailed = "SHALLOW_PUSH_FAILED",
        /// The remote rejected the credential.
        AuthFailed = "AUTH_FAILED",
        /// `gh` is not installed in the sandbox.
        GhNotAvailable = "GH_NOT_AVAILABLE",
        /// The remote is not on GitHub.
        NotGithubRemote = "NOT_GITHUB_REMOTE",
        /// A branch with this name already exists.
        BranchExists = "BRANCH_EXISTS",
        /// There are merge conflicts, which must be resolved first.
        MergeConflict = "MERGE_CONFLICT",
        /// Another git process holds the lock of the index.
        RepoBusy = "REPO_BUSY",
        /// There are several remotes, and none is named `origin`.
        MultipleRemotes = "MULTIPLE_REMOTES",
        UnknownError = "UNKNOWN_ERROR",
    }
}

/// The state of a working tree. A file that is changed in both the index and the worktree is in both lists.
#[expect(clippy::struct_excessive_bools, reason = "the wire format has five independent flags")]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GitState {
    /// `HEAD (detached)` if no branch is checked out.
    pub branch: String,
    pub detached: bool,
    pub staged_changes: Vec<GitChange>,
    pub unstaged_changes: Vec<GitChange>,
    pub untracked_files: Vec<String>,
    pub conflicted_files: Vec<String>,
    pub commits: Vec<GitCommit>,
    /// `null` if unknown, as in a shallow clone.
    pub ahead: Option<u64>,
    pub behind: Option<u64>,
    pub is_shallow: bool,
    pub is_busy: bool,
    pub rebase_in_progress: bool,
    pub merge_in_progress: bool,
}

/// A changed file. The status `.` means unchanged on that side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GitChange {
    /// The path of the file; `old -> new` for a rename.
    pub path: String,
    pub index_status: String,
    pub worktree_status: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitCommit {
    pub sha: String,
    /// The subject line of the commit message.
    pub message: String,
    pub author: String,
    /// In git's ISO format, with the author's time zone.
    pub date: String,
}

/// The result of a git operation.
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
