//! The first impression: help texts and `doctor`.

use crate::harness::Machine;

#[test]
fn help_names_every_command_and_the_exit_codes() {
    let help = Machine::new().run(&["--help"]);
    assert_eq!(help.code, 0);
    for word in [
        "up",
        "serve",
        "session",
        "repos",
        "configurations",
        "connectors",
        "databases",
        "integrations",
        "approvals",
        "usage",
        "login",
        "logout",
        "approve-login",
        "context",
        "doctor",
        "token",
        "users",
        "keys",
        "orgs",
        "secrets",
        "db",
        "completions",
        "Exit codes",
    ] {
        assert!(help.out.contains(word), "{word} is not in:\n{}", help.out);
    }
}

#[test]
fn wrong_usage_is_exit_code_2_and_a_hint() {
    let ended = Machine::new().run(&["usres", "ls"]);
    assert_eq!(ended.code, 2);
    assert!(ended.err.contains("users"), "{}", ended.err);
}

#[test]
fn completions_are_generated_for_every_shell() {
    for shell in ["bash", "zsh", "fish"] {
        let ended = Machine::new().run(&["completions", shell]);
        assert_eq!(ended.code, 0);
        assert!(
            ended.out.contains("COMPLETE") && ended.out.contains("proliferate"),
            "{shell}: {}",
            ended.out
        );
    }
}

#[test]
fn the_help_of_policy_explain_names_the_built_in_roles() {
    let help = Machine::new().run(&["policy", "explain", "--help"]).out;
    let policy = policy::Policy::load(policy::Files::default()).unwrap();
    for role in policy.roles() {
        assert!(help.contains(&role.id), "{} is not in {help}", role.id);
    }
}

#[test]
fn doctor_checks_everything_and_says_how_to_fix_it() {
    let machine = Machine::new().with("PROLIFERATE_LISTEN", "127.0.0.1:0");
    let ended = machine.run(&["doctor", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let names: Vec<&str> = checks.iter().map(|check| check["name"].as_str().unwrap()).collect();
    for name in [
        "settings",
        "data dir",
        "disk space",
        "secrets",
        "policy",
        "checkpoints",
        "model script",
        "database",
        "model",
        "prices",
        "fair shares",
        "port",
        "isolation",
        "limits",
        "btrfs",
        "opencode",
        "browser",
        "git",
    ] {
        assert!(names.contains(&name), "{name} is not in {names:?}");
    }
    let failed = checks.iter().filter(|check| check["state"] == "failed").count();
    assert_eq!((report["ok"] == true, ended.code == 0), (failed == 0, failed == 0));
    for check in checks.iter().filter(|check| check["state"] != "ok") {
        assert!(!check["remedy"].as_str().unwrap().is_empty(), "no remedy in {check}");
    }
    // Disk limits are always soft; which of the others are soft depends on the host.
    let limits = checks.iter().find(|check| check["name"] == "limits").unwrap();
    let soft = limits["detail"].as_str().unwrap().split("soft: ").nth(1).unwrap();
    assert!(soft.split(';').next().unwrap().contains("disk"), "{limits}");
    assert!(!machine.data_dir().exists(), "looking changes nothing");
}

#[test]
fn doctor_finds_what_is_broken() {
    let machine = Machine::new()
        .with("PATH", "/nonexistent")
        .with("DATABASE_URL", "postgres://u:hunter2@127.0.0.1:1/d")
        .with("ANTHROPIC_API_KEY", "sk-hunter2")
        .with("ANTHROPIC_BASE_URL", "http://127.0.0.1:1");
    let ended = machine.run(&["doctor"]);
    assert_eq!(ended.code, 1);
    for name in ["database", "model", "isolation", "git"] {
        let line = ended.out.lines().find(|line| line.contains(&format!("✗ {name}")));
        assert!(line.is_some(), "{name} is not failed in:\n{}", ended.out);
    }
    assert!(
        ended.out.contains("! prices"),
        "no model has a price, so budgets would refuse all:\n{}",
        ended.out
    );
    assert!(
        !ended.out.contains("hunter2") && !ended.err.contains("hunter2"),
        "a secret is shown:\n{}",
        ended.out
    );
}

#[test]
fn doctor_does_not_wait_for_a_pipe_in_the_policy_directory() {
    let machine = Machine::new();
    let directory = machine.file("policy");
    std::fs::create_dir(&directory).unwrap();
    let pipe = directory.join("lanes.yaml");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let machine = machine
        .with("PROLIFERATE_POLICY_DIR", &directory.display().to_string())
        .with("PROLIFERATE_MODEL_SCRIPT", &pipe.display().to_string());
    let ended = machine.run(&["doctor"]);
    for name in ["policy", "model script"] {
        let line = ended.out.lines().find(|line| line.contains(&format!("✗ {name}")));
        assert!(line.is_some_and(|line| line.contains("2 seconds")), "{name}: {}", ended.out);
    }
}

#[test]
fn an_empty_first_prompt_is_refused() {
    let ended = Machine::new().run(&[
        "session",
        "new",
        "--prompt",
        " ",
        "--url",
        "http://127.0.0.1:1",
        "--token",
        "t",
    ]);
    assert_eq!(ended.code, 2, "{}", ended.err);
    assert!(ended.err.contains("--prompt is empty"), "{}", ended.err);
}
