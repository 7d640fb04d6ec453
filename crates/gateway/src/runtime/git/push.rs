//! A push that a person asked for. The repository belongs to the agent, so nothing of it but objects takes part: git runs
//! in an empty repository of ours that borrows them, without anybody's configuration, hooks or remotes. The branch comes
//! from the request, the address from the session, the old commit from the forge. A program inside that gets hold of the
//! grant all the same can do with it exactly what the person asked for.

use std::collections::BTreeMap;

use proto::UserId;
use proto::socket::{GitAction, GitCode};
use sandboxd::protocol::Place;
use store::Repo;

use super::{
    COMMIT_MS, Git, GitError, NO_PROGRAMS, Outcome, QUICK_MS, Ran, SLOW_MS, code_of, done, failed,
    first_line, is_branch, plain,
};
use crate::app::App;
use crate::runtime::forge::{Access, ForgeError, RefsError, Update, access, is_id, place};
use crate::runtime::git_config::route;
use crate::runtime::room::{OURS, PUSH_GRANT};

const ACTION: GitAction = GitAction::Push;
const FOLDER: &str = "A folder of the operator's machine cannot be pushed to";
const NOWHERE: &str = "There is nowhere to push to: no repository of this session is at this path";
const BEHIND: &str =
    "The branch has commits at the forge that are not here: pull them first, then push again";

/// What is pushed where.
struct Target<'a> {
    repo: &'a Repo,
    /// The gateway's address of the repository.
    url: String,
    update: Update,
}

impl Git {
    /// Pushes a branch to the branch of the same name, for somebody who asked for it. Without a name it is the one that is
    /// checked out.
    pub async fn push(&self, app: &App, user: UserId, branch: Option<&str>) -> Outcome {
        let branch = match branch {
            Some(branch) => Some(branch.to_owned()).filter(|branch| is_branch(branch)),
            None => self.head().await?,
        };
        let Some(branch) = branch else {
            return Ok(failed(ACTION, GitCode::UnknownError, "Cannot push from detached HEAD"));
        };
        let Some(repo) = self.repository(app).await? else { return self.nowhere().await };
        let forge = match access(app, &repo).await {
            Ok(forge) => forge,
            Err(ForgeError::NoUrl) => return Ok(failed(ACTION, GitCode::AuthFailed, FOLDER)),
            Err(error @ (ForgeError::Denied(_) | ForgeError::Private(_))) => {
                return Ok(failed(ACTION, GitCode::AuthFailed, &error.to_string()));
            }
            Err(error) => return Err(GitError::Failed(error.to_string())),
        };
        let name = format!("refs/heads/{branch}");
        let commit = self.read(&["rev-parse", "--verify", "--quiet", &format!("{name}^{{commit}}")]).await?;
        let new = String::from_utf8_lossy(&commit.out).trim().to_owned();
        if commit.code != 0 || !is_id(&new) {
            return Ok(failed(ACTION, GitCode::UnknownError, "This branch has no commit yet"));
        }
        let old = match forge.ref_at_forge(&name).await {
            Ok(Some(old)) => old,
            Ok(None) => "0".repeat(new.len()),
            Err(error @ RefsError::Credential) => {
                return Ok(failed(ACTION, GitCode::AuthFailed, &error.to_string()));
            }
            Err(error) => return Err(GitError::Failed(error.to_string())),
        };
        let target = self.target(&forge, &repo, Update { name, old, new });
        self.push_to(app, user, &branch, &target).await
    }

    fn target<'a>(&self, forge: &Access<'_>, repo: &'a Repo, update: Update) -> Target<'a> {
        Target { repo, url: format!("{}.git", route(&self.inside.gateway_url, &forge.url)), update }
    }

    async fn push_to(&self, app: &App, user: UserId, branch: &str, target: &Target<'_>) -> Outcome {
        if target.update.old != target.update.new {
            let mut pushed = self.push_once(app, user, target).await?;
            if pushed.code != 0 && pushed.err.contains("shallow update not allowed") {
                self.write(&["fetch", "--deepen", "100"], COMMIT_MS).await?;
                pushed = self.push_once(app, user, target).await?;
            }
            if pushed.code != 0 {
                return Ok(failed(ACTION, code_of(&pushed.err), &reason(&pushed.err)));
            }
        }
        self.note_pushed(branch, target).await?;
        Ok(done(ACTION, &format!("Pushed to {branch}")))
    }

    async fn push_once(&self, app: &App, user: UserId, target: &Target<'_>) -> Result<Ran, GitError> {
        let paths = ["rev-parse", "--path-format=absolute", "--git-path", "objects", "--git-path", "shallow"];
        let paths = self.read(&paths).await?;
        let text = String::from_utf8_lossy(&paths.out).into_owned();
        let [objects, shallow] = text.lines().collect::<Vec<_>>()[..] else {
            return Err(GitError::Failed("git does not say where its objects are".to_owned()));
        };
        let credential = self.credential().await?;
        let folder = format!("push-{}", hex::encode(app.rng.bytes::<8>()));
        let ours = || Place::home(OURS);
        let format = if target.update.new.len() == 64 { "sha256" } else { "sha1" };
        let format = format!("--object-format={format}");
        let init = ["git", "init", "--quiet", "--bare", "--template=", &format, &folder];
        let made = self.run_at(ours(), &init, QUICK_MS, no_configuration()).await?;
        if made.code != 0 {
            return Ok(made);
        }
        let place = (self.inside.owner.session(), target.repo.id);
        let grant = app.push_grants.issue(&app.rng, place, user, target.update.clone());
        let header = format!("http.{}.extraHeader", target.url);
        let settings = [
            (header.as_str(), credential),
            (&header, format!("{PUSH_GRANT}: {}", grant.token)),
            ("http.followRedirects", "false".to_owned()),
            ("core.hooksPath", "/dev/null".to_owned()),
        ];
        let mut env = no_configuration();
        env.insert("GIT_CONFIG_COUNT".to_owned(), settings.len().to_string());
        for (number, (key, value)) in settings.into_iter().enumerate() {
            env.insert(format!("GIT_CONFIG_KEY_{number}"), key.to_owned());
            env.insert(format!("GIT_CONFIG_VALUE_{number}"), value);
        }
        env.insert("GIT_OBJECT_DIRECTORY".to_owned(), objects.to_owned());
        env.insert("GIT_SHALLOW_FILE".to_owned(), shallow.to_owned());
        env.insert("GIT_ALLOW_PROTOCOL".to_owned(), "http".to_owned());
        let git_dir = format!("--git-dir={folder}");
        let refspec = format!("{}:{}", target.update.new, target.update.name);
        let push =
            ["git", &git_dir, "push", "--no-verify", "--no-recurse-submodules", "--", &target.url, &refspec];
        let pushed = self.run_at(ours(), &push, SLOW_MS, env).await;
        drop(grant);
        // What stays is an empty repository that no snapshot takes along.
        let _ = self.run_at(ours(), &["rm", "-rf", "--", &folder], QUICK_MS, BTreeMap::new()).await;
        pushed
    }

    /// The header by which git inside shows the sandbox's credential. The agent could change it, and would only make its
    /// own push fail: a grant counts for this session alone.
    async fn credential(&self) -> Result<String, GitError> {
        let key = format!("http.{}/git/.extraHeader", self.inside.gateway_url);
        let found = self.read(&["config", "--get", &key]).await?;
        let found = String::from_utf8_lossy(&found.out).trim().to_owned();
        let token = found.strip_prefix("Authorization: Bearer ");
        let right =
            |token: &str| token.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'-'));
        match token {
            Some(token) if right(token) => Ok(found),
            _ => Err(GitError::Failed(
                "git inside has lost the sandbox's credential: restart the session".to_owned(),
            )),
        }
    }

    /// Lets git inside know what was pushed, as `git push -u` does, where `origin` is the repository. No hook runs.
    async fn note_pushed(&self, branch: &str, target: &Target<'_>) -> Result<(), GitError> {
        if !self.is_origin(target.repo).await? {
            return Ok(());
        }
        let tracking = format!("refs/remotes/origin/{branch}");
        self.write(&[NO_PROGRAMS, &["update-ref", &tracking, &target.update.new]].concat(), QUICK_MS).await?;
        let upstream = format!("branch.{branch}.merge");
        if self.read(&["config", "--get", &upstream]).await?.code != 0 {
            self.write(&["config", &format!("branch.{branch}.remote"), "origin"], QUICK_MS).await?;
            self.write(&["config", &upstream, &target.update.name], QUICK_MS).await?;
        }
        Ok(())
    }

    /// Whether the remote `origin` is this repository, as the user wrote it and not as we have git rewrite it.
    pub(super) async fn is_origin(&self, repo: &Repo) -> Result<bool, GitError> {
        let remote = self.read(&["config", "--get", "remote.origin.url"]).await?;
        let remote = crate::runtime::forge::one_form(String::from_utf8_lossy(&remote.out).trim());
        Ok(remote.is_some() && remote == place(repo))
    }

    /// The repository of the session that is at this path.
    pub(super) async fn repository(&self, app: &App) -> Result<Option<Repo>, GitError> {
        let owner = &self.inside.owner;
        let repos = app.store.session_repos(owner.session()).await;
        let repos = repos.map_err(|error| GitError::Failed(error.to_string()))?;
        let here = |place: &str| {
            let place = plain(place);
            let rest = self.path.strip_prefix(place);
            place.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let nearest = repos.into_iter().filter(|placed| here(&placed.workspace_path));
        Ok(nearest.max_by_key(|placed| plain(&placed.workspace_path).len()).map(|placed| placed.repo))
    }

    async fn nowhere(&self) -> Outcome {
        let remotes = self.read(&["remote"]).await?;
        let remotes = String::from_utf8_lossy(&remotes.out).into_owned();
        let several = remotes.lines().count() > 1 && !remotes.lines().any(|name| name == "origin");
        let code = if several { GitCode::MultipleRemotes } else { GitCode::NoRemote };
        Ok(failed(ACTION, code, NOWHERE))
    }
}

/// Git without the machine's, the user's and our own settings, and without a home to find any in.
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

/// Why a push failed: what the other side says of it, if it says something.
fn reason(stderr: &str) -> String {
    if stderr.contains("! [rejected]") {
        return BEHIND.to_owned();
    }
    let said = stderr.lines().find_map(|line| line.strip_prefix("remote: "));
    first_line(said.unwrap_or(stderr))
}
