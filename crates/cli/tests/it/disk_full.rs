//! A gateway whose own disk is full: it reports the problem, still serves reads, and resumes by itself once there is
//! space.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::deadline::until;
use crate::live::{Real, Watching};
use crate::live_crash::Stage;

/// A file that marks the small disk, which is mounted for a child process.
const MARKER_FILE: &str = "small-disk";
const MOUNT_SCRIPT: &str = r#"mount -t tmpfs -o size=32m tmpfs "$1"; touch "$1/$2"; export TMPDIR="$1"
    exec "$3" --exact disk_full::on_a_small_disk --nocapture"#;

#[test]
fn a_full_disk_is_reported_and_the_conversation_is_served() {
    let directory = tempfile::tempdir().unwrap();
    // Use a separate mount namespace, so that a failing test leaves no mount behind.
    let flags = if rustix::process::geteuid().is_root() { "-m" } else { "-rm" };
    let mut unshare = Command::new("unshare");
    unshare.args([flags, "sh", "-ec", MOUNT_SCRIPT, "sh"]).arg(directory.path()).arg(MARKER_FILE);
    let ran = unshare.arg(std::env::current_exe().unwrap()).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() && said.contains("it went on"), "{said}");
}

/// The child process of the test above; does nothing unless it runs on the small disk.
#[test]
fn on_a_small_disk() {
    let disk = std::env::temp_dir();
    if !disk.join(MARKER_FILE).exists() {
        return;
    }
    let mut stage = Stage::start(None);
    stage.agent.behave(|manner| manner.echoes = true);
    let real = &mut stage.real;
    real.new_session(&json!({}));
    let mut socket = real.watch("");
    socket.prompt("before");
    socket.until_type("turn_complete");
    assert_eq!(disk_check(real), (200, json!(true)));
    let filler = fill(&disk);
    assert_eq!(disk_check(real), (503, json!(false)));
    told_and_served(real, socket, &filler);
    println!("it went on");
}

fn fill(disk: &Path) -> PathBuf {
    let filler = disk.join("filler");
    let full =
        std::io::copy(&mut std::io::repeat(0), &mut std::fs::File::create(&filler).unwrap()).unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    filler
}

/// Checks that watchers learn why the session ends, and that clients that reconnect or join can stay until it resumes.
fn told_and_served(real: &Real, mut socket: Watching, filler: &Path) {
    socket.prompt(&"too much ".repeat(100_000));
    while socket.next().is_some() {}
    assert_eq!(socket.closed, Some((1013, "The gateway's disk is full".to_owned())));
    let mut socket = real.watch("");
    let frames = read_refusals(&mut socket);
    let init = frames.iter().find(|frame| frame["type"] == "init").unwrap();
    assert_eq!(init["payload"]["messages"][1]["content"], "echo: before", "{init}");
    let reason = &frames.iter().find(|frame| frame["type"] == "error").unwrap()["payload"]["message"];
    assert!(reason.as_str().unwrap().contains("disk is full"), "{reason}");
    let mut again = real.watch(&format!("&since={}", init["seq"]));
    assert!(read_refusals(&mut again).iter().all(|frame| frame["type"] != "init"), "it has the conversation");
    socket.prompt("now");
    assert_eq!(socket.until_type("error").pop().unwrap()["payload"]["message"], *reason);
    socket.say(&json!({"type": "ping"}));
    socket.until_type("pong");
    let path = format!("/proliferate/{}/message", real.session);
    assert_eq!(real.try_post(&path, &json!({"type": "prompt", "content": "x"})), 503);
    std::fs::remove_file(filler).unwrap();
    until("the disk to have space", || disk_check(real) == (200, json!(true)));
    for socket in [&mut socket, &mut again] {
        socket.until(|frame| frame["type"] == "status" && frame["payload"]["status"] == "running");
    }
    socket.prompt("after");
    again.until(|frame| frame["payload"]["token"] == "echo: after");
}

/// The status of `/ready`, and the result of its disk check.
fn disk_check(real: &Real) -> (u16, Value) {
    let (status, ready) = real.server().get("/ready", "");
    let check = ready["checks"].as_array().unwrap().iter().find(|check| check["name"] == "disk");
    (status, check.unwrap_or_else(|| panic!("{ready}"))["ok"].clone())
}

/// The frames that a client receives when it connects while the disk is full.
fn read_refusals(socket: &mut Watching) -> Vec<Value> {
    socket.until(|frame| frame["type"] == "status" && frame["payload"]["status"] == "error")
}
