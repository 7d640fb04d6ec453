//! The guide to actions in real workspaces, and people who watch what waits for them.

use std::process::Stdio;

use serde_json::{Value, json};

use crate::deadline::Lines;
use crate::live_actions::Acting;
use crate::live_environment::running;
use crate::session::machine;

#[test]
fn the_inbox_is_watched_on_the_command_line() {
    let mut acting = Acting::start();
    acting.real.new_session(&json!({}));
    let _socket = running(&acting.real);
    let machine = &acting.real.machine;
    let mut watch = machine.command(&["inbox", "--watch", "--json"]);
    let mut watch = watch.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = Lines::of(watch.stdout.take().unwrap());
    let mut next = || serde_json::from_str::<Value>(&lines.next().unwrap()).unwrap()["invocationId"].clone();
    let id = acting.request();
    assert_eq!(next(), json!(id));
    assert_eq!(machine.run(&["approvals", "deny", &id]).code, 0);
    let second = acting.request();
    assert_eq!(next(), json!(second), "each is printed once, as it appears");
    watch.kill().unwrap();
    watch.wait().unwrap();
}

/// A bare repository; with `own`, it has a guide and a `.gitignore` of its own where ours would be.
fn repository(root: &std::path::Path, own: bool) -> String {
    let own = if own {
        "mkdir .proliferate && echo theirs > .proliferate/actions-guide.md && \
        echo '*.log' > .proliferate/.gitignore && "
    } else {
        ""
    };
    let script = format!(
        "git init -q -b main work && cd work && git config user.name a && git config user.email a@b && \
        echo hi > README && {own}git add -A && git commit -qm main && cd .. && git clone -q --bare work app.git"
    );
    let done = std::process::Command::new("sh").args(["-ec", &script]).current_dir(root).status().unwrap();
    assert!(done.success());
    root.join("app.git").display().to_string()
}

#[test]
fn the_guide_to_actions_is_in_every_workspace_and_no_commit() {
    for own in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let repo = repository(directory.path(), own);
        let machine = machine().with("WORKSPACE_LOCAL_ROOTS", &directory.path().display().to_string());
        let machine = machine.with("WARM_POOL_SIZE", "0");
        let _server = machine.serve();
        let made = machine.json(&["session", "new", "--repo", &repo]);
        let id = made["id"].as_str().unwrap();
        let sh = |script: &str| machine.run(&["session", "exec", id, "--", "sh", "-c", script]).out;
        let guide = "cat .proliferate/actions-guide.md";
        if own {
            assert_eq!(sh(guide), "theirs\n", "a file of the repository stays as it is");
            assert_eq!(sh("git status --porcelain"), "");
            continue;
        }
        assert!(sh(guide).contains("proliferate actions run --integration NAME"), "{}", sh(guide));
        sh("mkdir .proliferate/.verification && echo ok > .proliferate/.verification/test.log");
        assert_eq!(sh("git status --porcelain --untracked-files=all; git add -A; git diff --cached"), "");
        assert_eq!(
            sh("git status --porcelain --ignored"),
            "!! .proliferate/\n",
            "and nothing else is ignored"
        );
        assert_eq!(sh("cat .git/info/exclude | grep -c proliferate"), "0\n");
        assert_eq!(machine.run(&["session", "diff", id]).out, "");

        // A sandbox that is restored has the guide as it is now.
        sh("echo '<!-- Written by Proliferate whenever this sandbox starts. Changes are lost. -->' > \
            .proliferate/actions-guide.md");
        assert_eq!(machine.run(&["session", "stop", id]).code, 0);
        assert_eq!(machine.run(&["session", "prompt", id, "wake up"]).code, 0);
        assert!(sh(guide).contains("proliferate actions list"), "{}", sh(guide));
        assert_eq!(sh("git status --porcelain --untracked-files=all"), "");
    }
}
