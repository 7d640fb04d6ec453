//! Work in a real sandbox besides the agent's: snapshots are saved and restored, and services are tested.

use serde_json::{Value, json};

use crate::live::{Real, Watching, tokens};

fn running(real: &Real) -> Watching {
    let mut socket = real.watch("");
    socket.until(|frame| frame["type"] == "status" && frame["payload"]["status"] == "running");
    socket
}

#[test]
fn saved_files_are_restored_in_another_session_and_after_a_stop() {
    let mut real = Real::start();
    let mut socket = running(&real);
    real.shell(&real.session, "echo precious > file && mkdir -p deep/er && ln -s ../file deep/link");
    socket.say(&json!({"type": "save_snapshot"}));
    let saved = socket.until_type("snapshot_result").pop().unwrap()["payload"].clone();
    assert_eq!((&saved["success"], &saved["target"]), (&json!(true), &json!("session")), "{saved}");
    real.shell(&real.session, "echo changed > file");

    let first = real.session.clone();
    real.new_session(&json!({"snapshotId": saved["snapshotId"]}));
    let mut second = running(&real);
    assert_eq!(real.shell(&real.session, "cat deep/link"), "precious");
    second.prompt("hello");
    second.until_type("turn_complete");
    real.post(&format!("/proliferate/{}/stop", real.session), &json!({}));

    // The first session continues with the files that it had when it was stopped.
    real.session = first;
    real.post(&format!("/proliferate/{}/stop", real.session), &json!({}));
    assert_eq!(real.sandboxes(), [""; 0], "a stopped session keeps a sandbox");
    let mut socket = real.watch("");
    socket.prompt("wake up");
    socket.until_type("turn_complete");
    assert_eq!(real.shell(&real.sandbox(), "cat file"), "changed");
}

#[test]
fn a_session_keeps_its_last_five_snapshots() {
    let real = Real::start();
    let mut socket = running(&real);
    let copies = real.machine.data_dir().join("sandboxes/snapshots");
    let copies =
        || std::fs::read_dir(&copies).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
    for times in 1..=7 {
        socket.say(&json!({"type": "save_snapshot"}));
        let saved = socket.until_type("snapshot_result").pop().unwrap()["payload"].clone();
        let copies = copies();
        assert_eq!(copies.len(), times.min(5), "{saved}");
        assert!(copies.iter().any(|copy| *copy == *saved["snapshotId"].as_str().unwrap()), "{saved}");
    }
}

#[test]
fn metrics_are_not_served_inside_sandboxes() {
    let real = Real::start();
    let _socket = running(&real);
    let ask = |path: &str| {
        let script = format!(
            "perl -MIO::Socket::INET -e '$s = IO::Socket::INET->new(q(127.0.0.1:4098)) or die; \
            print $s qq(GET {path} HTTP/1.1\\r\\nhost: x\\r\\nconnection: close\\r\\n\\r\\n); print scalar <$s>'"
        );
        real.shell(&real.session, &script)
    };
    assert!(ask("/health").contains(" 200 "));
    assert!(ask("/metrics").contains(" 404 "));
}

const ENV_FILES: &str = r#"UPDATE configurations SET env_files = '[
    {"workspacePath":".","path":"app/.env.local","mode":"secret","keys":[{"key":"API_KEY"}]},
    {"workspacePath":".","path":"app/.env.shared","mode":"plain","keys":[]}]'"#;

#[test]
fn a_snapshot_has_neither_submitted_values_nor_our_credentials_and_nobody_misses_them() {
    let mut real = Real::serving(&[("WARM_POOL_SIZE", "0")]);
    let made = real.post("/v1/configurations", &json!({"name": "app", "repos": []}));
    real.new_session(&json!({"configurationId": made["id"]}));
    let mut socket = running(&real);
    real.sql(ENV_FILES);
    real.shell(
        &real.session,
        "mkdir app; echo API_KEY=submitted-0123456789 > app/.env.local; echo PLAIN=1 > app/.env.shared",
    );
    let token = real.shell(&real.session, "echo $SANDBOX_MCP_AUTH_TOKEN");
    assert!(token.starts_with("pls_"), "{token}");
    socket.prompt("hello");
    socket.until_type("turn_complete");
    socket.say(&json!({"type": "save_snapshot"}));
    let saved = socket.until_type("snapshot_result").pop().unwrap()["payload"].clone();
    assert_eq!(saved["success"], true, "{saved}");
    // The running sandbox keeps its secrets; only the snapshot omits them.
    assert_eq!(real.shell(&real.session, "cat app/.env.local"), "API_KEY=submitted-0123456789");
    assert_eq!(real.shell(&real.session, "grep -rlF pls_ ~/.proliferate | wc -l"), "3");

    let copies = real.machine.data_dir().join("sandboxes/snapshots");
    let found = |words: &str| {
        let found = std::process::Command::new("grep").args(["-rlF", words]).arg(&copies).output().unwrap();
        String::from_utf8(found.stdout).unwrap()
    };
    assert!(found("PLAIN=1").contains("app/.env.shared"), "the copy is not where it is looked for");
    assert_eq!((found("submitted-0123456789"), found(&token)), (String::new(), String::new()));

    real.new_session(&json!({"snapshotId": saved["snapshotId"]}));
    let mut second = running(&real);
    assert_eq!(real.shell(&real.session, "ls -A app"), ".env.shared");
    second.prompt("hello");
    assert_eq!(tokens(&second.until_type("turn_complete")), "You said: hello");
}

#[test]
fn services_are_tested_and_started_in_their_directories() {
    let real = Real::start();
    let mut socket = running(&real);
    real.shell(&real.session, "mkdir -p app");
    let mut run = |more: Value| {
        let mut message = json!({"type": "run_auto_start", "runId": "r"});
        message.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        socket.say(&message);
        let output = socket.until_type("auto_start_output").pop().unwrap()["payload"].clone();
        assert_eq!(output["runId"], "r");
        output["entries"].as_array().unwrap().clone()
    };
    assert_eq!(run(json!({})), Vec::<Value>::new(), "there is nothing to start");
    let entries = run(json!({"commands": [
        {"name": "where", "command": "pwd; echo oops >&2; exit 3", "workspacePath": "app"},
        {"name": "much", "command": "head -c 100000 /dev/zero | tr '\\0' x"},
        {"name": "out", "command": "true", "cwd": "../.."},
    ]}));
    assert_eq!(entries.len(), 3);
    assert_eq!((&entries[0]["name"], &entries[0]["exitCode"]), (&json!("where"), &json!(3)));
    assert_eq!(entries[0]["output"], "/home/user/workspace/app\noops\n");
    assert_eq!(entries[0]["workspacePath"], "app");
    let much = entries[1]["output"].as_str().unwrap();
    assert!(much.len() < 17_000 && much.ends_with("[output cut off]"), "{}", much.len());
    assert_eq!(entries[2]["exitCode"], 1, "outside of the workspace: {}", entries[2]);
    let started = run(json!({"mode": "start", "commands": [
        {"name": "web server", "command": "echo up > app/up; exec sleep 1000"},
    ]}));
    assert_eq!(started[0]["exitCode"], Value::Null, "{}", started[0]);
    let up = "until [ -e app/up ] && pgrep -x sleep >/dev/null; do sleep 0.05; done; pgrep -xc sleep";
    assert_eq!(real.shell(&real.session, up), "1");
    let many: Vec<Value> = (0..11).map(|_| json!({"name": "n", "command": "true"})).collect();
    assert_eq!(run(json!({ "commands": many }))[0]["name"], "Error");
}
