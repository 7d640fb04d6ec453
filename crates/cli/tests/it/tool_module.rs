//! Runs the module that implements the agent's tools against a real gateway, over a connection that is cut at every
//! point: the module retries under the same id, and its request is executed once.

use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::Duration;

use agent::Tool;
use opencode::files::tool_module;
use serde_json::{Value, json};
use testkit::{Direction, FaultProxy};
use tokio::process::Command;

use crate::harness::{Machine, Server, path};
use crate::live::Real;

const CALL_TIMEOUT: Duration = Duration::from_mins(1);
const RUN: &str = "import tool from './tool.mjs';
const [callID, messageID] = process.argv[2].split('@');
console.log(await tool.execute(JSON.parse(process.argv[1]), { callID, messageID }));";

/// The module of a tool, and the session whose agent it belongs to. The test runs it in the agent's place.
struct Module {
    directory: PathBuf,
    gateway: String,
    session: String,
    token: String,
    arguments: Value,
}

const SAVE_SERVICE_COMMANDS: (&str, u32) = ("save_service_commands", 2);

impl Module {
    /// The module of a tool with this name and version.
    fn new(
        machine: &Machine,
        server: &Server,
        session: &str,
        (name, version): (&'static str, u32),
        arguments: Value,
    ) -> Self {
        let schema = json!({"properties": {"commands": {}, "message": {}}});
        let tool = Tool { name, version, description: "Saves.", schema, execute: None };
        std::fs::write(machine.file("tool.mjs"), tool_module(&tool)).unwrap();
        let token = machine.run(&["token", "sandbox", "--session", session]).out.trim().to_owned();
        let gateway = server.said["address"].as_str().unwrap().to_owned();
        Self { directory: machine.file(""), gateway, session: session.to_owned(), token, arguments }
    }

    /// Builds a command that runs the tool with this call id against this gateway.
    fn command(&self, gateway: &str, id: &str) -> Command {
        let mut node = Command::new("node");
        node.current_dir(&self.directory).args([
            "--input-type=module",
            "-e",
            RUN,
            &self.arguments.to_string(),
            id,
        ]);
        node.env_clear().env("PATH", path());
        node.env("PROLIFERATE_GATEWAY_URL", gateway).env("PROLIFERATE_SESSION_ID", &self.session);
        node.env("SANDBOX_MCP_AUTH_TOKEN", &self.token);
        node.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        node
    }

    /// Runs the tool over a connection that is cut after this many bytes, and works again once it has been cut.
    async fn run_cut(&self, direction: Direction, bytes: u64, id: &str) -> Output {
        let proxy = FaultProxy::start(self.gateway.parse().unwrap()).await.unwrap();
        proxy.reset_after(direction, bytes);
        let mut node = self.command(&format!("http://{}", proxy.address()), id);
        let running = tokio::spawn(async move { node.output().await.unwrap() });
        let cut = proxy.wait_for(|counts| counts.connections > 0 && counts.forwarded(direction) >= bytes);
        tokio::time::timeout(CALL_TIMEOUT, cut).await.unwrap();
        tokio::task::yield_now().await;
        proxy.heal().await.unwrap();
        tokio::time::timeout(CALL_TIMEOUT, running).await.unwrap().unwrap()
    }

    /// Runs the tool over a connection on which no answer arrives until the tool has connected a second time.
    async fn run_unanswered(&self, id: &str) -> Output {
        let proxy = FaultProxy::start(self.gateway.parse().unwrap()).await.unwrap();
        proxy.black_hole(Direction::ToClient);
        let mut node = self.command(&format!("http://{}", proxy.address()), id);
        let running = tokio::spawn(async move { node.output().await.unwrap() });
        let again = proxy.wait_for(|counts| counts.connections > 1);
        tokio::time::timeout(CALL_TIMEOUT, again).await.unwrap();
        proxy.heal().await.unwrap();
        tokio::time::timeout(CALL_TIMEOUT, running).await.unwrap().unwrap()
    }
}

fn post(server: &Server, path: &str, key: &str, body: &Value) -> Value {
    let client = reqwest::blocking::Client::builder().no_proxy().build().unwrap();
    let request = client.post(server.url(path)).bearer_auth(key).header("content-type", "application/json");
    request.body(body.to_string()).send().unwrap().json().unwrap()
}

/// Cuts the connection at every one of these points, and expects one completed run for each call.
fn cut_everywhere(module: &Module, (server, key): (&Server, &str), cuts: &[(Direction, u64)], says: &str) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for (made, (direction, bytes)) in cuts.iter().enumerate() {
        let id = format!("toolu_{direction:?}_{bytes}");
        let said = runtime.block_on(module.run_cut(*direction, *bytes, &id));
        let (out, err) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
        assert!(out.contains(says), "{id}: {out} {err}");
        let path = format!("/v1/runs?limit=200&run_kind=tool_gateway&case_id={}", module.session);
        let calls = server.get(&path, key).1["runs"].as_array().unwrap().clone();
        assert_eq!(calls.len(), made + 1, "{id}");
        assert!(calls.iter().all(|call| call["status"] == "completed"), "{id}: {calls:?}");
    }
}

const SAVED_MESSAGE: &str = "Saved 1 service commands: web";

/// A setup session, whose agent can save commands.
struct Setup {
    machine: Machine,
    server: Server,
    key: String,
    session: String,
}

impl Setup {
    fn new() -> Self {
        let machine = Machine::new();
        let server = machine.serve();
        let key = machine.json(&["keys", "create", "--name", "ci"])["key"].as_str().unwrap().to_owned();
        let made = post(&server, "/v1/configurations", &key, &json!({"name": "app", "repos": []}));
        let session = json!({"sessionType": "setup", "clientType": "web", "configurationId": made["id"]});
        let made = post(&server, "/proliferate/sessions", &key, &session);
        let session = made["sessionId"].as_str().unwrap().to_owned();
        Self { machine, server, key, session }
    }

    fn module(&self) -> Module {
        let arguments = json!({"commands": [{"name": "web", "command": "run"}]});
        Module::new(&self.machine, &self.server, &self.session, SAVE_SERVICE_COMMANDS, arguments)
    }
}

#[test]
fn a_callback_cut_at_any_moment_runs_once_and_is_answered() {
    let setup = Setup::new();
    let module = setup.module();
    let cuts = [0_u64, 1, 60, 200, 330].map(|bytes| (Direction::ToTarget, bytes));
    let cuts = [&cuts[..], &[0_u64, 1, 15, 120].map(|bytes| (Direction::ToClient, bytes))].concat();
    cut_everywhere(&module, (&setup.server, &setup.key), &cuts, SAVED_MESSAGE);
}

/// Some providers number the calls of each message anew, so an id names a call of its message only.
#[test]
fn a_call_id_that_returns_in_another_message_is_another_call() {
    let setup = Setup::new();
    let run = |name: &str, id: &str| {
        let arguments = json!({"commands": [{"name": name, "command": "run"}]});
        let module =
            Module::new(&setup.machine, &setup.server, &setup.session, SAVE_SERVICE_COMMANDS, arguments);
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let said = runtime.block_on(async {
            module.command(&format!("http://{}", module.gateway), id).output().await.unwrap()
        });
        String::from_utf8_lossy(&said.stdout).trim().to_owned()
    };
    assert_eq!(run("web", "call_0@msg_1"), SAVED_MESSAGE);
    assert_eq!(run("api", "call_0@msg_2"), "Saved 1 service commands: api");
    assert!(run("worker", "call_0@msg_2").contains("used before with other arguments"));
    assert_eq!(run("api", "call_0@msg_2"), "Saved 1 service commands: api");
    let path = format!("/v1/runs?limit=200&run_kind=tool_gateway&case_id={}", setup.session);
    let calls = setup.server.get(&path, &setup.key).1["runs"].as_array().unwrap().clone();
    assert_eq!(calls.len(), 2, "{calls:?}");
}

/// A gateway that is silent: nothing of its first answer arrives. The call is repeated once it has waited long enough.
#[test]
fn a_callback_that_is_not_answered_in_time_is_retried_and_runs_once() {
    let setup = Setup::new();
    let module = setup.module();
    let code = std::fs::read_to_string(module.directory.join("tool.mjs")).unwrap();
    let impatient = code.replace("TIMEOUT_MS = 120000", "TIMEOUT_MS = 1000");
    assert_ne!(code, impatient);
    std::fs::write(module.directory.join("tool.mjs"), impatient).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let said = runtime.block_on(module.run_unanswered("toolu_silent"));
    let (out, err) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    assert!(out.contains(SAVED_MESSAGE), "{out} {err}");
    let path = format!("/v1/runs?limit=200&run_kind=tool_gateway&case_id={}", module.session);
    let calls = setup.server.get(&path, &setup.key).1["runs"].as_array().unwrap().clone();
    assert_eq!((calls.len(), &calls[0]["status"]), (1, &json!("completed")), "{calls:?}");
}

/// A snapshot may freeze the sandbox and break its connections. Here the connection of the call breaks at every point,
/// while a real sandbox is copied.
#[test]
fn a_snapshot_whose_call_is_cut_at_any_moment_is_made_once() {
    let real = Real::start();
    let mut socket = real.watch("");
    socket.until(|frame| frame["type"] == "status" && frame["payload"]["status"] == "running");
    let module = Module::new(
        &real.machine,
        real.server(),
        &real.session,
        ("save_snapshot", 1),
        json!({"message": "now"}),
    );
    let cuts = [(Direction::ToTarget, 60), (Direction::ToTarget, 330), (Direction::ToClient, 0)];
    let cuts = [&cuts[..], &[(Direction::ToClient, 120)]].concat();
    cut_everywhere(&module, (real.server(), real.key()), &cuts, "Snapshot saved to session: ");
    let copies = std::fs::read_dir(real.machine.data_dir().join("sandboxes/snapshots")).unwrap();
    assert_eq!(copies.count(), cuts.len(), "one copy for each call");
}

/// The module that a sandbox gets checks the arguments itself, and names every violation without a value.
#[test]
fn a_tool_in_the_sandbox_names_every_violation_with_its_field_and_limit() {
    const RUN: &str = "import tool from './tool.mjs';
for (const args of JSON.parse(process.argv[1])) console.log(JSON.stringify(await tool.execute(args)));";
    let real = Real::start();
    real.watch("").until(|frame| frame["type"] == "status" && frame["payload"]["status"] == "running");
    let module = real.shell(&real.session, "cat ~/.proliferate/agent/tool/request_env_variables.js");
    std::fs::write(real.machine.file("tool.mjs"), module).unwrap();
    let one = |field: &str, value: Value| {
        let mut key = json!({"key": "API_KEY"});
        key[field] = value;
        json!({ "keys": [key] })
    };
    let long = "canary".repeat(200);
    let cases = [
        (json!({"keys": [{"key": "A", "type": "secret", "required": false}]}), "The user was asked for: A."),
        (json!({}), "keys is required"),
        (json!({"keys": "canary"}), "keys must be a list"),
        (json!({"keys": []}), "keys must have at least 1 entries"),
        (json!({"keys": vec![json!({"key": "A"}); 51]}), "keys must have at most 50 entries"),
        (json!({"keys": [7]}), "keys[0] must be an object"),
        (json!({"keys": [{"description": "x"}]}), "keys[0].key is required"),
        (one("key", json!("2canary")), "keys[0].key must match ^[A-Za-z_][A-Za-z0-9_]*$"),
        (one("key", json!("A\n")), "keys[0].key must match"),
        (one("key", json!("A".repeat(201))), "keys[0].key must have at most 200 characters"),
        (one("description", json!(long)), "keys[0].description must have at most 1000 characters"),
        (one("type", json!("canary")), r#"keys[0].type must be one of ["env","secret"]"#),
        (one("required", json!("canary")), "keys[0].required must be true or false"),
        (one("suggestions", json!([{"value": "x"}])), "keys[0].suggestions[0].label is required"),
        (one("value", json!("canary")), "keys[0] has unknown fields: value"),
        (json!({"keys": [{"key": "A"}], "canary 1": 1}), "the arguments has unknown fields: a parameter"),
        (
            json!({"keys": [{"type": "x"}, {"key": "A", "required": 1}]}),
            r#"keys[0].key is required, keys[0].type must be one of ["env","secret"], keys[1].required must be"#,
        ),
    ];
    let all: Vec<&Value> = cases.iter().map(|(arguments, _)| arguments).collect();
    let arguments = json!(all).to_string();
    let mut node = std::process::Command::new("node");
    node.current_dir(real.machine.file("")).args(["--input-type=module", "-e", RUN, &arguments]);
    let ran = node.env_clear().env("PATH", path()).output().unwrap();
    let out = String::from_utf8(ran.stdout).unwrap();
    assert_eq!(out.lines().count(), cases.len(), "{out} {}", String::from_utf8_lossy(&ran.stderr));
    for (said, (arguments, part)) in out.lines().zip(&cases) {
        let said: String = serde_json::from_str(said).unwrap();
        assert!(said.contains(part) && !said.contains("canary"), "{arguments}: {said}");
    }
}
