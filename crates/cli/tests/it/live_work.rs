//! Work in the sandbox of a session from another machine: commands, files, differences and logs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::deadline::{Lines, finish, until};
use crate::harness::{Machine, ended};
use crate::remote::Laptop;
use crate::session::machine;

#[test]
fn commands_files_differences_and_logs_of_a_session_from_another_machine() {
    let machine = machine();
    let server = machine.serve();
    let laptop = Laptop::new();
    laptop.log_in(&machine, &server.url(""));
    let id = laptop.json(&["session", "new", "--title", "Work"])["id"].as_str().unwrap().to_owned();

    let ran = laptop.run(&["session", "exec", "Work", "--", "sh", "-c", "echo out; echo err >&2; exit 3"]);
    assert_eq!((ran.code, ran.out.as_str(), ran.err.as_str()), (3, "out\n", "err\n"));
    let fed = laptop.feed(&["session", "exec", &id, "--stdin", "--json", "--", "sort"], "b\na\n");
    let fed: Value = serde_json::from_str(&fed.out).unwrap();
    assert_eq!((&fed["exitCode"], &fed["stdout"]), (&0.into(), &"a\nb\n".into()));
    let slow = laptop.run(&["session", "exec", &id, "--timeout", "1", "--", "sleep", "60"]);
    assert_eq!(slow.code, 124, "{}", slow.err);
    let absent = laptop.run(&["session", "exec", &id, "--", "no-such-command"]);
    assert!(
        absent.code == 127 && absent.err.contains("no-such-command: command not found"),
        "{}",
        absent.err
    );
    let nothing = laptop.run(&["session", "diff", &id]);
    assert!(
        nothing.code == 0 && nothing.err.contains("has no repository"),
        "{} {}",
        nothing.out,
        nothing.err
    );
    let branch = laptop.run(&["session", "new", "--branch", "main"]);
    assert!(
        branch.code == 2 && branch.err.contains("belongs to a repository: name one with --repo"),
        "{}",
        branch.err
    );
    let outside = laptop.run(&["session", "exec", &id, "--cwd", "/etc", "--", "ls"]);
    assert!(outside.code == 1 && outside.err.contains("relative to the workspace"), "{}", outside.err);

    copy_files(&laptop, &id);
    compare_with_git(&laptop, &id);

    let log = laptop.run(&["session", "logs", &id]);
    assert_eq!(log.code, 0, "{}", log.err);
    let unknown = laptop.run(&["session", "logs", &id, "nothing"]);
    assert!(unknown.code == 1 && unknown.err.contains("agent"), "{}", unknown.err);

    let recorded = machine.run(&["audit", "tail", "--limit", "500", "--json"]).out;
    assert!(!recorded.contains("no-such-command"), "command lines may hold secrets");
    let recorded: Value = serde_json::from_str(&recorded).unwrap();
    let events: Vec<&Value> = recorded.as_array().unwrap().iter().map(|entry| &entry["event"]).collect();
    for (tool, outcome) in [("run_command", "success"), ("run_command", "failure"), ("write_file", "success")]
    {
        let is_call =
            |event: &&&Value| event["target"]["name"] == tool && event["action_type"] == "tool_call";
        let call = events.iter().filter(is_call).find(|event| event["outcome"] == outcome);
        let call = call.unwrap_or_else(|| panic!("no {outcome} of {tool}: {events:?}"));
        assert_eq!((&call["lane_id"], &call["case_id"]), (&"session.change".into(), &id.as_str().into()));
    }
    for operation in ["read_file", "list_files", "read_diff", "read_log"] {
        let is_read = |event: &&&Value| {
            event["target"]["name"] == "sandbox" && event["target"]["operation"] == operation
        };
        let read = events.iter().find(is_read);
        assert!(read.is_some_and(|read| read.to_string().contains(&id)), "no {operation}: {events:?}");
    }
    the_safety_lock_stops_work(&machine, &laptop, &id);
    assert_eq!(machine.run(&["audit", "verify"]).code, 0);
    laptop.json(&["session", "rm", &id]);
}

/// Expects the directory of [`copy_files`] on the laptop.
fn the_safety_lock_stops_work(machine: &Machine, laptop: &Laptop, id: &str) {
    const LOCKED_MESSAGE: &str = "the global safety lock is engaged";
    machine.json(&["policy", "lock", "--reason", "a drill"]);
    until("the safety lock to stop a command", || {
        let refused = laptop.run(&["session", "exec", id, "--", "touch", "late"]);
        refused.code == 1 && refused.err.contains(LOCKED_MESSAGE)
    });
    laptop.run(&["session", "exec", id, "--", "touch", "locked"]);
    let refused = laptop.run(&["session", "cp", "tree/run.sh", &format!("{id}:locked")]);
    assert!(refused.code == 1 && refused.err.contains(LOCKED_MESSAGE), "{}", refused.err);
    machine.json(&["policy", "unlock", "--reason", "over"]);
    until("the safety lock to be released", || laptop.run(&["session", "exec", id, "--", "true"]).code == 0);
    assert_eq!(laptop.run(&["session", "exec", id, "--", "test", "-e", "locked"]).code, 1, "it was written");
}

/// Copies a directory in and out, and tries to leave the workspace by paths and symlinks.
fn copy_files(laptop: &Laptop, id: &str) {
    let directory = laptop.home().join("tree");
    std::fs::create_dir_all(directory.join("sub")).unwrap();
    std::fs::write(directory.join("run.sh"), "#!/bin/sh\necho hi\n").unwrap();
    std::fs::set_permissions(directory.join("run.sh"), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    std::fs::write(directory.join("sub/data"), [0, 159, 255]).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", directory.join("link")).unwrap();
    let copied = laptop.run(&["session", "cp", "tree", "Work:"]);
    assert_eq!(copied.code, 0, "{}", copied.err);
    assert!(
        copied.out.contains("copied 2 files") && copied.err.contains("link is left out"),
        "{}",
        copied.err
    );
    assert_eq!(laptop.run(&["session", "exec", id, "--", "./tree/run.sh"]).out, "hi\n");
    let back = laptop.run(&["session", "cp", &format!("{id}:tree"), "back"]);
    assert_eq!(back.code, 0, "{}", back.err);
    assert_eq!(std::fs::read(laptop.home().join("back/sub/data")).unwrap(), [0, 159, 255]);
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &laptop.home().join("back/run.sh").metadata().unwrap().permissions(),
    );
    assert_eq!(mode & 0o777, 0o755);

    laptop.run(&["session", "exec", id, "--", "ln", "-s", "/etc/passwd", "leak"]);
    laptop.run(&["session", "exec", id, "--", "ln", "-s", "/etc", "directory"]);
    for path in ["leak", "directory/passwd", "../workspace/leak", "/etc/passwd", "~/../x", "absent"] {
        let refused = laptop.run(&["session", "cp", &format!("{id}:{path}"), "stolen"]);
        assert_eq!(refused.code, 1, "{path}: {}", refused.out);
        assert!(!laptop.home().join("stolen").exists(), "{path}");
    }
    for path in ["../escape", "directory/x", "/tmp/x"] {
        let refused = laptop.run(&["session", "cp", "tree/run.sh", &format!("{id}:{path}")]);
        assert_eq!(refused.code, 1, "{path}: {}", refused.out);
    }
}

/// Expects the directory of [`copy_files`] in the workspace.
fn compare_with_git(laptop: &Laptop, id: &str) {
    assert_eq!(
        laptop.json(&["session", "diff", id])["repositories"],
        Value::Array(Vec::new()),
        "no repository yet"
    );
    let commit =
        "git init -q . && git add tree/run.sh && git -c user.name=a -c user.email=a@b commit -qm one";
    assert_eq!(laptop.run(&["session", "exec", id, "--", "sh", "-c", commit]).code, 0);
    let change = "echo more >> tree/run.sh && echo new > fresh && git status --porcelain > ~/before";
    assert_eq!(laptop.run(&["session", "exec", id, "--", "sh", "-c", change]).code, 0);
    let diff = laptop.run(&["session", "diff", id]);
    assert!(diff.out.contains("+more\n") && diff.out.contains("b/fresh"), "{}{}", diff.out, diff.err);
    let same = "git status --porcelain | cmp - ~/before";
    assert_eq!(
        laptop.run(&["session", "exec", id, "--", "sh", "-c", same]).code,
        0,
        "the index is unchanged"
    );
    let wrong = laptop.run(&["session", "diff", id, "--base", "--output=x"]);
    assert_ne!(wrong.code, 0);
}

#[test]
fn a_command_ends_with_the_key_that_started_it() {
    let machine = machine();
    let server = machine.serve();
    let laptop = Laptop::new();
    laptop.log_in(&machine, &server.url(""));
    let id = laptop.json(&["session", "new"])["id"].as_str().unwrap().to_owned();
    let mut exec =
        laptop.command(&["session", "exec", &id, "--", "sh", "-c", "echo started; exec sleep 3000"]);
    let mut child = exec.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let line = Lines::of(child.stdout.take().unwrap()).next();
    assert_eq!(line.as_deref(), Some("started"));
    machine.run(&["keys", "revoke", "laptop"]);
    let done = ended(&finish("the command", child));
    assert!(done.code == 1 && done.err.contains("credential"), "{} {}", done.code, done.err);
    until("the command to end", || {
        machine.run(&["session", "exec", &id, "--", "pgrep", "-f", "sleep 3000"]).code == 1
    });
    machine.json(&["session", "rm", &id]);
}

/// A bare repository with the branches `main` and `feature`, whose READMEs name them.
fn repository(root: &Path) -> PathBuf {
    let script = "git init -q -b main work && cd work && git config user.name a && git config user.email a@b && \
        echo main > README && git add README && git commit -qm main && git checkout -qb feature && \
        echo feature > README && git commit -qam feature && git checkout -q main && cd .. && \
        git clone -q --bare work app.git";
    let done = Command::new("sh").args(["-ec", script]).current_dir(root).status().unwrap();
    assert!(done.success());
    root.join("app.git")
}

#[test]
fn a_session_starts_from_a_repository_and_a_branch() {
    let directory = tempfile::tempdir().unwrap();
    let repo = repository(directory.path()).display().to_string();
    let machine = machine().with("WORKSPACE_LOCAL_ROOTS", &directory.path().display().to_string());
    let _server = machine.serve();
    let id = |made: Value| made["id"].as_str().unwrap().to_owned();
    let first = id(machine.json(&["session", "new", "--repo", &repo, "--branch", "feature"]));
    assert_eq!(machine.run(&["session", "exec", &first, "--", "cat", "README"]).out, "feature\n");
    let branch = machine.run(&["session", "exec", &first, "--", "git", "branch", "--show-current"]);
    assert_eq!(branch.out, "feature\n", "{}", branch.err);
    let unchanged = machine.run(&["session", "diff", &first]);
    assert!(unchanged.out.is_empty() && unchanged.err.contains("no changes"), "{}", unchanged.err);
    let silent = machine.run(&["session", "show", &first]);
    assert!(silent.out.is_empty() && silent.err.contains("nobody has said anything"), "{}", silent.err);
    let second = id(machine.json(&["session", "new", "--repo", "app"]));
    assert_eq!(machine.run(&["session", "exec", &second, "--", "cat", "README"]).out, "main\n");
    assert_eq!(machine.json(&["repos", "ls"]).as_array().unwrap().len(), 1, "the repository is added once");
    assert_eq!(
        machine.json(&["configurations", "ls"]).as_array().unwrap().len(),
        1,
        "and so is its configuration"
    );
    let absent = machine.run(&["session", "new", "--repo", "app", "--branch", "nowhere"]);
    assert!(absent.code == 1 && absent.err.contains("cannot be checked out"), "{}", absent.err);
    let left = absent.err.split("session rm ").nth(1).unwrap().split('`').next().unwrap().to_owned();
    machine.json(&["session", "rm", &left]);
    let option = machine.run(&["session", "new", "--repo", "app", "--branch=--upload-pack=x"]);
    assert_eq!(option.code, 2, "{}", option.err);
    assert_eq!(machine.run(&["session", "new", "--repo", "unknown"]).code, 1);
    machine.json(&["session", "rm", &first, &second]);
}

#[test]
fn a_session_gets_variables_of_its_caller_and_no_other_session_does() {
    let machine = machine();
    let server = machine.serve();
    let laptop = Laptop::new();
    laptop.log_in(&machine, &server.url(""));
    let new = ["session", "new", "--env", "MINE", "--env-file", "-", "--json"];
    let mut command = laptop.command(&new);
    command.env("MINE", "canary-of-mine");
    let made = crate::harness::feed(command, "OTHER='two words'\nMINE=overridden\n");
    assert_eq!(made.code, 0, "{}", made.err);
    assert!(!format!("{}{}", made.out, made.err).contains("canary"), "{}", made.out);
    let made: Value = serde_json::from_str(&made.out).unwrap();
    let id = made["id"].as_str().unwrap();
    let show = ["session", "exec", id, "--", "cat", "/tmp/.proliferate_env.json"];
    assert_eq!(laptop.run(&show).out, r#"{"MINE":"canary-of-mine","OTHER":"two words"}"#);
    let other = laptop.json(&["session", "new"])["id"].as_str().unwrap().to_owned();
    let none = laptop.run(&["session", "exec", &other, "--", "ls", "/tmp/.proliferate_env.json"]);
    assert_ne!(none.code, 0, "{}", none.out);

    for (wrong, reason) in [
        (&["--env", "MINE=value"][..], "only the name"),
        (&["--env", "ABSENT"], "no such variable"),
        (&["--env-file", "absent.env"], "cannot read absent.env"),
    ] {
        let refused = laptop.run(&[&["session", "new"], wrong].concat());
        assert!(refused.code == 2 && refused.err.contains(reason), "{wrong:?}: {}", refused.err);
    }
    let broken = laptop.feed(&["session", "new", "--env-file", "-"], "no pair hunter2\n");
    assert!(broken.code == 2 && !broken.err.contains("hunter2"), "{}", broken.err);
    assert_eq!(
        laptop.json(&["session", "ls"]).as_array().unwrap().len(),
        2,
        "nothing is made before the check"
    );

    let start = [
        "session",
        "exec",
        id,
        "--",
        "proliferate",
        "services",
        "start",
        "--name",
        "web",
        "--command",
        "sleep 999",
    ];
    assert_eq!(laptop.run(&start).code, 0);
    let services = laptop.json(&["session", "services", id]);
    assert_eq!(
        (&services["services"][0]["name"], &services["services"][0]["status"]),
        (&"web".into(), &"running".into())
    );
    let table = laptop.run(&["session", "services", id]).out;
    assert!(table.contains("STATUS") && table.contains("sleep 999"), "{table}");
    assert_eq!(laptop.run(&["session", "logs", id, "web"]).code, 0);
    laptop.json(&["session", "rm", id, &other]);
}
