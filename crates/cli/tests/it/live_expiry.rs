//! Real sandboxes that expire: the session continues in a new one with its files, and files that cannot be saved stay
//! where they are.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::deadline::until;
use crate::harness::{Machine, files_with};
use crate::live::{Real, Watching, outcome, tokens};
use crate::live_pool::waiting;

const SCRIPT: &str = r#"
[[rule]]
system = "title generator"
[[rule.step]]
text = "A title"

[[rule]]
when = "write it"
[[rule.step]]
tool = [{ name = "bash", input = { command = "echo precious > file", description = "Write" } }]
[[rule.step]]
text = "Done."

[[rule]]
when = "read it"
[[rule.step]]
tool = [{ name = "bash", input = { command = "cat file", description = "Read" } }]
[[rule.step]]
text = "It said: {tool_result}"

[[rule]]
when = "wait for ever"
[[rule.step]]
tool = [{ name = "bash", input = { command = "sleep 1000", description = "Wait" } }]
[[rule.step]]
text = "Never said."

[[rule]]
[[rule.step]]
text = "You said: {prompt}"
"#;

/// A session on a gateway with this sandbox lifetime in seconds.
pub(crate) fn lasting(seconds: &str) -> Real {
    lasting_with(seconds, "0")
}

/// Like [`lasting`], with this many sandboxes in the warm pool.
fn lasting_with(seconds: &str, pooled: &str) -> Real {
    let machine = Machine::new();
    let script = machine.file("expiry.toml");
    std::fs::write(&script, SCRIPT).unwrap();
    let script = ("PROLIFERATE_MODEL_SCRIPT", script.to_str().unwrap());
    let mut real =
        Real::on(machine, &[script, ("SANDBOX_LIFETIME_SECONDS", seconds), ("WARM_POOL_SIZE", pooled)]);
    real.new_session(&json!({}));
    real
}

pub(crate) fn says(socket: &mut Watching, status: &str) -> Vec<Value> {
    socket.until(|frame| frame["type"] == "status" && frame["payload"]["status"] == status)
}

/// Sends a prompt and returns the agent's answer.
pub(crate) fn answer(socket: &mut Watching, prompt: &str) -> String {
    socket.prompt(prompt);
    let frames = socket.until_type("turn_complete");
    assert_eq!(outcome(&frames), "ok", "{frames:?}");
    tokens(&frames)
}

pub(crate) fn info(real: &Real) -> Value {
    real.get(&format!("/proliferate/{}", real.session))
}

const EXPIRE_SANDBOXES_SQL: &str =
    "UPDATE sessions SET sandbox_expires_at = '2020-01-01T00:00:00.000000Z' WHERE sandbox_id IS NOT NULL";
/// The state that a gateway leaves when it dies after it has saved the files and before it has ended the sandbox.
const REPLACE_SANDBOXES_SQL: &str =
    "UPDATE sessions SET sandbox_id = sandbox_id || '-1', sandbox_expires_at = NULL";
/// Selects the agent's own id of the session.
const AGENT_SESSION_ID_SQL: &str = "SELECT agent_session_id FROM sessions";
const ENV_FILES: &str = r#"UPDATE configurations SET env_files =
    '[{"workspacePath":".","path":".env","mode":"secret","keys":[{"key":"API_KEY"}]}]'"#;

#[test]
fn a_session_that_is_watched_moves_with_its_files_memory_and_prompts() {
    let real = lasting("8");
    let mut socket = real.watch("");
    answer(&mut socket, "please write it");
    let known = real.sql(AGENT_SESSION_ID_SQL);
    let moving = says(&mut socket, "migrating").pop().unwrap();
    assert_eq!(moving["payload"]["message"], "Extending session...");
    socket.prompt("please read it");
    let mut frames = says(&mut socket, "running");
    frames.extend(socket.until_type("turn_complete"));
    assert!(tokens(&frames).contains("precious"), "{frames:?}");
    assert!(frames.iter().all(|frame| frame["type"] != "error"), "{frames:?}");
    assert!(!real.sandboxes().contains(&real.session), "the old one was not ended");
    let saved = real.get(&format!("/v1/audit/events?case_id={}&limit=1000", real.session));
    let saved = saved["events"].as_array().unwrap().iter().filter(|event| event["role_id"] == "SYSTEM");
    let saved: Vec<_> = saved.map(|event| [&event["action_type"], &event["outcome"]]).collect();
    assert_eq!(saved[..2], [["authz_decision", "allow"], ["tool_call", "success"]], "{saved:?}");
    assert_eq!(
        (known.is_some(), real.sql(AGENT_SESSION_ID_SQL)),
        (true, known),
        "the agent does not remember the session"
    );
}

#[test]
fn a_turn_that_does_not_end_in_time_is_cancelled() {
    let real = lasting("5");
    let mut socket = real.watch("");
    socket.prompt("wait for ever");
    let frames = socket.until_type("turn_complete");
    assert_eq!(outcome(&frames), "cancelled", "{frames:?}");
    let at = |wanted: &dyn Fn(&Value) -> bool| frames.iter().position(wanted).unwrap();
    let moving = at(&|frame| frame["payload"]["status"] == "migrating");
    assert!(moving < at(&|frame| frame["type"] == "message_cancelled"), "{frames:?}");
    says(&mut socket, "running");
    assert_eq!(answer(&mut socket, "hello"), "You said: hello");
}

#[test]
fn an_expired_sandbox_is_saved_after_a_crash_and_restarts_with_its_files() {
    let mut real = lasting("3600");
    let made = real.post("/v1/configurations", &json!({"name": "app", "repos": []}));
    real.new_session(&json!({"configurationId": made["id"]}));
    real.sql(ENV_FILES);
    let service = real.machine.run(&["token", "service", "--name", "worker"]).out.trim().to_owned();
    let woken =
        real.server().post(&format!("/proliferate/{}/eager-start", real.session), &service, &json!({}));
    assert_eq!(woken.0, 202, "{}", woken.1);
    until("the session to run", || info(&real)["status"] == "running");
    assert!(info(&real)["expiresAt"].is_number());
    real.shell(&real.session, "echo precious > file; echo API_KEY=submitted-0123456789 > .env");
    real.sql(EXPIRE_SANDBOXES_SQL);
    real.kill_and_start();
    until("the session to pause", || info(&real)["status"] == "paused");
    assert_eq!((real.sandboxes(), &info(&real)["expiresAt"]), (Vec::new(), &Value::Null));
    let copies = real.machine.data_dir().join("sandboxes/snapshots");
    assert!(!files_with(&copies, b"precious").is_empty(), "the copy is not where it is looked for");
    for secret in ["submitted-0123456789", "pls_"] {
        assert!(files_with(&copies, secret.as_bytes()).is_empty(), "the copy has {secret}");
    }
    let mut socket = real.watch("");
    assert!(answer(&mut socket, "please read it").contains("precious"));
    assert!(info(&real)["expiresAt"].is_number());
}

#[test]
fn a_retired_sandbox_is_ended_by_the_next_start() {
    let mut real = lasting("3600");
    says(&mut real.watch(""), "running");
    real.server.take().unwrap().kill();
    assert_eq!(real.sandboxes(), [real.session.clone()]);
    real.sql(REPLACE_SANDBOXES_SQL);
    real.server = Some(real.machine.serve());
    until("the sandbox to end", || real.sandboxes().is_empty());
}

#[test]
fn a_session_whose_sandbox_is_gone_restarts_without_it() {
    let mut real = lasting("3600");
    says(&mut real.watch(""), "running");
    real.server.take().unwrap().kill();
    assert_eq!(real.machine.run(&["sandbox", "rm", &real.session]).code, 0);
    real.sql(EXPIRE_SANDBOXES_SQL);
    real.server = Some(real.machine.serve());
    until("the session to pause", || info(&real)["status"] == "paused");
    // The sandbox may be on another machine, and nothing shows that its files were saved, so its id is kept.
    let now = info(&real);
    assert_eq!((&now["expiresAt"], &now["sandboxId"]), (&Value::Null, &json!(real.session)));
    assert_eq!(answer(&mut real.watch(""), "hello"), "You said: hello");
}

#[test]
fn a_pooled_sandbox_keeps_running_like_any_other() {
    let mut real = lasting_with("3600", "1");
    let pooled = waiting(&real);
    answer(&mut real.watch(""), "please write it");
    assert_eq!(info(&real)["sandboxId"], json!(pooled));
    real.sql(EXPIRE_SANDBOXES_SQL);
    real.kill_and_start();
    until("the pooled sandbox to end", || !real.sandboxes().contains(&pooled));
    assert!(answer(&mut real.watch(""), "please read it").contains("precious"));
    let now = info(&real)["sandboxId"].as_str().unwrap().to_owned();
    assert!(now.starts_with(&real.session) && now != real.session, "{now}");
}

/// A file in place of a directory, so that writing to the directory fails.
pub(crate) struct InTheWay(PathBuf);

impl InTheWay {
    pub(crate) fn of(directory: PathBuf) -> Self {
        std::fs::remove_dir(&directory).unwrap();
        std::fs::write(&directory, "").unwrap();
        Self(directory)
    }
}

impl Drop for InTheWay {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
        std::fs::create_dir(&self.0).unwrap();
    }
}

#[test]
fn a_sandbox_that_cannot_be_saved_keeps_running_and_clients_are_notified() {
    let mut real = lasting("5");
    let in_the_way = InTheWay::of(real.machine.data_dir().join("sandboxes/snapshots"));
    let mut socket = real.watch("");
    answer(&mut socket, "please write it");
    says(&mut socket, "migrating");
    let told = socket.until(|frame| frame["type"] == "error" || frame["payload"]["status"] == "running");
    let told = told.last().unwrap()["payload"]["message"].as_str().unwrap_or_default();
    assert!(told.starts_with("The session could not be saved: ") && told.contains("in 5 minutes"), "{told}");
    says(&mut socket, "running");
    assert!(answer(&mut socket, "please read it").contains("precious"));
    drop(in_the_way);
    assert_eq!(real.sandboxes(), [real.session.clone()]);

    real.sql(EXPIRE_SANDBOXES_SQL);
    real.kill_and_start();
    let mut socket = real.watch("");
    assert!(answer(&mut socket, "please read it").contains("precious"));
    until("the next try", || !real.sandboxes().contains(&real.session));
}
