//! The real agent fails: not installed, or killed during a turn. Everyone learns why, and what can continue does.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::json;

use crate::deadline::until;
use crate::harness::Machine;
use crate::live::{Real, outcome, tokens};

#[test]
fn an_agent_that_is_not_installed_is_named_with_its_remedy_to_everyone() {
    let path = crate::harness::path();
    let without: Vec<_> =
        path.split(':').filter(|directory| !Path::new(directory).join("opencode").exists()).collect();
    let alone = tempfile::tempdir().unwrap();
    let machine = Machine::new().moved_to(alone.path());
    let mut real = Real::on(machine, &[("PATH", &without.join(":")), ("WARM_POOL_SIZE", "0")]);
    real.new_session(&json!({}));
    let mut sockets = [real.watch(""), real.watch("")];
    for socket in &mut sockets {
        let error = socket.until_type("error").pop().unwrap();
        let reason = error["payload"]["message"].as_str().unwrap();
        assert!(reason.contains("is not installed on this machine: run `make up`"), "{reason}");
    }
    failed(&real);
    assert_eq!(real.sandboxes(), [""; 0], "a sandbox was left behind");
}

#[test]
fn an_agent_that_keeps_exiting_fails_and_clients_get_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("opencode");
    std::fs::write(&program, "#!/bin/sh\nexit 7\n").unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", directory.path().display(), crate::harness::path());
    let mut real = Real::serving(&[("PATH", &path), ("WARM_POOL_SIZE", "0")]);
    real.new_session(&json!({}));
    for mut socket in [real.watch(""), real.watch("")] {
        let error = socket.until_type("error").pop().unwrap();
        let reason = error["payload"]["message"].as_str().unwrap();
        assert!(reason.contains("ends as soon as it is started (exit code 7)"), "{reason}");
    }
    failed(&real);
    // The session has released its sandbox, so its processes are ended. Its files are kept.
    until("the sandbox to end", || real.machine.json(&["sandbox", "ls"])[0]["state"] == "dead");
}

/// Waits until the session has failed, and checks its reason.
fn failed(real: &Real) {
    let path = format!("/proliferate/sessions/{}/status", real.session);
    until("the session to fail", || real.get(&path)["status"] == "failed");
    let status = real.get(&path);
    let reason = status["reason"].as_str().unwrap();
    let told = |args: &[&str]| real.machine.run(args).out;
    let shown = told(&["session", "show", &real.session]);
    assert!(shown.contains(&format!("failed: {reason}")), "{shown}");
    let beginning: String = reason.chars().take(40).collect();
    assert!(
        told(&["session", "ls"]).contains(&format!("failed: {beginning}")),
        "{}",
        told(&["session", "ls"])
    );
}

#[test]
fn an_agent_killed_during_a_turn_keeps_its_text_and_restarts() {
    let real = Real::start();
    let mut socket = real.watch("");
    socket.prompt("count");
    let before = tokens(&socket.some_tokens(5));
    let killed = "kill -9 $(ps -eo pid,args | awk '$2 == \"/opt/agent\" {print $1}') && echo killed";
    assert_eq!(real.shell(&real.session, killed), "killed");
    let frames = socket.until_type("turn_complete");
    assert_eq!(outcome(&frames), "error", "{:?}", frames.last());
    socket.prompt("still there?");
    let frames = socket.until_type("turn_complete");
    assert_eq!((outcome(&frames), tokens(&frames).as_str()), ("ok", "You said: still there?"));
    let init = real.watch("").until_type("init").pop().unwrap();
    let said = &init["payload"]["messages"][1];
    assert!(said["content"].as_str().unwrap().starts_with(&before), "{said}");
    assert_eq!(said["interrupted"], true, "{said}");
}
