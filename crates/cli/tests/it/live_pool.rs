//! The warm pool of booted agents: who gets them, what they know, and how they end.

use serde_json::{Value, json};

use crate::deadline::until;
use crate::live::{Real, http, outcome, tokens};

/// Starts a server with a pool of one, and waits until the pool is full.
fn pooled() -> Real {
    let real = Real::serving(&[("WARM_POOL_SIZE", "1")]);
    waiting(&real);
    real
}

/// Waits until a sandbox is in the pool, and returns its id.
pub(crate) fn waiting(real: &Real) -> String {
    until("a sandbox to wait in the pool", || {
        let metrics = http().get(real.server().url("/metrics")).send().unwrap().text().unwrap();
        metrics.lines().any(|line| line == "proliferate_pool_waiting 1")
    });
    let taken = if real.session.is_empty() { Value::Null } else { sandbox_of(real) };
    let all = real.sandboxes();
    let mut free = all.into_iter().filter(|id| id.starts_with("pool-") && *id != taken);
    free.next().unwrap()
}

fn sandbox_of(real: &Real) -> Value {
    real.get(&format!("/proliferate/{}", real.session))["sandboxId"].clone()
}

fn stages(frames: &[Value]) -> Vec<&str> {
    let said = frames.iter().filter(|frame| frame["type"] == "status");
    said.filter_map(|frame| frame["payload"]["message"].as_str()).collect()
}

#[test]
fn a_new_session_takes_a_pooled_agent_for_itself() {
    let mut real = pooled();
    let sandbox = waiting(&real);
    let token = real.shell(&sandbox, "cat ../.proliferate/agent/model-key");
    assert_eq!(real.server().get("/v1/me", &token).0, 401, "a pooled token opens something");
    real.new_session(&json!({}));
    let mut socket = real.watch("");
    socket.prompt("please use bash");
    let frames = socket.until_type("turn_complete");
    assert_eq!(outcome(&frames), "ok", "{frames:?}");
    assert!(tokens(&frames).contains("from-42"), "{}", tokens(&frames));
    assert!(!stages(&frames).contains(&"Starting the sandbox"), "{frames:?}");
    assert_eq!(sandbox_of(&real), json!(sandbox));
    let (status, me) = real.server().get("/v1/me", &token);
    assert_eq!((status, &me["source"]), (200, &json!("sandbox")));

    let known = real.shell(&sandbox, "cat ../.proliferate/agent/session.json");
    let known: Value = serde_json::from_str(&known).unwrap();
    assert_eq!((&known["sessionId"], &known["token"]), (&json!(real.session), &json!(token)));
    // The search must not find itself, so no command line may contain the id in one piece.
    let (head, tail) = real.session.split_at(18);
    let baked = format!(
        "printf %s%s {head} {tail} > /tmp/wanted; \
         grep -lFf /tmp/wanted /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | wc -l"
    );
    assert_eq!(real.shell(&sandbox, &baked), "0", "a process was started with the session's id");
    let environ =
        format!("cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -c {}; true", real.session);
    assert_eq!(real.shell(&sandbox, &environ), "0", "a process has the session's id in its environment");
    socket.prompt("what were you told?");
    assert_eq!(tokens(&socket.until_type("turn_complete")), "There is none.");
    assert_ne!(waiting(&real), sandbox, "the pool is filled again");
}

/// A pooled agent was booted before anybody knew its session, and gets what the session's mode has afterwards.
#[test]
fn a_setup_session_that_takes_a_pooled_agent_has_its_environment_instructions_and_tools() {
    let mut real = pooled();
    let sandbox = waiting(&real);
    let configuration = real.post("/v1/configurations", &json!({"name": "app", "repos": []}))["id"].clone();
    let path = format!("/v1/configurations/{}", configuration.as_str().unwrap());
    let files = json!([{"path": ".env", "keys": [{"key": "API_KEY", "required": true}]}]);
    real.patch(&path, &json!({ "envFiles": files }));
    let put = real.machine.run(&["secrets", "set", "API_KEY", "canary-of-the-pool", "--purpose", "env"]);
    assert_eq!(put.code, 0, "{}", put.err);
    real.new_session(&json!({"sessionType": "setup", "configurationId": configuration}));
    let mut socket = real.watch("");
    socket.prompt("please save the commands");
    let frames = socket.until_type("turn_complete");
    assert!(tokens(&frames).contains("Saved 1 service commands: web"), "{frames:?}");
    assert_eq!(sandbox_of(&real), json!(sandbox));
    assert_eq!(real.get(&path)["serviceCommands"][0]["name"], "web", "the callback reached the gateway");
    assert_eq!(real.shell(&sandbox, "cat .env"), "API_KEY=canary-of-the-pool");
    let tools = real.shell(&sandbox, "ls ../.proliferate/agent/tool | tr '\\n' ' '");
    let expected =
        "request_env_variables.js save_env_files.js save_service_commands.js save_snapshot.js verify.js";
    assert_eq!(tools, expected);
    let told = "grep -c 'Do not change source code' ../.proliferate/agent/instructions.md";
    assert_eq!(real.shell(&sandbox, told), "1");
}

#[test]
fn a_crash_keeps_sandboxes_in_use_and_ends_pooled_ones() {
    let mut real = pooled();
    real.new_session(&json!({}));
    let mut socket = real.watch("");
    socket.prompt("hello");
    socket.until_type("turn_complete");
    let taken = sandbox_of(&real);
    let waited = waiting(&real);
    real.shell(taken.as_str().unwrap(), "echo mine > file");
    real.kill_and_start();
    assert_ne!(waiting(&real), waited);
    assert!(!real.sandboxes().contains(&waited), "a pooled sandbox was left behind");
    let mut socket = real.watch("");
    socket.prompt("still there?");
    let frames = socket.until_type("turn_complete");
    assert_eq!((outcome(&frames), tokens(&frames).as_str()), ("ok", "You said: still there?"));
    assert_eq!(sandbox_of(&real), taken);
    assert_eq!(real.shell(taken.as_str().unwrap(), "cat file"), "mine");

    let path = format!("/proliferate/{}", real.session);
    real.delete(&path);
    assert!(!real.sandboxes().contains(&taken.as_str().unwrap().to_owned()), "it outlived its session");
    let _ = real.server.take().unwrap().stop();
    assert_eq!(real.sandboxes(), [""; 0], "a gateway that stopped left its pool behind");
}

#[test]
fn a_dead_pooled_sandbox_is_replaced_by_a_cold_start() {
    let mut real = pooled();
    let dead = waiting(&real);
    assert_eq!(real.machine.run(&["sandbox", "rm", &dead]).code, 0);
    real.new_session(&json!({}));
    let mut socket = real.watch("");
    socket.prompt("hello");
    let frames = socket.until_type("turn_complete");
    assert_eq!((outcome(&frames), tokens(&frames).as_str()), ("ok", "You said: hello"));
    assert!(stages(&frames).contains(&"Starting the sandbox"), "people see the stages: {frames:?}");
    assert!(frames.iter().all(|frame| frame["type"] != "error"), "people saw the failure: {frames:?}");
    assert_eq!(sandbox_of(&real), json!(real.session));
}

#[test]
fn a_deleted_session_leaves_no_sandbox() {
    let mut real = Real::serving(&[]);
    real.new_session(&json!({}));
    let mut socket = real.watch("");
    socket.until(|frame| frame["type"] == "status" && frame["payload"]["status"] == "running");
    assert_eq!(real.sandboxes(), [real.session.clone()]);
    let token = real.machine.run(&["token", "user"]).out.trim().to_owned();
    let url = real.server().url("");
    let reach = ["session", "rm", &real.session, "--url", &url, "--token", &token];
    let removed = real.machine.run(&reach);
    assert_eq!(removed.code, 0, "{}", removed.err);
    assert_eq!(real.sandboxes(), [""; 0], "its sandbox outlived it");
}
