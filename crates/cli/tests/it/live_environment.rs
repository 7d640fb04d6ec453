//! The environment and the services of an app in real sandboxes: from a setup session that saves them to a coding session
//! that has them, and nowhere else.

use std::path::Path;

use serde_json::{Value, json};

use crate::deadline::until;
use crate::harness::Machine;
use crate::live::{Real, Watching, tokens};
use crate::live_forge::git;

/// Values that must be found in the files of a running sandbox and nowhere else.
const CANARIES: [&str; 7] = [
    "canary-of-the-organization",
    "canary-of-the-configuration",
    "canary-of-the-session",
    "canary-of-a-file",
    "canary-of-a-repository",
    "canary-of-a-plain-file",
    "canary-of-a-variable",
];
/// What a person says to the agent of the setup session.
const SETUP_PROMPT: &str = "install what the app needs";
/// A change of the specification while no gateway runs.
const CHANGED_FILES: &str = r#"UPDATE configurations SET env_files = '[{"workspacePath":"app","path":".env.changed",
    "mode":"secret","keys":[{"key":"SHARED"},{"key":"VARIABLE"}]}]'"#;
const PLATFORM: &str = "canary-of-the-platform";

/// An agent that prints every value and shows them as evidence.
const SCRIPT: &str = r#"
[[rule]]
system = "title generator"
[[rule.step]]
text = "A title"

[[rule]]
when = "say the environment"
[[rule.step]]
tool = [{ name = "bash", input = { command = "cat app/.env app/.env.plain app/key.pem lib/.env", description = "Prints" } }]
[[rule.step]]
text = "It said: {tool_result}"

[[rule]]
when = "print the environment"
[[rule.step]]
tool = [{ name = "bash", input = { command = "cat app/.env app/.env.plain app/key.pem lib/.env | tee app/dump.txt", description = "Prints" } }]
[[rule.step]]
tool = [{ name = "verify", input = { folder = "app" } }]
[[rule.step]]
text = "It said: {tool_result}"

[[rule]]
[[rule.step]]
text = "You said: {prompt}"
"#;

pub(crate) fn running(real: &Real) -> Watching {
    let mut socket = real.watch("");
    socket.until(|frame| frame["type"] == "status" && frame["payload"]["status"] == "running");
    socket
}

fn call(real: &Real, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let request = real.request(method, path).header("content-type", "application/json");
    let answer = request.body(body.to_string()).send().unwrap();
    (answer.status().as_u16(), answer.json().unwrap_or_default())
}

fn secret(real: &Real, name: &str, purpose: &str, value: &str, configuration: &Value) {
    let mut body = json!({"value": value, "purpose": purpose});
    if !configuration.is_null() {
        body["configurationId"] = configuration.clone();
    }
    assert_eq!(call(real, "PUT", &format!("/v1/secrets/{name}"), &body).0, 201);
}

/// A configuration with services, environment files and a secret file.
fn configuration(real: &Real) -> Value {
    let made = real.post("/v1/configurations", &json!({"name": "app", "repos": []}));
    let id = made["id"].clone();
    let files = json!([{"workspacePath": "app", "path": ".env", "keys": [
        {"key": "SHARED", "required": true}, {"key": "OVERRIDDEN", "required": true},
        {"key": "SUBMITTED"}, {"key": "VARIABLE"}, {"key": "PLATFORM_KEY"}]}]);
    let commands =
        json!([{"name": "web", "command": "cat .env > seen; exec sleep 1000", "workspacePath": "app"}]);
    let path = format!("/v1/configurations/{}", id.as_str().unwrap());
    let (status, changed) =
        call(real, "PATCH", &path, &json!({"envFiles": files, "serviceCommands": commands}));
    assert_eq!((status, &changed["serviceCommands"]), (200, &commands), "{changed}");
    assert_eq!(changed["envFiles"][0]["keys"][0], json!({"key": "SHARED", "required": true}));
    secret(real, "SHARED", "env", CANARIES[0], &Value::Null);
    secret(real, "OVERRIDDEN", "env", "the weaker value", &Value::Null);
    secret(real, "OVERRIDDEN", "env", CANARIES[1], &id);
    secret(real, "PLATFORM_KEY", "platform", PLATFORM, &Value::Null);
    let file = json!({"path": "app/key.pem", "content": CANARIES[3], "configurationId": id});
    assert_eq!(call(real, "PUT", "/v1/secret-files", &file).0, 201);
    id
}

/// A repository with an environment file and a value for it, and a plain environment file beside those of the
/// configuration.
fn more_owners(real: &Real, root: &Path, configuration: &Value) {
    git(root, &["init", "-q", "-b", "main", "work"]);
    git(&root.join("work"), &["commit", "-q", "--allow-empty", "-m", "first"]);
    git(root, &["clone", "-q", "--bare", "work", "app.git"]);
    let url = format!("file://{}", root.join("app.git").display());
    let repo = real.post("/v1/repos", &json!({ "url": url }))["id"].clone();
    let of_repo = json!({"envFiles": [{"path": ".env", "keys": [{"key": "OF_REPO"}]}]});
    real.patch(&format!("/v1/repos/{}", repo.as_str().unwrap()), &of_repo);
    let value = json!({"value": CANARIES[4], "purpose": "env", "repoId": repo});
    assert_eq!(call(real, "PUT", "/v1/secrets/OF_REPO", &value).0, 201);
    let path = format!("/v1/configurations/{}", configuration.as_str().unwrap());
    let mut files = real.get(&path)["envFiles"].clone();
    let plain =
        json!({"workspacePath": "app", "path": ".env.plain", "mode": "plain", "keys": [{"key": "PLAIN"}]});
    files.as_array_mut().unwrap().push(plain);
    let places = json!([{"repoId": repo, "workspacePath": "lib"}]);
    real.patch(&path, &json!({"repos": places, "envFiles": files}));
    secret(real, "PLAIN", "env", CANARIES[5], &Value::Null);
}

/// The files below a directory of the data directory that contain a text.
fn found(real: &Real, directory: &str, text: &str) -> String {
    let directory = real.machine.data_dir().join(directory);
    let found = std::process::Command::new("grep").args(["-rlaF", text]).arg(directory).output().unwrap();
    String::from_utf8(found.stdout).unwrap()
}

fn save_snapshot(socket: &mut Watching) -> Value {
    socket.say(&json!({"type": "save_snapshot"}));
    let saved = socket.until_type("snapshot_result").pop().unwrap()["payload"].clone();
    assert_eq!(saved["success"], true, "{saved}");
    saved
}

#[test]
fn a_coding_session_has_the_environment_and_services_that_its_setup_saved() {
    let (machine, directory) = (Machine::new(), tempfile::tempdir().unwrap());
    let (script, root) = (machine.file("script-of-this-test.toml"), directory.path().display().to_string());
    std::fs::write(&script, SCRIPT).unwrap();
    let own = [("PROLIFERATE_MODEL_SCRIPT", script.to_str().unwrap()), ("WORKSPACE_LOCAL_ROOTS", &root)];
    let mut real = Real::on(machine, &[&own[..], &[("WARM_POOL_SIZE", "0")]].concat());
    assert_eq!(real.server.take().unwrap().stop(), 0);
    real.server = Some(real.machine.serve_logging_to(&real.machine.file("gateway.log")));
    let id = configuration(&real);
    more_owners(&real, directory.path(), &id);
    set_up(&mut real, &id);
    real.new_session(&json!({"configurationId": id}));
    let mut coding = running(&real);
    // The service read its environment file, so the file was there first.
    let seen =
        real.shell(&real.session, "until [ -s app/seen ]; do sleep 0.05; done; cat app/seen; rm app/seen");
    assert_eq!(
        seen,
        format!("SHARED={}\nOVERRIDDEN={}", CANARIES[0], CANARIES[1]),
        "the other's value is not here"
    );
    assert_eq!(real.shell(&real.session, "ls app/node_modules"), "dependency");
    let from_setup = format!("ls -d .proliferate/.verification; grep -rlaF '{SETUP_PROMPT}' ~ || true");
    assert_eq!(real.shell(&real.session, &from_setup), "", "the conversation or evidence of the setup");
    let services = real.get(&format!("/proliferate/{}/services", real.session));
    let service = &services["services"][0];
    assert_eq!((&service["name"], &service["status"]), (&json!("web"), &json!("running")), "{services}");
    services_were_started_by_the_system(&real);
    error_bodies_have_no_value(&real, &id);

    let own = json!({"secrets": [], "envVars": [{"key": "VARIABLE", "value": CANARIES[6]}]});
    real.post(&format!("/proliferate/{}/env", real.session), &own);
    the_agents_history_has_the_values(&real, &mut coding);
    save_snapshot(&mut coding);
    for canary in CANARIES.iter().chain(&[PLATFORM]) {
        assert_eq!(found(&real, "sandboxes/snapshots", canary), "", "a snapshot has {canary}");
    }
    real.post(&format!("/proliferate/{}/stop", real.session), &json!({}));
    let mut again = real.watch("");
    again.prompt("hello");
    again.until_type("turn_complete");
    let env = real.shell(&real.sandbox(), "cat app/.env app/key.pem");
    assert!(env.contains(CANARIES[0]) && env.ends_with(CANARIES[3]), "after a move: {env}");
    assert!(!env.contains(PLATFORM));
    let remembered = real.shell(&real.sandbox(), "grep -rlaF 'SHARED=*****' ~/.local/share/opencode");
    assert!(remembered.contains("opencode.db"), "the agent's history was not restored: {remembered}");
    printed_values_are_redacted(&real, &mut again);
    drop(again);
    conversation_and_ledger_have_no_value(&real);
    real.delete(&format!("/proliferate/{}", real.session));
    assert_nowhere_else(real);
}

/// A setup session whose person submits values and finishes it.
fn set_up(real: &mut Real, id: &Value) {
    real.new_session(&json!({"sessionType": "setup", "configurationId": id}));
    let mut setup = running(real);
    setup.prompt(SETUP_PROMPT);
    setup.until_type("turn_complete");
    real.shell(&real.session, "mkdir -p .proliferate/.verification; touch .proliferate/.verification/proof");
    let env = real
        .shell(&real.session, "mkdir -p app/node_modules; touch app/node_modules/dependency; cat app/.env");
    assert_eq!(env, format!("SHARED={}\nOVERRIDDEN={}", CANARIES[0], CANARIES[1]));
    assert_eq!(
        real.shell(&real.session, "cat app/key.pem; stat -c %a app/key.pem"),
        format!("{}600", CANARIES[3])
    );
    let submitted = json!({"secrets": [{"key": "SUBMITTED", "value": CANARIES[2]}],
        "envVars": [{"key": "VARIABLE", "value": CANARIES[6]}]});
    let answer = real.post(&format!("/proliferate/{}/env", real.session), &submitted);
    assert_eq!(
        (&answer["submitted"], &answer["applied"], &answer["missing"]),
        (&json!(true), &json!(true), &json!([]))
    );
    assert_eq!(
        real.shell(&real.session, "tail -2 app/.env; cat /tmp/.proliferate_env.json"),
        format!(
            "SUBMITTED={0}\nVARIABLE={1}\n{{\"SUBMITTED\":\"{0}\",\"VARIABLE\":\"{1}\"}}",
            CANARIES[2], CANARIES[6]
        )
    );
    assert_eq!(
        real.shell(&real.session, "cat lib/.env app/.env.plain"),
        format!("OF_REPO={}\nPLAIN={}", CANARIES[4], CANARIES[5])
    );
    assert_eq!(
        real.shell(&real.session, "pgrep -xc sleep || true"),
        "0",
        "a setup session starts no services"
    );
    let whose = "SELECT sandbox_provider || ' ' || (created_by IS NOT NULL) FROM sessions WHERE session_type = 'setup'";
    assert_eq!(real.sql(whose).as_deref(), Some("local 1"), "it has a provider and a creator");
    let (url, finish) = (real.server().url(""), ["session", "finish-setup", &real.session]);
    let options = ["--name", "ready app", "--url", &url, "--token", real.key()];
    let done = real.machine.json(&[&finish[..], &options].concat());
    assert_eq!((&done["success"], &done["configurationId"]), (&json!(true), id), "{done}");
    let configurations = real.get("/v1/configurations");
    let finished = &configurations["configurations"][0];
    assert_eq!(
        (&finished["status"], &finished["name"]),
        (&json!("ready"), &json!("ready app")),
        "{finished}"
    );
}

/// The agent prints the values, which OpenCode stores in its database.
fn the_agents_history_has_the_values(real: &Real, socket: &mut Watching) {
    socket.prompt("say the environment");
    socket.until_type("turn_complete");
    let stored =
        real.shell(&real.session, "grep -aohE 'canary-[a-z-]+' ~/.local/share/opencode/opencode.db*");
    for canary in [CANARIES[0], CANARIES[1], CANARIES[3], CANARIES[4], CANARIES[5], CANARIES[6]] {
        assert!(stored.contains(canary), "the agent did not print {canary}");
    }
}

/// The agent prints the values, and uploads the directory with the files that have them.
fn printed_values_are_redacted(real: &Real, socket: &mut Watching) {
    // The service writes its file at every start.
    real.shell(&real.sandbox(), "until [ -s app/seen ]; do sleep 0.05; done");
    socket.prompt("print the environment");
    let frames = socket.until_type("turn_complete");
    assert!(!json!(frames).to_string().contains("canary"), "{frames:?}");
    let printed =
        |frame: &Value| frame["type"] == "tool_end" && frame.to_string().contains("VARIABLE=[REDACTED]");
    assert!(frames.iter().any(printed), "the agent printed nothing: {frames:?}");
    let said = tokens(&frames);
    for skipped in [".env", ".env.plain", "key.pem"] {
        assert!(said.contains(&format!("\"{skipped} (a file with secrets)")), "{said}");
    }
    let media = format!("/proliferate/{}/verification-media", real.session);
    let listed = real.get(&format!("{media}?prefix=sessions/{}/verification/", real.session));
    let keys = listed["files"].as_array().unwrap().iter().map(|file| file["key"].as_str().unwrap());
    let keys: Vec<_> = keys.collect();
    assert!(keys.len() == 2 && keys[0].ends_with("/dump.txt") && keys[1].ends_with("/seen"), "{listed}");
    for key in keys {
        let path = format!("{media}?key={key}&stream=true");
        let text = real.request("GET", &path).send().unwrap().text().unwrap();
        assert!(text.contains("SHARED=[REDACTED]") && !text.contains("canary"), "{key}: {text}");
    }
}

/// Nobody asked for the services of a restored sandbox, so the ledger names the system. It does not have the commands,
/// which may contain secrets.
fn services_were_started_by_the_system(real: &Real) {
    let path = format!("/v1/audit/events?case_id={}&limit=1000", real.session);
    let of_system = || -> Vec<Value> {
        let events = real.get(&path)["events"].as_array().unwrap().clone();
        // Reads of the repository are the system's too.
        let of_system =
            |event: &Value| event["role_id"] == "SYSTEM" && !event.to_string().contains("git.fetch");
        events.into_iter().filter(of_system).collect()
    };
    until("the outcome to be recorded", || of_system().len() >= 2);
    let events = of_system();
    let ends: Vec<_> = events.iter().map(|event| [&event["action_type"], &event["outcome"]]).collect();
    assert_eq!(ends, [["authz_decision", "allow"], ["tool_call", "success"]], "{events:?}");
    let told = json!(events).to_string();
    assert!(told.contains("start_services") && !told.contains("sleep 1000"), "{told}");
}

/// Every way to submit a value, each time so that it is refused.
fn error_bodies_have_no_value(real: &Real, configuration: &Value) {
    let env = format!("/proliferate/{}/env", real.session);
    for (method, path, body) in [
        ("POST", env.as_str(), json!({"secrets": CANARIES[2]})),
        ("POST", &env, json!({"secrets": [{"key": "2 WRONG", "value": CANARIES[2]}], "envVars": []})),
        ("POST", &env, json!({"secrets": [{"key": "A", "value": "x", "persist": CANARIES[2]}]})),
        ("POST", &env, json!({"envVars": [{"key": "A", "value": [CANARIES[2]]}]})),
        ("PUT", "/v1/secrets/SHARED", json!({"value": CANARIES[0], "purpose": "platform"})),
        ("PUT", "/v1/secrets/2 WRONG", json!({"value": CANARIES[0], "purpose": "env"})),
        (
            "PUT",
            "/v1/secrets/OVERRIDDEN",
            json!({"value": CANARIES[1], "purpose": "x", "configurationId": configuration}),
        ),
        ("PUT", "/v1/secret-files", json!({"path": "../up", "content": CANARIES[3]})),
        ("PUT", "/v1/secret-files", json!({"path": "app/x", "content": CANARIES[3], "repoId": CANARIES[3]})),
    ] {
        let (status, refused) = call(real, method, path, &body);
        assert!((400..500).contains(&status), "{method} {path} {body}: {status}");
        assert!(refused["error"].is_string() && !refused.to_string().contains("canary"), "{refused}");
    }
}

fn conversation_and_ledger_have_no_value(real: &Real) {
    let init = real.watch("&passive=1").until_type("init").pop().unwrap();
    assert!(!init["payload"]["messages"].as_array().unwrap().is_empty(), "{init}");
    let ledger = real.get("/v1/audit/events?limit=1000");
    for found in [init.to_string(), ledger.to_string()] {
        assert!(!found.contains("canary"), "{found}");
    }
}

/// The canaries are in no table, log or metric. The database has only encrypted values, and the artifacts of calls.
fn assert_nowhere_else(mut real: Real) {
    let metrics = reqwest::blocking::get(real.server().url("/metrics")).unwrap().text().unwrap();
    let server = real.server.take().unwrap();
    server.stop();
    let log = std::fs::read_to_string(real.machine.file("gateway.log")).unwrap();
    assert!(log.contains("\"level\":\"DEBUG\"") && log.contains(&real.session), "the log is not complete");
    for canary in CANARIES.iter().chain(&[PLATFORM]) {
        assert!(!log.contains(canary), "the log has {canary}");
        assert!(!metrics.contains(canary), "a metric has {canary}");
        for file in ["proliferate.db", "proliferate.db-wal", "checkpoints", "logs"] {
            assert_eq!(found(&real, file, canary), "", "{canary}");
        }
    }
}

#[test]
fn a_changed_value_reaches_a_running_sandbox_and_a_bad_path_is_refused() {
    let mut real = Real::serving(&[("WARM_POOL_SIZE", "0")]);
    let id = configuration(&real);
    real.new_session(&json!({"configurationId": id}));
    let _socket = running(&real);
    let changed = json!({"value": "the newest value", "purpose": "env", "configurationId": id});
    assert_eq!(call(&real, "PUT", "/v1/secrets/OVERRIDDEN", &changed).0, 200);
    real.shell(&real.session, "until grep -q 'the newest value' app/.env; do sleep 0.05; done");
    let (status, refused) = call(
        &real,
        "PUT",
        "/v1/secrets/OVERRIDDEN",
        &json!({"value": "x", "purpose": "platform", "configurationId": id}),
    );
    assert_eq!(status, 409, "{refused}");
    let path = format!("/v1/configurations/{}", id.as_str().unwrap());
    let files = json!({"envFiles": [{"path": "../../etc/passwd", "keys": [{"key": "A"}]}]});
    let (status, refused) = call(&real, "PATCH", &path, &files);
    assert_eq!(status, 400);
    assert!(refused["error"].as_str().unwrap().contains("envFiles[0].path"), "{refused}");
    let file = json!({"path": "/etc/shadow", "content": "x"});
    assert_eq!(call(&real, "PUT", "/v1/secret-files", &file).0, 400);
}

/// Nobody watches the session, so after a restart of the gateway its sandbox runs without a connected agent.
#[test]
fn a_sandbox_without_a_connected_agent_gets_what_changed_and_what_was_submitted() {
    let mut real = Real::serving(&[("WARM_POOL_SIZE", "0")]);
    let id = configuration(&real);
    real.new_session(&json!({"sessionType": "setup", "configurationId": id}));
    drop(running(&real));
    let started = json!({"name": "web", "command": "echo ready; exec sleep 1000"});
    real.post(&format!("/proliferate/{}/services", real.session), &started);
    assert_eq!(real.server.take().unwrap().stop(), 0);
    real.sql(CHANGED_FILES);
    real.server = Some(real.machine.serve());
    let shell = |command: &str| real.shell(&real.session, command);
    shell(&format!("until grep -q {} app/.env.changed; do sleep 0.05; done", CANARIES[0]));
    let route = |name: &str| format!("/proliferate/{}/{name}", real.session);
    let submitted = json!({"envVars": [{"key": "VARIABLE", "value": CANARIES[6]}]});
    assert_eq!(real.post(&route("env"), &submitted)["applied"], true);
    assert_eq!(shell(&format!("grep -c {} app/.env.changed", CANARIES[6])), "1");
    let services = real.get(&route("services"));
    assert_eq!(services["services"][0]["status"], "running", "{services}");
    assert_eq!(real.get(&route("services/web/logs"))["log"], "ready\n");
    assert_eq!(real.post(&route("env/scrub"), &json!({}))["scrubbed"][0], "app/.env.changed");
}

/// What is removed stays removed when an agent is connected again, when something else changes, and when the gateway starts.
#[test]
fn what_was_scrubbed_comes_back_only_when_it_changes() {
    let mut real = Real::serving(&[("WARM_POOL_SIZE", "0")]);
    let id = configuration(&real);
    real.new_session(&json!({"configurationId": id}));
    let socket = running(&real);
    let scrubbed = real.shell(&real.session, "proliferate env scrub");
    assert!(scrubbed.contains("app/key.pem"), "{scrubbed}");
    drop(socket);
    real.restart_with(&[]);
    let socket = running(&real);
    // Another session gets the change that this one has no file for, so it was looked at.
    secret(&real, "ELSEWHERE", "env", "a value", &Value::Null);
    let first = real.session.clone();
    let files = json!([{"path": ".env", "keys": [{"key": "ELSEWHERE"}, {"key": "LATER"}]}]);
    let made = real.post("/v1/configurations", &json!({"name": "other", "repos": []}));
    real.patch(&format!("/v1/configurations/{}", made["id"].as_str().unwrap()), &json!({"envFiles": files}));
    real.new_session(&json!({"configurationId": made["id"]}));
    let other = running(&real);
    secret(&real, "LATER", "env", "a later value", &Value::Null);
    real.shell(&real.session, "until grep -q 'a later value' .env; do sleep 0.05; done");
    assert_eq!(real.shell(&first, "ls -A app"), "", "what was removed came back");
    let changed = json!({"value": "the newest value", "purpose": "env", "configurationId": id});
    assert_eq!(call(&real, "PUT", "/v1/secrets/OVERRIDDEN", &changed).0, 200);
    real.shell(&first, "until grep -q 'the newest value' app/.env; do sleep 0.05; done");
    drop((socket, other));
}

#[test]
fn what_is_removed_leaves_a_running_sandbox_and_what_the_agent_wrote_stays() {
    let mut real = Real::serving(&[("WARM_POOL_SIZE", "0")]);
    let id = configuration(&real);
    real.new_session(&json!({"configurationId": id}));
    let _socket = running(&real);
    let delete = |path: &str| assert_eq!(call(&real, "DELETE", path, &Value::Null).0, 200, "{path}");
    let shell = |command: &str| real.shell(&real.session, command);
    let owner = format!("configurationId={}", id.as_str().unwrap());
    shell("echo OWN=1 >> app/.env");
    delete(&format!("/v1/secret-files?path=app/key.pem&{owner}"));
    shell("while [ -e app/key.pem ]; do sleep 0.05; done; echo mine > app/key.pem");
    // A required variable has no value any more. It leaves the file, which stays.
    delete(&format!("/v1/secrets/OVERRIDDEN?{owner}"));
    delete("/v1/secrets/OVERRIDDEN");
    shell("while grep -q OVERRIDDEN app/.env; do sleep 0.05; done");
    assert_eq!(shell("cat app/.env"), format!("SHARED={}\nOWN=1", CANARIES[0]));
    real.patch(&format!("/v1/configurations/{}", id.as_str().unwrap()), &json!({"envFiles": []}));
    shell("while grep -q SHARED app/.env; do sleep 0.05; done");
    assert_eq!(shell("cat app/.env app/key.pem"), "OWN=1\nmine");
}

#[test]
fn the_command_line_in_a_sandbox_steers_services_and_environment() {
    let mut real = Real::serving(&[("WARM_POOL_SIZE", "0")]);
    let id = configuration(&real);
    real.new_session(&json!({"configurationId": id}));
    let _socket = running(&real);
    let run = |command: &str| -> Value {
        let out = real.shell(&real.session, command);
        serde_json::from_str(&out).unwrap_or_else(|_| panic!("{command}: {out}"))
    };
    assert!(real.shell(&real.session, "proliferate help").contains("proliferate services start"));
    let scrubbed = run("proliferate env scrub");
    assert_eq!(scrubbed["scrubbed"], json!(["app/.env", "app/key.pem"]));
    assert_eq!(real.shell(&real.session, "ls -A app; cat ~/.proliferate/secret-files.json"), "[]");
    real.shell(&real.session, "echo OWN=1 > app/.env");
    let applied = run("proliferate env apply");
    assert_eq!(applied["applied"].as_array().unwrap().len(), 2, "{applied}");
    assert!(!applied.to_string().contains("canary"));
    let own = real.shell(&real.session, "head -1 app/.env; grep -c canary app/.env");
    assert_eq!(own, "OWN=1\n2", "what the agent wrote stays");
    let started =
        run("proliferate services start --name db --command 'echo ready; exec sleep 999' --cwd app");
    assert_eq!(started["service"]["name"], "db");
    let log = run(
        "until proliferate services logs db | grep -q ready; do sleep 0.1; done; proliferate services logs db",
    );
    assert_eq!(log["log"], "ready\n");
    let exposed = run("proliferate services expose 3000");
    assert_eq!((&exposed["exposedPort"], &exposed["preview"]), (&json!(3000), &Value::Null), "{exposed}");
    assert!(real.shell(&real.session, "proliferate services expose --help").contains("there is no preview"));
    assert_eq!(run("proliferate services stop db")["success"], true);
    let list = run("proliferate services list");
    assert_eq!(
        (&list["services"][0]["status"], &list["exposedPort"]),
        (&json!("stopped"), &json!(3000)),
        "{list}"
    );
    assert_eq!(run("proliferate services restart db")["service"]["name"], "db");
    let unknown = real.shell(&real.session, "proliferate services logs nothing || echo code $?");
    assert!(unknown.ends_with("code 1") && unknown.contains("error"), "{unknown}");
    let outside = real.shell(
        &real.session,
        "proliferate services start --name x --command true --cwd ../.. || echo code $?",
    );
    assert!(outside.contains("cwd must be a path inside the workspace"), "{outside}");
    let tested = real.post(&format!("/proliferate/{}/test-services", real.session), &json!({}));
    assert_eq!(tested["entries"][0]["exitCode"], 124, "it was still running: {tested}");
}
