//! The repository in a session's workspace. Git runs inside the sandbox, by argument vectors and never by a shell. The
//! repository is hostile: its hooks and configuration run inside, and git's output may be anything.

mod status;

use std::collections::BTreeMap;

use proto::socket::{GitAction, GitCode, GitResult, GitState};
use sandboxd::ClientError;
use sandboxd::protocol::{Exec, ExitReason, Place};
use store::StoreError;

use super::GitService;
use crate::runtime::ConnectedSandbox;

/// The most output of one command. A status of ten thousand files fits; a longer one is an error, not a truncated list.
const MAX_OUTPUT: usize = 8 * 1024 * 1024;
pub(super) const QUICK_TIMEOUT_MS: u64 = 10_000;
pub(super) const COMMIT_TIMEOUT_MS: u64 = 30_000;
/// Read-only commands run no program that the repository's configuration names.
pub(super) const NO_PROGRAMS: &[&str] = &["-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"];
/// Git's exit code outside of a repository, and in one without commits.
const FATAL_EXIT_CODE: i32 = 128;
/// The hash of a tree without files, which every repository has.
const EMPTY_TREE: &str = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";
/// The file that every git process holds while it writes the index.
const INDEX_LOCK: &str = "index.lock";
const MAX_MESSAGE: usize = 64 * 1024;
const MAX_FILES: usize = 1000;

/// The repository at a path of the workspace.
pub(crate) struct WorkspaceRepo {
    pub(super) sandbox: ConnectedSandbox,
    pub(super) path: String,
}

/// How a command ended.
pub(super) struct CommandOutput {
    pub(super) code: i32,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: String,
}

impl CommandOutput {
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).trim().to_owned()
    }
}

/// Why git did not run to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GitError {
    #[error(transparent)]
    Supervisor(#[from] ClientError),
    #[error("git did not finish within {} s and was killed", .0 / 1000)]
    TimedOut(u64),
    #[error("git was killed by signal {0}")]
    Killed(i32),
    #[error("{0}")]
    Failed(String),
}

pub(super) type ActionResult = Result<GitResult, GitError>;

impl WorkspaceRepo {
    /// `None` for a path that leaves the workspace.
    pub(crate) fn at(sandbox: ConnectedSandbox, path: Option<&str>) -> Option<Self> {
        let path = normalized(path.unwrap_or_default());
        let inside = path.split('/').all(|part| part != ".." && part != ".") && !path.contains('\0');
        inside.then(|| Self { sandbox, path: path.to_owned() })
    }

    /// The state of the repository: its branch, changed, staged and untracked files, and recent commits.
    pub(crate) async fn status(&self) -> Result<GitState, GitError> {
        let status = self.read(&["status", "--porcelain=v2", "--branch", "-z"]).await?;
        match status.code {
            0 => {}
            // Not a repository: the state is empty.
            FATAL_EXIT_CODE => return Ok(GitState::default()),
            _ => return Err(GitError::Failed(first_line(&status.stderr))),
        }
        let mut state = status::parse_status(&status.stdout);
        let format = "--format=%H%x1f%s%x1f%an%x1f%aI%x1e";
        let log = self.read(&["log", "-n", "20", format]).await?;
        // Without a commit, git has no log and fails.
        if !matches!(log.code, 0 | FATAL_EXIT_CODE) {
            return Err(GitError::Failed(first_line(&log.stderr)));
        }
        state.commits = status::parse_log(&log.stdout);
        let shallow = self.read(&["rev-parse", "--is-shallow-repository"]).await?;
        state.is_shallow = shallow.stdout.starts_with(b"true");
        if state.is_shallow {
            (state.ahead, state.behind) = (None, None);
        }
        let git_dir = self.read(&["rev-parse", "--absolute-git-dir"]).await?.text();
        state.is_busy = self.exists(&git_dir, INDEX_LOCK).await?;
        state.rebase_in_progress = self.exists(&git_dir, "REBASE_HEAD").await?;
        state.merge_in_progress = self.exists(&git_dir, "MERGE_HEAD").await?;
        Ok(state)
    }

    /// The difference between `base` (or the last commit) and the files, with those that git does not track. `None` if
    /// this is no repository. The work happens in an index of its own, so that the agent's index stays as it is.
    pub(crate) async fn diff(&self, base: Option<&str>, index: &str) -> Result<Option<String>, GitError> {
        if self.read(&["rev-parse", "--git-dir"]).await?.code == FATAL_EXIT_CODE {
            return Ok(None);
        }
        let base = base.unwrap_or("HEAD");
        let name = base.strip_prefix("refs/").unwrap_or(base);
        if !["HEAD", "@"].contains(&base) && !is_branch_name(name) {
            return Err(GitError::Failed("this is not the name of a commit, branch or tag".to_owned()));
        }
        let revision = format!("{base}^{{commit}}");
        let found = self.read(&["rev-parse", "--verify", "--quiet", "--end-of-options", &revision]).await?;
        let base = match found.code {
            0 => found.text(),
            // Before the first commit everything is new.
            _ if base == "HEAD" => EMPTY_TREE.to_owned(),
            _ => return Err(GitError::Failed(format!("there is no commit, branch or tag {base}"))),
        };
        let env = || BTreeMap::from([("GIT_INDEX_FILE".to_owned(), index.to_owned())]);
        let run = async |arguments: &[&str]| {
            self.run(&[&["git"], NO_PROGRAMS, arguments].concat(), COMMIT_TIMEOUT_MS, env()).await
        };
        let steps: [&[&str]; 3] = [
            &["read-tree", &base],
            &["add", "--intent-to-add", "--all", "--", "."],
            &["diff", "--no-color", "--no-ext-diff", "--no-textconv", &base, "--"],
        ];
        let mut diff = Ok(None);
        for step in steps {
            diff = match run(step).await {
                Ok(done) if done.code == 0 => Ok(Some(String::from_utf8_lossy(&done.stdout).into_owned())),
                Ok(done) => Err(GitError::Failed(first_line(&done.stderr))),
                Err(error) => Err(error),
            };
            if diff.is_err() {
                break;
            }
        }
        // A leftover index is small, and /tmp ends with the sandbox.
        let _ = self.run(&["rm", "-f", index], QUICK_TIMEOUT_MS, BTreeMap::new()).await;
        diff
    }

    pub(crate) async fn create_branch(&self, name: &str) -> ActionResult {
        let action = GitAction::CreateBranch;
        if !is_branch_name(name) {
            return Ok(failed(action, GitCode::UnknownError, "This is not a valid branch name"));
        }
        let reference = format!("refs/heads/{name}");
        if self.read(&["show-ref", "--verify", "--quiet", &reference]).await?.code == 0 {
            return Ok(failed(action, GitCode::BranchExists, &format!("Branch '{name}' already exists")));
        }
        let created = self.write(&["checkout", "-b", name], COMMIT_TIMEOUT_MS).await?;
        match created.code {
            0 => Ok(succeeded(action, &format!("Created and switched to branch '{name}'"))),
            _ => self.command_failed(action, &created).await,
        }
    }

    /// Commits these files; without any, all tracked files, and the untracked ones too if `untracked`.
    pub(crate) async fn commit(&self, message: &str, untracked: bool, files: &[String]) -> ActionResult {
        let action = GitAction::Commit;
        if message.trim().is_empty() || message.len() > MAX_MESSAGE || files.len() > MAX_FILES {
            let problem = "A commit needs a message, and at most 1000 files";
            return Ok(failed(action, GitCode::UnknownError, problem));
        }
        let mut add = vec!["add"];
        if files.is_empty() {
            add.push(if untracked { "-A" } else { "-u" });
        } else {
            add.push("--");
            add.extend(files.iter().map(String::as_str));
        }
        let added = self.write(&add, COMMIT_TIMEOUT_MS).await?;
        if added.code != 0 {
            return self.command_failed(action, &added).await;
        }
        if self.read(&["diff", "--cached", "--quiet"]).await?.code == 0 {
            return Ok(failed(action, GitCode::NothingToCommit, "Nothing to commit"));
        }
        let committed = self.write(&["commit", "-m", message], COMMIT_TIMEOUT_MS).await?;
        match committed.code {
            0 => Ok(succeeded(action, "Changes committed")),
            _ => self.command_failed(action, &committed).await,
        }
    }

    /// The result of a command that failed. The code comes from the state of the repository, not from git's words.
    async fn command_failed(&self, action: GitAction, output: &CommandOutput) -> ActionResult {
        let git_dir = self.read(&["rev-parse", "--absolute-git-dir"]).await?;
        let code = if git_dir.code != 0 {
            GitCode::NotARepo
        } else if self.exists(&git_dir.text(), INDEX_LOCK).await? {
            GitCode::RepoBusy
        } else if !self.read(&["ls-files", "--unmerged", "-z"]).await?.stdout.is_empty() {
            GitCode::MergeConflict
        } else {
            GitCode::UnknownError
        };
        Ok(failed(action, code, &first_line(&output.stderr)))
    }

    async fn exists(&self, directory: &str, name: &str) -> Result<bool, GitError> {
        let test = ["test", "-e", &format!("{directory}/{name}")];
        Ok(self.run(&test, QUICK_TIMEOUT_MS, BTreeMap::new()).await?.code == 0)
    }

    /// The branch that is checked out.
    pub(super) async fn branch(&self) -> Result<Option<String>, GitError> {
        let head = self.read(&["rev-parse", "--abbrev-ref", "HEAD"]).await?;
        let branch = head.text();
        Ok((head.code == 0 && is_branch_name(&branch)).then_some(branch))
    }

    /// The branch that is checked out, which may be unborn, and its last commit.
    pub(super) async fn branch_and_commit(&self) -> Result<Option<(String, Option<String>)>, GitError> {
        let branch = self.read(&["symbolic-ref", "--short", "HEAD"]).await?.text();
        let commit = self.read(&["rev-parse", "--verify", "HEAD"]).await?;
        let commit = (commit.code == 0).then(|| commit.text());
        Ok(is_branch_name(&branch).then_some((branch, commit)))
    }

    /// Stores which branch the session works on: that of its first repository, or of the workspace if it has none.
    pub(crate) async fn record_branch(&self, git: &GitService, state: &GitState) -> Result<(), StoreError> {
        if state.detached || !is_branch_name(&state.branch) {
            return Ok(());
        }
        let owner = &self.sandbox.owner;
        let record = git.store.session(owner.org(), owner.session()).await?;
        if record.is_none_or(|record| record.branch_name.as_ref() == Some(&state.branch)) {
            return Ok(());
        }
        let repos = git.store.session_repos(owner.session()).await?;
        if self.path == repos.first().map_or("", |first| normalized(&first.workspace_path)) {
            git.store.set_branch(owner, &state.branch, None).await?;
        }
        Ok(())
    }

    pub(super) async fn read(&self, arguments: &[&str]) -> Result<CommandOutput, GitError> {
        let env = BTreeMap::from([("GIT_OPTIONAL_LOCKS".to_owned(), "0".to_owned())]);
        self.run(&[&["git"], NO_PROGRAMS, arguments].concat(), QUICK_TIMEOUT_MS, env).await
    }

    pub(super) async fn write(&self, arguments: &[&str], timeout_ms: u64) -> Result<CommandOutput, GitError> {
        self.run(&[&["git"], arguments].concat(), timeout_ms, BTreeMap::new()).await
    }

    async fn run(
        &self,
        argv: &[&str],
        timeout_ms: u64,
        env: BTreeMap<String, String>,
    ) -> Result<CommandOutput, GitError> {
        self.run_in(Place::workspace(self.path.clone()), argv, timeout_ms, env).await
    }

    pub(super) async fn run_in(
        &self,
        directory: Place,
        argv: &[&str],
        timeout_ms: u64,
        mut env: BTreeMap<String, String>,
    ) -> Result<CommandOutput, GitError> {
        env.extend(
            [
                ("GIT_TERMINAL_PROMPT", "0"),
                ("GIT_ASKPASS", "/bin/false"),
                ("GH_PAGER", "cat"),
                ("LC_ALL", "C"),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned())),
        );
        let exec = Exec {
            argv: argv.iter().map(|word| (*word).to_owned()).collect(),
            cwd: Some(directory),
            timeout_ms: Some(timeout_ms),
            env,
            ..Exec::default()
        };
        let ran = self.sandbox.supervisor.run(exec, "", MAX_OUTPUT).await?;
        if ran.done.truncated {
            return Err(ClientError::TooLarge(MAX_OUTPUT).into());
        }
        let code = match ran.done.ended {
            ExitReason::Exit(code) => code,
            ExitReason::Signal(signal) => return Err(GitError::Killed(signal)),
            ExitReason::TimedOut => return Err(GitError::TimedOut(timeout_ms)),
        };
        let stderr = String::from_utf8_lossy(&ran.stderr).into_owned();
        Ok(CommandOutput { code, stdout: ran.stdout, stderr })
    }
}

/// A path of the workspace without surrounding slashes; the workspace itself is empty.
pub(super) fn normalized(path: &str) -> &str {
    let path = path.trim_matches('/');
    if path == "." { "" } else { path }
}

/// A branch name that git accepts and cannot mistake for an option or for another ref.
pub(super) fn is_branch_name(name: &str) -> bool {
    let forbidden = |c: char| c.is_control() || " ~^:?*[\\".contains(c);
    !name.is_empty()
        && name.len() <= 200
        && !["HEAD", "@"].contains(&name)
        && !name.starts_with("refs/")
        && !name.starts_with(['-', '/', '.'])
        && !name.ends_with(['/', '.'])
        && name.strip_suffix(".lock").is_none()
        && !["..", "@{", "//", "/."].iter().any(|part| name.contains(part))
        && !name.chars().any(forbidden)
}

pub(super) fn succeeded(action: GitAction, message: &str) -> GitResult {
    GitResult { action, success: true, code: GitCode::Success, message: message.to_owned(), pr_url: None }
}

/// The result of an action that was not done, also for clients without a sandbox to do it in.
pub(crate) fn failed(action: GitAction, code: GitCode, message: &str) -> GitResult {
    GitResult { action, success: false, code, message: message.to_owned(), pr_url: None }
}

pub(super) fn first_line(text: &str) -> String {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("git printed no reason");
    line.chars().filter(|c| !c.is_control()).take(300).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_valid_branch_names_reach_git() {
        for good in ["main", "feature/x-1", "a.b", "ü"] {
            assert!(is_branch_name(good), "{good}");
        }
        for bad in [
            "", "-D", "--help", "a b", "a..b", "a~1", "x.lock", "/a", "a/", ".a", "a/.b", "@{u}", "a\n",
            "a:b",
        ] {
            assert!(!is_branch_name(bad), "{bad}");
        }
    }
}
