//! Private repositories in a real sandbox: clones, pushes and pull requests with a credential that never enters it.

use std::path::Path;
use std::process::Command;

use reqwest::StatusCode;
use serde_json::{Value, json};
use testkit::Forge;
use tokio::runtime::Runtime;

use crate::live::{Real, Watching, tokens};
use crate::live_pool::waiting;

/// A forge with two repositories, and a session that works on one of them.
pub(crate) struct Stage {
    pub(crate) forge: Forge,
    pub(crate) real: Real,
    pub(crate) directory: tempfile::TempDir,
    _threads: Runtime,
}

pub(crate) fn git(directory: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("git");
    command
        .current_dir(directory)
        .args(["-c", "user.name=Ada", "-c", "user.email=a@example.com"])
        .args(arguments);
    let ran = command.output().unwrap();
    assert!(ran.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).unwrap().trim().to_owned()
}

fn repository(root: &Path, name: &str, branch: &str) {
    let work = root.join("work");
    git(root, &["init", "-q", "-b", branch, "work"]);
    std::fs::write(work.join("README"), name).unwrap();
    git(&work, &["add", "README"]);
    git(&work, &["commit", "-qm", "first"]);
    git(root, &["clone", "-q", "--bare", "work", &format!("ada/{name}.git")]);
    std::fs::remove_dir_all(work).unwrap();
}

impl Stage {
    fn new() -> Self {
        Self::with(&[])
    }

    /// A stage with additional settings; without a pool unless they set one.
    pub(crate) fn with(more: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        repository(directory.path(), "app", "main");
        repository(directory.path(), "other", "main");
        let threads =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let forge = threads.block_on(Forge::start(directory.path())).unwrap();
        let host = forge.url().replace("http://", "");
        let root = directory.path().join("ada");
        let url = forge.url();
        let own = [
            ("CONNECTOR_ALLOWED_HOSTS", host.as_str()),
            ("GITHUB_URL", &url),
            ("WORKSPACE_LOCAL_ROOTS", root.to_str().unwrap()),
            ("WARM_POOL_SIZE", "0"),
        ];
        let real = Real::serving(&[&own, more].concat());
        Self { forge, real, directory, _threads: threads }
    }

    pub(crate) fn set_token(&self, token: &str) {
        let set = self.real.machine.feed(&["secrets", "set", "GITHUB_TOKEN", "-"], token);
        assert_eq!(set.code, 0, "{}", set.err);
    }

    pub(crate) fn work(&mut self) -> Watching {
        let url = format!("{}/ada/app.git", self.forge.url());
        self.work_on(&url)
    }

    fn work_on(&mut self, url: &str) -> Watching {
        self.work_with(&json!({ "url": url }))
    }

    fn work_with(&mut self, repo: &Value) -> Watching {
        let repo = self.real.post("/v1/repos", repo)["id"].clone();
        let places = json!([{"repoId": repo, "workspacePath": "."}]);
        let place = self.real.post("/v1/configurations", &json!({"name": "app", "repos": places}));
        self.real.new_session(&json!({"configurationId": place["id"]}));
        let mut socket = self.real.watch("");
        socket.until(|frame| {
            assert_ne!(frame["type"], "error", "{frame}");
            frame["type"] == "status" && frame["payload"]["status"] == "running"
        });
        socket
    }

    pub(crate) fn shell(&self, command: &str) -> String {
        self.real.shell(&self.real.sandbox(), command)
    }

    pub(crate) fn pushed(&self, branch: &str) -> String {
        git(&self.directory.path().join("ada/app.git"), &["log", "--format=%s", "-1", branch])
    }
}

pub(crate) fn ask(socket: &mut Watching, message: &Value) -> Value {
    socket.say(message);
    socket.until_type("git_result").pop().unwrap()["payload"].clone()
}

#[test]
fn a_private_repository_is_cloned_and_pushed_and_its_credential_never_enters_the_sandbox() {
    let mut stage = Stage::new();
    stage.set_token(Forge::TOKEN);
    let mut socket = stage.work();
    assert_eq!(stage.shell("cat README; echo; git log --format=%s"), "app\nfirst");
    stage.shell("echo two > README");
    let committed = ask(&mut socket, &json!({"type": "git_commit", "message": "second"}));
    assert_eq!(committed["code"], "SUCCESS", "{committed}");
    let pushed = ask(&mut socket, &json!({"type": "git_push"}));
    assert_eq!(pushed["code"], "SUCCESS", "{pushed}");
    assert_eq!(stage.pushed("main"), "second");
    // It works from the agent's own shell as well.
    stage.shell("git commit -q --allow-empty -m third && git push -q && git fetch -q");
    assert_eq!(stage.pushed("main"), "third");
    assert_eq!(stage.shell("git config remote.origin.url"), format!("{}/ada/app.git", stage.forge.url()));

    // Far more than a truncated list would contain.
    stage.shell("for i in $(seq 1000); do : > $(printf 'f%0100d' $i); done");
    socket.say(&json!({"type": "get_git_status"}));
    let full =
        |frame: &Value| frame["payload"]["untrackedFiles"].as_array().is_some_and(|all| all.len() == 1000);
    socket.until(|frame| frame["type"] == "git_status" && full(frame));

    for secret in [Forge::TOKEN, Forge::BASIC_CREDENTIALS] {
        let look =
            format!("grep -rlF {secret} /home/user /tmp /run /proc/[0-9]*/environ 2>/dev/null | wc -l");
        assert_eq!(stage.shell(&look), "0", "the credential is inside");
    }
    let gateway = stage.shell("echo $PROLIFERATE_GATEWAY_URL");
    let host = stage.forge.url().replace("http://", "");
    for other in [
        format!("{gateway}/git/http/{host}/ada/other.git"),
        format!("{gateway}/git/http/{host}/ada/app.git/../other.git"),
        format!("{gateway}/git/http/{host}/ada/app/%2e%2e/other"),
        format!("{gateway}/git/https/{host}/ada/app"),
        format!("{gateway}/git/http/example.com/ada/app"),
        format!("{}/ada/other.git", stage.forge.url()),
    ] {
        let said = stage.shell(&format!("git ls-remote {other} 2>&1 && echo REACHED; true"));
        assert!(!said.contains("REACHED") && !said.contains("refs/heads"), "{other}: {said}");
    }
    let without = "GIT_CONFIG_COUNT=0 git ls-remote";
    let said = stage.shell(&format!("{without} {gateway}/git/http/{host}/ada/app 2>&1 </dev/null; true"));
    assert!(!said.contains("refs/heads"), "without the sandbox's token: {said}");
}

#[test]
fn the_gateway_opens_pull_requests_and_lists_them_with_the_session() {
    let mut stage = Stage::new();
    stage.set_token(Forge::TOKEN);
    let mut socket = stage.work();
    assert_eq!(
        ask(&mut socket, &json!({"type": "git_create_branch", "branchName": "work"}))["code"],
        "SUCCESS"
    );
    stage.shell("git commit -q --allow-empty -m change");
    for wrong in [
        json!({"type": "git_create_pr", "title": " "}),
        json!({"type": "git_create_pr", "title": "x".repeat(257)}),
        json!({"type": "git_create_pr", "title": "t", "baseBranch": "--upload-pack=x"}),
    ] {
        let refused = ask(&mut socket, &wrong);
        assert_eq!((&refused["action"], &refused["code"]), (&json!("create_pr"), &json!("UNKNOWN_ERROR")));
    }
    assert_eq!(stage.forge.pulls().len(), 0);
    let made = ask(&mut socket, &json!({"type": "git_create_pr", "title": "A change", "body": "why"}));
    let page = "https://forge.example/ada/app/pull/1";
    assert_eq!((&made["code"], &made["prUrl"]), (&json!("SUCCESS"), &json!(page)), "{made}");
    assert_eq!(
        stage.forge.pulls(),
        [json!({"title": "A change", "body": "why", "head": "work", "base": "main"})]
    );
    assert_eq!(stage.pushed("work"), "change");
    let list = stage.real.get("/proliferate/sessions");
    assert_eq!(list["sessions"][0]["prUrls"], json!([page]));
    let again = ask(&mut socket, &json!({"type": "git_create_pr", "title": "A change"}));
    assert_eq!(again["code"], "UNKNOWN_ERROR");
    assert!(again["message"].as_str().unwrap().contains("already exists for ada:work"), "{again}");

    a_lost_response_leaves_a_pull_request_unknown(&stage, &mut socket);
    stage.set_token("another-secret");
    let refused = ask(&mut socket, &json!({"type": "git_create_pr", "title": "A change"}));
    assert_eq!(
        (&refused["action"], &refused["code"]),
        (&json!("create_pr"), &json!("AUTH_FAILED")),
        "{refused}"
    );
    stage.shell("git remote set-url origin https://example.com/ada/app.git");
    let foreign = ask(&mut socket, &json!({"type": "git_create_pr", "title": "A change"}));
    assert_eq!(foreign["code"], "NOT_GITHUB_REMOTE", "{foreign}");
}

/// An error from a proxy in front of the forge does not prove that nothing was created, and its message contains no
/// credential.
fn a_lost_response_leaves_a_pull_request_unknown(stage: &Stage, socket: &mut Watching) {
    let mut pull = |branch: &str| {
        ask(socket, &json!({"type": "git_create_branch", "branchName": branch}));
        let refused = ask(socket, &json!({"type": "git_create_pr", "title": "A change"}));
        assert_eq!(refused["code"], "UNKNOWN_ERROR", "{refused}");
        refused["message"].as_str().unwrap().to_owned()
    };
    stage.forge.answer_pulls(StatusCode::BAD_GATEWAY, "Bad gateway");
    let said = pull("lost");
    assert!(said.contains("whether it took effect is unknown"), "{said}");
    let path = format!("/v1/runs?case_id={}&run_kind=tool_gateway", stage.real.session);
    let run = stage.real.get(&path)["runs"][0].clone();
    assert_eq!(run["error"]["error_code"], "TOOL_TIMEOUT", "{run}");
    stage.forge.answer_pulls(StatusCode::UNPROCESSABLE_ENTITY, &format!("no, Bearer {}!", Forge::TOKEN));
    let said = pull("told");
    assert!(said.contains("GitHub refused the pull request: no, ") && !said.contains(Forge::TOKEN), "{said}");
}

#[test]
fn a_repository_is_cloned_at_its_default_branch_and_pull_requests_target_it() {
    let mut stage = Stage::new();
    repository(stage.directory.path(), "old", "trunk");
    stage.set_token(Forge::TOKEN);
    let url = format!("{}/ada/old.git", stage.forge.url());
    let mut socket = stage.work_on(&url);
    assert_eq!(stage.shell("git branch --show-current; cat README"), "trunk\nold");
    assert_eq!(stage.real.get("/v1/repos")["repos"][0]["defaultBranch"], "trunk");
    let session = stage.real.get("/proliferate/sessions")["sessions"][0].clone();
    assert_eq!(session["branchName"], "trunk");
    ask(&mut socket, &json!({"type": "git_create_branch", "branchName": "work"}));
    socket.until_type("git_status");
    assert_eq!(stage.real.get("/proliferate/sessions")["sessions"][0]["branchName"], "work");
    stage.shell("git commit -q --allow-empty -m change");
    let made = ask(&mut socket, &json!({"type": "git_create_pr", "title": "A change"}));
    assert_eq!(made["code"], "SUCCESS", "{made}");
    assert_eq!(stage.forge.pulls()[0]["base"], "trunk");

    // The default branch was renamed at the forge; the next clone follows automatically.
    git(&stage.directory.path().join("ada/old.git"), &["branch", "-m", "trunk", "main"]);
    stage.real.new_session(&json!({"configurationId": session["configurationId"]}));
    let mut socket = stage.real.watch("");
    socket.until(|frame| frame["type"] == "status" && frame["payload"]["status"] == "running");
    assert_eq!(stage.shell("git branch --show-current"), "main");
    assert_eq!(stage.real.get("/v1/repos")["repos"][0]["defaultBranch"], "main");

    git(&stage.directory.path().join("ada/app.git"), &["branch", "release"]);
    let chosen = json!({"url": format!("{}/ada/app.git", stage.forge.url()), "defaultBranch": "release"});
    let _socket = stage.work_with(&chosen);
    assert_eq!(stage.shell("git branch --show-current"), "release");
}

#[test]
fn repositories_from_another_sessions_snapshot_are_updated_and_own_files_are_kept() {
    let mut stage = Stage::new();
    stage.set_token(Forge::TOKEN);
    let mut socket = stage.work();
    socket.say(&json!({"type": "save_snapshot"}));
    let saved = socket.until_type("snapshot_result").pop().unwrap()["payload"]["snapshotId"].clone();
    // The first session continues, and a later one needs the commit that it pushes.
    stage.shell("git commit -q --allow-empty -m second && git push -q");
    let configuration = stage.real.get("/proliferate/sessions")["sessions"][0]["configurationId"].clone();
    let first = stage.real.session.clone();
    stage.real.new_session(&json!({"configurationId": configuration, "snapshotId": saved}));
    let mut second = stage.real.watch("");
    let frames = second.until(|frame| frame["type"] == "status" && frame["payload"]["status"] == "running");
    assert!(frames.iter().any(|frame| frame["payload"]["message"] == "Updating"), "{frames:?}");
    assert_eq!(stage.shell("git log -1 --format=%s"), "second");

    // A session that resumes its own sandbox finds its files unchanged.
    stage.real.post(&format!("/proliferate/{first}/stop"), &json!({}));
    stage.real.session = first;
    let mut socket = stage.real.watch("");
    socket.prompt("wake up");
    socket.until_type("turn_complete");
    assert_eq!(stage.shell("git log -1 --format=%s"), "second");
}

#[test]
fn a_local_directory_can_be_cloned_but_not_pushed_to() {
    let mut stage = Stage::new();
    let root = stage.directory.path().to_owned();
    for outside in ["", "/ada/..", "/ada/../..", "/nowhere"] {
        let body = json!({"url": format!("file://{}{outside}", root.display())});
        assert_eq!(stage.real.try_post("/v1/repos", &body), 400, "{outside}");
    }
    let mut socket = stage.work_on(&format!("file://{}/ada/other.git", root.display()));
    assert_eq!(stage.shell("cat README; echo; git log --format=%s; git fetch -q"), "other\nfirst");
    stage.shell("git commit -q --allow-empty -m change");
    let pushed = ask(&mut socket, &json!({"type": "git_push"}));
    assert_eq!(pushed["code"], "AUTH_FAILED", "{pushed}");
    let head = git(&root.join("ada/other.git"), &["log", "--format=%s", "-1", "main"]);
    assert_eq!(head, "first");
    let fetch = "git fetch -q 2>/dev/null && echo served || echo refused";
    let alternates = root.join("ada/other.git/objects/info/alternates");
    std::fs::create_dir_all(root.join("secret/objects")).unwrap();
    std::fs::write(&alternates, format!("{}\n", root.join("secret/objects").display())).unwrap();
    assert_eq!(stage.shell(fetch), "refused", "its alternates lead out of the roots");
    std::fs::remove_file(alternates).unwrap();
    assert_eq!(stage.shell(fetch), "served");
}

#[test]
fn a_pooled_agent_gets_its_repository_network_and_instructions() {
    let mut stage = Stage::with(&[("WARM_POOL_SIZE", "1")]);
    stage.set_token(Forge::TOKEN);
    let sandbox = waiting(&stage.real);
    let alone =
        stage.real.shell(&sandbox, "curl -sm 5 -o /dev/null -w '%{http_code}' http://example.com; true");
    assert_eq!(alone, "403", "a pooled sandbox has network access");
    let mut socket = stage.work();
    let info = stage.real.get(&format!("/proliferate/{}", stage.real.session));
    assert_eq!(info["sandboxId"], json!(sandbox));
    let log = stage.real.shell(&sandbox, "cat README; echo; git log --format=%s; git fetch -q");
    assert_eq!(log, "app\nfirst");
    stage.real.shell(&sandbox, "git commit -q --allow-empty -m second");
    let email = stage.real.get("/v1/members")["members"][0]["email"].clone();
    assert_eq!(json!(stage.real.shell(&sandbox, "git log -1 --format=%ae")), email);
    socket.prompt("what were you told?");
    assert_eq!(tokens(&socket.until_type("turn_complete")), "There is a repository.");
    // Stopping the session ends the pooled sandbox.
    stage.real.post(&format!("/proliferate/{}/stop", stage.real.session), &json!({}));
    assert!(!stage.real.sandboxes().contains(&sandbox), "a stopped session keeps its sandbox");
}
