//! Runs the module that implements the agent's tools against a real gateway, over a connection that is cut at every
//! point: the module retries under the same id, and its request is executed once.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use opencode::files::Tool;
use serde_json::{Value, json};
use testkit::{Direction, FaultProxy};
use tokio::process::Command;

use crate::harness::{Machine, Server, path};

const PATIENCE: Duration = Duration::from_mins(1);
const RUN: &str = "import tool from './tool.mjs';
console.log(await tool.execute({ commands: [{ name: 'web', command: 'run' }] }, { callID: process.argv[1] }));";

struct World {
    machine: Machine,
    server: Server,
    key: String,
    session: String,
    token: String,
}

/// A gateway with a setup session that has no sandbox; the test runs the module in its place.
fn world() -> World {
    let machine = Machine::new();
    let server = machine.serve();
    let key = machine.json(&["keys", "create", "--name", "ci"])["key"].as_str().unwrap().to_owned();
    let made = post(&server, "/v1/configurations", &key, &json!({"name": "app", "repos": []}));
    let session = json!({"sessionType": "setup", "clientType": "web", "configurationId": made["id"]});
    let made = post(&server, "/proliferate/sessions", &key, &session);
    let session = made["sessionId"].as_str().unwrap().to_owned();
    let token = machine.run(&["token", "sandbox", "--session", &session]).out.trim().to_owned();
    let tool =
        Tool::gateway_tool("save_service_commands", "Saves.", &json!({"properties": {"commands": {}}}));
    std::fs::write(machine.file("tool.mjs"), tool.source.as_bytes()).unwrap();
    World { machine, server, key, session, token }
}

fn post(server: &Server, path: &str, key: &str, body: &Value) -> Value {
    let client = reqwest::blocking::Client::builder().no_proxy().build().unwrap();
    let request = client.post(server.url(path)).bearer_auth(key).header("content-type", "application/json");
    request.body(body.to_string()).send().unwrap().json().unwrap()
}

impl World {
    /// Builds a command that runs the tool with this call id against this gateway.
    fn call(&self, folder: &Path, gateway: &str, id: &str) -> Command {
        let mut node = Command::new("node");
        node.current_dir(folder).args(["--input-type=module", "-e", RUN, id]).env_clear().env("PATH", path());
        node.env("PROLIFERATE_GATEWAY_URL", gateway).env("PROLIFERATE_SESSION_ID", &self.session);
        node.env("SANDBOX_MCP_AUTH_TOKEN", &self.token);
        node.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        node
    }

    fn calls(&self) -> Vec<Value> {
        let path = format!("/v1/runs?limit=200&run_kind=tool_gateway&case_id={}", self.session);
        self.server.get(&path, &self.key).1["runs"].as_array().unwrap().clone()
    }
}

#[test]
fn a_callback_cut_at_any_moment_runs_once_and_is_answered() {
    let world = world();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let folder = world.machine.file("");
    let address = world.server.said["address"].as_str().unwrap().parse().unwrap();
    let cuts = [0_u64, 1, 60, 200, 330].map(|bytes| (Direction::ToTarget, bytes));
    let cuts = cuts.into_iter().chain([0_u64, 1, 15, 120].map(|bytes| (Direction::ToClient, bytes)));
    let mut made = 0;
    for (direction, bytes) in cuts {
        let id = format!("toolu_{direction:?}_{bytes}");
        let said = runtime.block_on(async {
            let proxy = FaultProxy::start(address).await.unwrap();
            proxy.reset_after(direction, bytes);
            let mut node = world.call(&folder, &format!("http://{}", proxy.address()), &id);
            let running = tokio::spawn(async move { node.output().await.unwrap() });
            let cut = proxy.wait_for(|counts| counts.connections > 0 && counts.forwarded(direction) >= bytes);
            tokio::time::timeout(PATIENCE, cut).await.unwrap();
            tokio::task::yield_now().await;
            proxy.heal().await.unwrap();
            tokio::time::timeout(PATIENCE, running).await.unwrap().unwrap()
        });
        let (out, err) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
        assert!(out.contains("Saved 1 service commands: web"), "{id}: {out} {err}");
        made += 1;
        let calls = world.calls();
        assert_eq!(calls.len(), made, "{id}");
        assert!(calls.iter().all(|call| call["status"] == "completed"), "{id}: {calls:?}");
    }
}
