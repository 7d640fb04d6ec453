//! Git in a sandbox, by argument vectors and never by a shell. The repository is hostile: its hooks and configuration
//! run inside, and what git prints is read as bytes that anybody may have chosen.

mod pull;
mod push;
mod state;

use std::collections::BTreeMap;

use proto::socket::{GitAction, GitCode, GitResult, GitState};
use sandboxd::ClientError;
use sandboxd::protocol::{Exec, ExitReason, Place};
use store::StoreError;

use super::room::Inside;
use crate::app::App;

pub(crate) use pull::{Pull, create_pull};

/// What of a command's output is read. A status of ten thousand files fits; more is an error and not half a list.
const OUTPUT: usize = 8 * 1024 * 1024;
const QUICK_MS: u64 = 10_000;
const SLOW_MS: u64 = 60_000;
const COMMIT_MS: u64 = 30_000;
/// Whoever only looks runs no program that the repository names.
const NO_PROGRAMS: &[&str] = &["-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"];
/// How git ends when there is no repository, or nothing in it.
const FATAL: i32 = 128;
/// The longest message and the most files of one commit.
const MAX_MESSAGE: usize = 64 * 1024;
const MAX_FILES: usize = 1000;
/// How what is said about a push begins when it is about who may.
const DENIED: &str = "Denied by policy";
const CREDENTIAL: &str = "refused the organisation's credential";

/// The repository at a path of the workspace.
pub struct Git {
    inside: Inside,
    path: String,
}

/// How a command went.
struct Ran {
    code: i32,
    out: Vec<u8>,
    err: String,
}

/// Why git gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    #[error(transparent)]
    Inside(#[from] ClientError),
    #[error("git was ended after {} s without an answer", .0 / 1000)]
    TimedOut(u64),
    #[error("git was ended by signal {0}")]
    Killed(i32),
    #[error("{0}")]
    Failed(String),
}

type Outcome = Result<GitResult, GitError>;

impl Git {
    /// `None` for a path that leaves the workspace.
    pub fn at(inside: Inside, path: Option<&str>) -> Option<Self> {
        let path = plain(path.unwrap_or_default());
        let fine = path.split('/').all(|part| part != ".." && part != ".") && !path.contains('\0');
        fine.then(|| Self { inside, path: path.to_owned() })
    }

    /// What is changed, staged, untracked and committed.
    pub async fn status(&self) -> Result<GitState, GitError> {
        let status = self.read(&["status", "--porcelain=v2", "--branch", "-z"]).await?;
        match status.code {
            0 => {}
            // Not a repository: nothing is anything.
            FATAL => return Ok(GitState::default()),
            _ => return Err(GitError::Failed(first_line(&status.err))),
        }
        let mut state = state::parse(&status.out);
        let format = "--format=%H%x1f%s%x1f%an%x1f%aI%x1e";
        let log = self.read(&["log", "-n", "20", format]).await?;
        // Without a commit it has nothing to tell.
        if !matches!(log.code, 0 | FATAL) {
            return Err(GitError::Failed(first_line(&log.err)));
        }
        state.commits = state::commits(&log.out);
        let shallow = self.read(&["rev-parse", "--is-shallow-repository"]).await?;
        state.is_shallow = shallow.out.starts_with(b"true");
        if state.is_shallow {
            (state.ahead, state.behind) = (None, None);
        }
        let folder = self.read(&["rev-parse", "--absolute-git-dir"]).await?;
        let folder = String::from_utf8_lossy(&folder.out).trim().to_owned();
        for (name, flag) in [
            ("index.lock", &mut state.is_busy),
            ("REBASE_HEAD", &mut state.rebase_in_progress),
            ("MERGE_HEAD", &mut state.merge_in_progress),
        ] {
            let test =
                self.run(&["test", "-e", &format!("{folder}/{name}")], QUICK_MS, BTreeMap::new()).await?;
            *flag = test.code == 0;
        }
        Ok(state)
    }

    pub async fn create_branch(&self, name: &str) -> Outcome {
        let action = GitAction::CreateBranch;
        if !is_branch(name) {
            return Ok(failed(action, GitCode::UnknownError, "This is no name for a branch"));
        }
        let reference = format!("refs/heads/{name}");
        if self.read(&["show-ref", "--verify", "--quiet", &reference]).await?.code == 0 {
            return Ok(failed(action, GitCode::BranchExists, &format!("Branch '{name}' already exists")));
        }
        let made = self.write(&["checkout", "-b", name], COMMIT_MS).await?;
        Ok(match made.code {
            0 => done(action, &format!("Created and switched to branch '{name}'")),
            _ => failed(action, code_of(&made.err), &first_line(&made.err)),
        })
    }

    /// Commits these files; all tracked ones where none are named, with the untracked if they are wanted.
    pub async fn commit(&self, message: &str, untracked: bool, files: &[String]) -> Outcome {
        let action = GitAction::Commit;
        if message.trim().is_empty() || message.len() > MAX_MESSAGE || files.len() > MAX_FILES {
            return Ok(failed(
                action,
                GitCode::UnknownError,
                "A commit needs a message, and at most 1000 files",
            ));
        }
        let mut add = vec!["add"];
        if files.is_empty() {
            add.push(if untracked { "-A" } else { "-u" });
        } else {
            add.push("--");
            add.extend(files.iter().map(String::as_str));
        }
        let added = self.write(&add, COMMIT_MS).await?;
        if added.code != 0 {
            return Ok(failed(action, code_of(&added.err), &first_line(&added.err)));
        }
        if self.read(&["diff", "--cached", "--quiet"]).await?.code == 0 {
            return Ok(failed(action, GitCode::NothingToCommit, "Nothing to commit"));
        }
        let made = self.write(&["commit", "-m", message], COMMIT_MS).await?;
        Ok(match made.code {
            0 => done(action, "Changes committed"),
            _ => failed(action, code_of(&made.err), &first_line(&made.err)),
        })
    }

    /// The branch that is checked out.
    async fn head(&self) -> Result<Option<String>, GitError> {
        let head = self.read(&["rev-parse", "--abbrev-ref", "HEAD"]).await?;
        let branch = String::from_utf8_lossy(&head.out).trim().to_owned();
        Ok((head.code == 0 && is_branch(&branch) && branch != "HEAD").then_some(branch))
    }

    /// The branch that is checked out and its last commit, if there is one yet.
    pub(super) async fn beginning(&self) -> Result<Option<(String, Option<String>)>, GitError> {
        let branch = self.read(&["symbolic-ref", "--short", "HEAD"]).await?;
        let branch = String::from_utf8_lossy(&branch.out).trim().to_owned();
        let commit = self.read(&["rev-parse", "--verify", "HEAD"]).await?;
        let commit = (commit.code == 0).then(|| String::from_utf8_lossy(&commit.out).trim().to_owned());
        Ok(is_branch(&branch).then_some((branch, commit)))
    }

    /// Notes which branch the session works on: that of its first repository, or of the workspace if it has none.
    pub(crate) async fn note_branch(&self, app: &App, state: &GitState) -> Result<(), StoreError> {
        if state.detached || !is_branch(&state.branch) {
            return Ok(());
        }
        let owner = &self.inside.owner;
        let record = app.store.session(owner.org(), owner.session()).await?;
        if record.is_none_or(|record| record.branch_name.as_ref() == Some(&state.branch)) {
            return Ok(());
        }
        let repos = app.store.session_repos(owner.session()).await?;
        if self.path == repos.first().map_or("", |first| plain(&first.workspace_path)) {
            app.store.set_branch(owner, &state.branch, None).await?;
        }
        Ok(())
    }

    async fn read(&self, arguments: &[&str]) -> Result<Ran, GitError> {
        let env = BTreeMap::from([("GIT_OPTIONAL_LOCKS".to_owned(), "0".to_owned())]);
        self.run(&[&["git"], NO_PROGRAMS, arguments].concat(), QUICK_MS, env).await
    }

    async fn write(&self, arguments: &[&str], timeout_ms: u64) -> Result<Ran, GitError> {
        self.run(&[&["git"], arguments].concat(), timeout_ms, BTreeMap::new()).await
    }

    async fn run(
        &self,
        argv: &[&str],
        timeout_ms: u64,
        env: BTreeMap<String, String>,
    ) -> Result<Ran, GitError> {
        self.run_at(Place::workspace(self.path.clone()), argv, timeout_ms, env).await
    }

    async fn run_at(
        &self,
        cwd: Place,
        argv: &[&str],
        timeout_ms: u64,
        mut env: BTreeMap<String, String>,
    ) -> Result<Ran, GitError> {
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
            cwd: Some(cwd),
            timeout_ms: Some(timeout_ms),
            env,
            ..Exec::default()
        };
        let ran = self.inside.supervisor.run(exec, "", OUTPUT).await?;
        if ran.done.truncated {
            return Err(ClientError::TooLarge(OUTPUT).into());
        }
        let code = match ran.done.ended {
            ExitReason::Exit(code) => code,
            ExitReason::Signal(signal) => return Err(GitError::Killed(signal)),
            ExitReason::TimedOut => return Err(GitError::TimedOut(timeout_ms)),
        };
        Ok(Ran { code, out: ran.stdout, err: String::from_utf8_lossy(&ran.stderr).into_owned() })
    }
}

/// A path of the workspace without what says nothing.
fn plain(path: &str) -> &str {
    let path = path.trim_matches('/');
    if path == "." { "" } else { path }
}

/// A name that git takes and that is no option.
pub(crate) fn is_branch(name: &str) -> bool {
    let forbidden = |c: char| c.is_control() || " ~^:?*[\\".contains(c);
    !name.is_empty()
        && name.len() <= 200
        && !name.starts_with(['-', '/', '.'])
        && !name.ends_with(['/', '.'])
        && name.strip_suffix(".lock").is_none()
        && !["..", "@{", "//", "/."].iter().any(|part| name.contains(part))
        && !name.chars().any(forbidden)
}

fn code_of(stderr: &str) -> GitCode {
    let has = |parts: &[&str]| parts.iter().any(|part| stderr.contains(part));
    if has(&["index.lock"]) {
        GitCode::RepoBusy
    } else if has(&["shallow update not allowed"]) {
        GitCode::ShallowPushFailed
    } else if has(&[
        "Authentication failed",
        "could not read Username",
        "Permission denied",
        "403",
        DENIED,
        CREDENTIAL,
    ]) {
        GitCode::AuthFailed
    } else if has(&["conflict", "CONFLICT", "unmerged"]) {
        GitCode::MergeConflict
    } else if has(&["not a git repository"]) {
        GitCode::NotARepo
    } else {
        GitCode::UnknownError
    }
}

fn done(action: GitAction, message: &str) -> GitResult {
    GitResult { action, success: true, code: GitCode::Success, message: message.to_owned(), pr_url: None }
}

/// A result for what was not done, also for those who have no sandbox to do it in.
pub(crate) fn failed(action: GitAction, code: GitCode, message: &str) -> GitResult {
    GitResult { action, success: false, code, message: message.to_owned(), pr_url: None }
}

fn first_line(text: &str) -> String {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("git gave no reason");
    line.chars().filter(|c| !c.is_control()).take(300).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_branches_reach_git() {
        for good in ["main", "feature/x-1", "a.b", "ü"] {
            assert!(is_branch(good), "{good}");
        }
        for bad in [
            "", "-D", "--help", "a b", "a..b", "a~1", "x.lock", "/a", "a/", ".a", "a/.b", "@{u}", "a\n",
            "a:b",
        ] {
            assert!(!is_branch(bad), "{bad}");
        }
    }

    #[test]
    fn what_git_complains_of_has_a_code() {
        for (text, code) in [
            ("fatal: Unable to create '/x/.git/index.lock': File exists.", GitCode::RepoBusy),
            ("fatal: Authentication failed for 'https://x/'", GitCode::AuthFailed),
            ("error: shallow update not allowed", GitCode::ShallowPushFailed),
            ("fatal: not a git repository", GitCode::NotARepo),
            ("remote: Denied by policy: the global safety lock is engaged", GitCode::AuthFailed),
            ("remote: Not pushed: the forge refused the organisation's credential", GitCode::AuthFailed),
            ("something else", GitCode::UnknownError),
        ] {
            assert_eq!(code_of(text), code, "{text}");
        }
    }
}
