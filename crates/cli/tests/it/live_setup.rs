//! A setup session whose agent saves everything with its tools, and a coding session that starts from it.

use serde_json::{Value, json};

use crate::harness::{Machine, files_with};
use crate::live::{Real, Watching, outcome, tokens};

const CANARY: &str = "canary-of-the-app";

const SCRIPT: &str = r#"
[[rule]]
system = "title generator"
[[rule.step]]
text = "A title"

[[rule]]
when = "set it up"
[[rule.step]]
tool = [{ name = "bash", input = { command = "mkdir node_modules && touch node_modules/dependency", description = "Installs" } }]
[[rule.step]]
tool = [{ name = "save_service_commands", input = { commands = [{ name = "web", command = "cat .env > seen; exec sleep 1000" }] } }]
[[rule.step]]
tool = [{ name = "save_env_files", input = { files = [{ path = ".env", format = "dotenv", mode = "secret", keys = [{ key = "API_KEY", required = true }] }] } }]
[[rule.step]]
tool = [{ name = "save_snapshot", input = { message = "it runs" } }]
[[rule.step]]
text = "It said: {tool_result}"

[[rule]]
[[rule.step]]
text = "You said: {prompt}"
"#;

fn running(real: &Real) -> Watching {
    let mut socket = real.watch("");
    socket.until(|frame| frame["type"] == "status" && frame["payload"]["status"] == "running");
    socket
}

fn turn(socket: &mut Watching, prompt: &str) -> String {
    socket.prompt(prompt);
    let frames = socket.until_type("turn_complete");
    assert_eq!(outcome(&frames), "ok", "{frames:?}");
    tokens(&frames)
}

#[test]
fn a_coding_session_has_what_the_agent_of_a_setup_session_saved_with_its_tools() {
    let machine = Machine::new();
    let script = machine.file("setup.toml");
    std::fs::write(&script, SCRIPT).unwrap();
    let script = script.display().to_string();
    let mut real = Real::on(machine, &[("PROLIFERATE_MODEL_SCRIPT", &script), ("WARM_POOL_SIZE", "0")]);
    let put = ["secrets", "set", "API_KEY", CANARY, "--purpose", "env"];
    let put = real.machine.run(&put);
    assert_eq!(put.code, 0, "{}", put.err);
    let id = real.post("/v1/configurations", &json!({"name": "app", "repos": []}))["id"].clone();

    real.new_session(&json!({"sessionType": "setup", "configurationId": id}));
    let mut setup = running(&real);
    let said = turn(&mut setup, "please set it up");
    assert!(said.starts_with("It said: Snapshot saved to configuration: "), "{said}");
    let saved = real.get("/v1/configurations")["configurations"][0].clone();
    assert_eq!(saved["serviceCommands"][0]["name"], "web", "{saved}");
    assert_eq!(saved["envFiles"][0]["keys"][0]["key"], "API_KEY", "{saved}");

    real.new_session(&json!({"configurationId": id}));
    let mut coding = running(&real);
    let wait = "until [ -s seen ]; do sleep 0.05; done; cat seen";
    assert_eq!(real.shell(&real.sandbox(), wait), format!("API_KEY={CANARY}"), "before the service");
    let services = real.get(&format!("/proliferate/{}/services", real.session));
    let service = &services["services"][0];
    assert_eq!((&service["name"], &service["status"]), (&json!("web"), &json!("running")), "{services}");
    let tools = real.shell(&real.sandbox(), "ls ~/.proliferate/agent/tool");
    assert_eq!(tools, "request_env_variables.js\nsave_snapshot.js\nverify.js");
    assert_eq!(turn(&mut coding, "hello"), "You said: hello");

    let copies = real.machine.data_dir().join("sandboxes/snapshots");
    let found = files_with(&copies, CANARY.as_bytes());
    assert!(found.is_empty(), "a snapshot has the value: {found:?}");
    let init: Value = real.watch("&passive=1").until_type("init").pop().unwrap();
    let ledger = real.get("/v1/audit/events?limit=1000");
    assert!(!init.to_string().contains(CANARY) && !ledger.to_string().contains(CANARY));
}
