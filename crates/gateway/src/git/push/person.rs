//! A push that a person asked for. The repository belongs to the agent, so only its objects take part: git runs in an
//! empty repository of ours that borrows them, without anybody's configuration, hooks or remotes. The branch comes from
//! the request, the URL from the session, the old commit from the forge. A program inside that steals the grant can use
//! it only for exactly what the person asked for.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::FutureExt as _;
use proto::UserId;
use proto::socket::{GitAction, GitCode};
use sandboxd::protocol::Place;
use store::Repo;

use super::grants::GRANT_HEADER;
use super::outcome::{PushOutcome, PushResult, RejectionReason};
use super::request::{RefUpdate, is_object_id};
use crate::git::GitService;
use crate::git::call::Initiator;
use crate::git::config::route;
use crate::git::forge::{ForgeError, RefsError, canonical, canonical_url};
use crate::git::read::ReadError;
use crate::git::workspace::{
    ActionResult, COMMIT_TIMEOUT_MS, CommandOutput, GitError, NO_PROGRAMS, QUICK_TIMEOUT_MS, WorkspaceRepo,
    failed, first_line, is_branch_name, normalized, succeeded,
};
use crate::runtime::OWN_DIRECTORY;

const ACTION: GitAction = GitAction::Push;
const PUSH_TIMEOUT_MS: u64 = 60_000;
const LOCAL_DIRECTORY: &str =
    "A directory of the operator's machine is read-only for sessions: it cannot be pushed to";
const NO_REPOSITORY: &str =
    "There is no repository of this session at this path, so there is nowhere to push to";
const FORGE_IS_AHEAD: &str =
    "The branch at the forge has commits that are missing here: pull them first, then push again";

/// The commit to push, and its destination.
struct Target<'a> {
    repo: &'a Repo,
    /// The gateway's URL of the repository.
    url: String,
    update: RefUpdate,
}

impl WorkspaceRepo {
    /// Pushes a branch to the branch of the same name, for a person who asked for it. Without a name, it is the branch
    /// that is checked out.
    pub(crate) async fn push(
        &self,
        git: &Arc<GitService>,
        user: UserId,
        branch: Option<&str>,
    ) -> ActionResult {
        let branch = match branch {
            Some(branch) => Some(branch.to_owned()).filter(|branch| is_branch_name(branch)),
            None => self.branch().await?,
        };
        let Some(branch) = branch else {
            return Ok(failed(ACTION, GitCode::UnknownError, "Cannot push from detached HEAD"));
        };
        let Some(repo) = self.repository(git).await? else { return self.no_repository().await };
        let name = format!("refs/heads/{branch}");
        let commit = self.read(&["rev-parse", "--verify", "--quiet", &format!("{name}^{{commit}}")]).await?;
        let new = commit.text();
        if commit.code != 0 || !is_object_id(&new) {
            return Ok(failed(ACTION, GitCode::UnknownError, "This branch has no commit yet"));
        }
        let (reader, wanted) = ((self.sandbox.owner.session(), Initiator::Person(user)), name.clone());
        let read = git.read(reader, &repo, move |forge| {
            async move { (forge.url.clone(), forge.remote_ref(&wanted).await) }.boxed()
        });
        let (url, old) = match read.await {
            Ok(found) => found,
            Err(ReadError::Forge(ForgeError::NoUrl)) => {
                return Ok(failed(ACTION, GitCode::AuthFailed, LOCAL_DIRECTORY));
            }
            Err(
                error @ (ReadError::Forge(ForgeError::Denied(_) | ForgeError::Private(_))
                | ReadError::Denied(_)),
            ) => {
                return Ok(failed(ACTION, GitCode::AuthFailed, &error.to_string()));
            }
            Err(error) => return Err(GitError::Failed(error.to_string())),
        };
        let old = match old {
            Ok(Some(old)) => old,
            Ok(None) => "0".repeat(new.len()),
            Err(error @ RefsError::CredentialRefused) => {
                return Ok(failed(ACTION, GitCode::AuthFailed, &error.to_string()));
            }
            Err(error) => return Err(GitError::Failed(error.to_string())),
        };
        let url = format!("{}.git", route(&self.sandbox.gateway_url, &url));
        let target = Target { repo: &repo, url, update: RefUpdate { name, old, new } };
        self.push_to(git, user, &branch, &target).await
    }

    async fn push_to(
        &self,
        git: &GitService,
        user: UserId,
        branch: &str,
        target: &Target<'_>,
    ) -> ActionResult {
        if target.update.old != target.update.new {
            let mut result = self.push_once(git, user, target).await?;
            if let Some(PushOutcome::Rejected { reason: RejectionReason::ShallowUpdate, .. }) =
                result.as_ref().err().map(|failure| &failure.outcome)
            {
                self.write(&["fetch", "--deepen", "100"], COMMIT_TIMEOUT_MS).await?;
                result = self.push_once(git, user, target).await?;
            }
            if let Err(PushResult { outcome, message }) = result {
                return Ok(failed(ACTION, outcome.code(), &message));
            }
        }
        self.record_pushed(branch, target).await?;
        Ok(succeeded(ACTION, &format!("Pushed to {branch}")))
    }

    /// Runs git once. The outcome is that of the push that reached the gateway with the grant. If none did, git's exit
    /// code counts.
    async fn push_once(
        &self,
        git: &GitService,
        user: UserId,
        target: &Target<'_>,
    ) -> Result<Result<(), PushResult>, GitError> {
        let paths = ["rev-parse", "--path-format=absolute", "--git-path", "objects", "--git-path", "shallow"];
        let paths = self.read(&paths).await?.text();
        let [objects, shallow] = paths.lines().collect::<Vec<_>>()[..] else {
            return Err(GitError::Failed("git did not print where its objects are".to_owned()));
        };
        let credential = self.credential().await?;
        let directory = format!("push-{}", hex::encode(git.rng.bytes::<8>()));
        let home = || Place::home(OWN_DIRECTORY);
        let format = if target.update.new.len() == 64 { "sha256" } else { "sha1" };
        let format = format!("--object-format={format}");
        let init = ["git", "init", "--quiet", "--bare", "--template=", &format, &directory];
        let created = self.run_in(home(), &init, QUICK_TIMEOUT_MS, no_configuration()).await?;
        if created.code != 0 {
            return Err(GitError::Failed(first_line(&created.stderr)));
        }
        let place = (self.sandbox.owner.session(), target.repo.id);
        let mut grant = git.push_grants.issue(&git.rng, place, user, target.update.clone());
        let mut env = push_configuration(&target.url, credential, &grant.token);
        env.insert("GIT_OBJECT_DIRECTORY".to_owned(), objects.to_owned());
        env.insert("GIT_SHALLOW_FILE".to_owned(), shallow.to_owned());
        let git_dir = format!("--git-dir={directory}");
        let refspec = format!("{}:{}", target.update.new, target.update.name);
        let mut push = vec!["git", &git_dir, "push", "--porcelain", "--no-verify", "--no-recurse-submodules"];
        push.extend(["--", &target.url, &refspec]);
        let output = self.run_in(home(), &push, PUSH_TIMEOUT_MS, env).await;
        let result = grant.result();
        drop(grant);
        // If this fails, an empty repository stays, which no snapshot includes.
        let _ =
            self.run_in(home(), &["rm", "-rf", "--", &directory], QUICK_TIMEOUT_MS, BTreeMap::new()).await;
        let output = output?;
        Ok(match result {
            Some(result) if result.outcome.is_success() => Ok(()),
            Some(result) => Err(result),
            None if output.code == 0 => Ok(()),
            None => Err(PushResult { outcome: PushOutcome::NotForwarded, message: reason(&output) }),
        })
    }

    /// The header with which git inside authenticates to the gateway. If the agent changed it, the push fails: a grant
    /// is valid for this session alone.
    async fn credential(&self) -> Result<String, GitError> {
        let key = format!("http.{}/git/.extraHeader", self.sandbox.gateway_url);
        let header = self.read(&["config", "--get", &key]).await?.text();
        let is_token =
            |token: &str| token.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'-'));
        match header.strip_prefix("Authorization: Bearer ") {
            Some(token) if is_token(token) => Ok(header),
            _ => Err(GitError::Failed(
                "git's configuration in the sandbox has lost its credential: restart the session".to_owned(),
            )),
        }
    }

    /// Updates the remote-tracking branch and the upstream, as `git push -u` does, if `origin` is the repository. No
    /// hook runs.
    async fn record_pushed(&self, branch: &str, target: &Target<'_>) -> Result<(), GitError> {
        if !self.is_origin(target.repo).await? {
            return Ok(());
        }
        let tracking = format!("refs/remotes/origin/{branch}");
        let update = [NO_PROGRAMS, &["update-ref", &tracking, &target.update.new]].concat();
        self.write(&update, QUICK_TIMEOUT_MS).await?;
        let upstream = format!("branch.{branch}.merge");
        if self.read(&["config", "--get", &upstream]).await?.code != 0 {
            let remote = format!("branch.{branch}.remote");
            self.write(&["config", &remote, "origin"], QUICK_TIMEOUT_MS).await?;
            self.write(&["config", &upstream, &target.update.name], QUICK_TIMEOUT_MS).await?;
        }
        Ok(())
    }

    /// Whether the remote `origin` is this repository, by its configured URL and not the one that git rewrites it to.
    pub(in crate::git) async fn is_origin(&self, repo: &Repo) -> Result<bool, GitError> {
        let remote = self.read(&["config", "--get", "remote.origin.url"]).await?;
        let remote = canonical(&remote.text());
        Ok(remote.is_some() && remote == canonical_url(repo))
    }

    /// The session's repository at this path.
    pub(in crate::git) async fn repository(&self, git: &GitService) -> Result<Option<Repo>, GitError> {
        let repos = git.store.session_repos(self.sandbox.owner.session()).await;
        let repos = repos.map_err(|error| GitError::Failed(error.to_string()))?;
        let contains_path = |directory: &str| {
            let directory = normalized(directory);
            let rest = self.path.strip_prefix(directory);
            directory.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let candidates = repos.into_iter().filter(|placed| contains_path(&placed.workspace_path));
        let innermost = candidates.max_by_key(|placed| normalized(&placed.workspace_path).len());
        Ok(innermost.map(|placed| placed.repo))
    }

    async fn no_repository(&self) -> ActionResult {
        let remotes = self.read(&["remote"]).await?.text();
        let several = remotes.lines().count() > 1 && !remotes.lines().any(|name| name == "origin");
        let code = if several { GitCode::MultipleRemotes } else { GitCode::NoRemote };
        Ok(failed(ACTION, code, NO_REPOSITORY))
    }
}

/// Git's environment without the machine's, the user's and our own configuration, and without a home directory.
fn no_configuration() -> BTreeMap<String, String> {
    let variables = [
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_CONFIG_SYSTEM", "/dev/null"),
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_CONFIG_COUNT", "0"),
        ("HOME", "/dev/null"),
        ("XDG_CONFIG_HOME", "/dev/null"),
    ];
    variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

/// Git's environment for one push with a grant.
fn push_configuration(url: &str, credential: String, grant: &str) -> BTreeMap<String, String> {
    let header = format!("http.{url}.extraHeader");
    let settings = [
        (header.as_str(), credential),
        (&header, format!("{GRANT_HEADER}: {grant}")),
        ("http.followRedirects", "false".to_owned()),
        ("core.hooksPath", "/dev/null".to_owned()),
    ];
    let mut env = no_configuration();
    env.insert("GIT_CONFIG_COUNT".to_owned(), settings.len().to_string());
    for (number, (key, value)) in settings.into_iter().enumerate() {
        env.insert(format!("GIT_CONFIG_KEY_{number}"), key.to_owned());
        env.insert(format!("GIT_CONFIG_VALUE_{number}"), value);
    }
    env.insert("GIT_ALLOW_PROTOCOL".to_owned(), "http".to_owned());
    env
}

/// Why git pushed nothing, for people: its machine-readable status of the ref, else the first line that it printed.
fn reason(output: &CommandOutput) -> String {
    let rejected = |line: &str| {
        let mut fields = line.split('\t');
        fields.next() == Some("!") && fields.nth(1).is_some_and(|summary| summary.starts_with("[rejected]"))
    };
    if output.text().lines().any(rejected) { FORGE_IS_AHEAD.to_owned() } else { first_line(&output.stderr) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ref_that_git_itself_rejects_is_behind_the_forge() {
        let output = |stdout: &str| CommandOutput {
            code: 1,
            stdout: stdout.as_bytes().to_vec(),
            stderr: "error: failed to push some refs\nmore".to_owned(),
        };
        let status = |summary: &str| format!("To http://g/git/x.git\n!\t1:refs/heads/a\t{summary}\nDone\n");
        assert_eq!(reason(&output(&status("[rejected] (fetch first)"))), FORGE_IS_AHEAD);
        for other in [&status("[remote rejected] (hook declined)"), "! [rejected]", "", "!\t[rejected]"] {
            assert_eq!(reason(&output(other)), "error: failed to push some refs", "{other}");
        }
    }
}
