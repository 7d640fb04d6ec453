//! Runs the real OpenCode against the scripted model, which proves that the model behaves like the real API
//! for a real client. One process serves all scenarios, because starting it is slow.

#![expect(clippy::unwrap_used, reason = "test helpers may panic like tests")]
#![expect(clippy::panic, reason = "test helpers may panic like tests")]

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use model::Script;
use reqwest::Client;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::ScriptedModel;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

const VERSION: &str = "1.18.33";
/// Aborts a test that would hang; a complete turn takes about a second.
const TEST_TIMEOUT: Duration = Duration::from_mins(1);

/// These rules precede the built-in script, so that one process can test both.
const RULES: &str = r#"
[[rule]]
when = "scripted tool"
[[rule.step]]
text = "I run it."
tool = [{ name = "bash", input = { command = "echo sum-$((40 + 2))", description = "Add" } }]
[[rule.step]]
text = "It printed {tool_result}"

[[rule]]
when = "scripted limit"
[[rule.step]]
error = { status = 429, message = "slow down", retry_after_ms = 1, times = 1 }
text = "after the wait"

[[rule]]
when = "scripted refusal"
[[rule.step]]
error = { status = 400, message = "refused by the script" }

[[rule]]
when = "scripted cut"
[[rule.step]]
drop_after = 4
drop_times = 1
text = "this answer is cut once and then whole"
"#;

#[tokio::test]
async fn opencode_works_with_the_scripted_model() {
    let script = format!("{RULES}\n{}", include_str!("../../model/src/default.toml"));
    let model = ScriptedModel::start(Script::parse(&script).unwrap()).await.unwrap();
    let opencode = OpenCode::start(&model.url()).await;

    plain_text(&opencode).await;
    bash_tool(&opencode, &model).await;
    rate_limit(&opencode, &model).await;
    refusal(&opencode).await;
    cut_stream(&opencode).await;
    built_in_script(&opencode).await;
}

async fn plain_text(opencode: &OpenCode) {
    let turn = opencode.turn("plain", "how is the weather?").await;
    let text = text_of(&turn);
    assert!(text.starts_with("You said: how is the weather?"), "{turn}");
    assert_eq!(turn["info"]["finish"], "stop", "{turn}");
    assert!(turn["info"]["tokens"]["output"].as_u64().unwrap() > 10, "{turn}");
}

async fn bash_tool(opencode: &OpenCode, model: &ScriptedModel) {
    let turn = opencode.turn("tool", "use the scripted tool").await;
    assert_eq!(text_of(&turn).trim(), "It printed sum-42", "{turn}");
    let last = model.requests().last().unwrap().json();
    let messages = last["messages"].as_array().unwrap();
    let blocks = |message: &Value, kind: &str| -> Vec<Value> {
        let content = message["content"].as_array().unwrap();
        content.iter().filter(|block| block["type"] == kind).cloned().collect()
    };
    let used = blocks(&messages[messages.len() - 2], "tool_use");
    let results = blocks(&messages[messages.len() - 1], "tool_result");
    assert_eq!((used.len(), results.len()), (1, 1), "{last}");
    assert_eq!(used[0]["id"], results[0]["tool_use_id"]);
    assert!(results[0].to_string().contains("sum-42"), "{last}");
}

async fn rate_limit(opencode: &OpenCode, model: &ScriptedModel) {
    let before = model.requests().len();
    let turn = opencode.turn("limit", "a scripted limit").await;
    assert_eq!(text_of(&turn), "after the wait", "{turn}");
    let requests = &model.requests()[before..];
    assert_eq!(requests.len(), 2, "one rejected and one answered request");
    assert_eq!(requests[0].json()["messages"], requests[1].json()["messages"]);
}

async fn refusal(opencode: &OpenCode) {
    let turn = opencode.turn("refusal", "a scripted refusal").await;
    assert_eq!(turn["info"]["error"]["name"], "APIError", "{turn}");
    assert_eq!(turn["info"]["error"]["data"]["statusCode"], 400, "{turn}");
    assert!(
        turn["info"]["error"]["data"]["message"].as_str().unwrap().contains("refused by the script"),
        "{turn}"
    );
}

async fn cut_stream(opencode: &OpenCode) {
    let turn = opencode.turn("cut", "a scripted cut").await;
    assert!(text_of(&turn).ends_with("this answer is cut once and then whole"), "{turn}");
}

async fn built_in_script(opencode: &OpenCode) {
    let turn = opencode.turn("write", "create a file").await;
    assert!(text_of(&turn).contains("> Hello from the built-in model"), "{turn}");
    let written = fs::read_to_string(opencode.workspace().join("hello.txt")).unwrap();
    assert_eq!(written, "Hello from the built-in model of proliferate.\n");

    let turn = opencode.turn("list", "list my files").await;
    assert!(text_of(&turn).contains("hello.txt"), "{turn}");

    let turn = opencode.turn("thoughts", "think").await;
    let thoughts = turn["parts"].as_array().unwrap().iter().find(|part| part["type"] == "reasoning");
    assert!(
        thoughts.unwrap()["text"].as_str().unwrap().contains("The user would like to see me think"),
        "{turn}"
    );

    let session = opencode.post("/session", &json!({})).await;
    let path = format!("/session/{}", session["id"].as_str().unwrap());
    opencode.prompt(&path, "an untitled question").await;
    opencode.wait_for(&path, |session| session["title"] == "an untitled question").await;
}

/// The text of an answer: all text parts, concatenated.
fn text_of(turn: &Value) -> String {
    let parts = turn["parts"].as_array().unwrap_or_else(|| panic!("not an answer: {turn}"));
    parts.iter().filter(|part| part["type"] == "text").map(|part| part["text"].as_str().unwrap()).collect()
}

/// A running `opencode serve` with its own home and working directory.
struct OpenCode {
    url: String,
    client: Client,
    home: TempDir,
    process: Child,
    /// Kept open, so that the process does not fail when it writes.
    _stdout: Lines<BufReader<ChildStdout>>,
}

impl OpenCode {
    async fn start(model: &str) -> Self {
        let home = TempDir::new().unwrap();
        prepare(home.path());
        let mut process = command(home.path(), model).spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let address = async {
            while let Some(line) = lines.next_line().await.unwrap() {
                if let Some((_, url)) = line.split_once("listening on ") {
                    return url.trim().to_owned();
                }
            }
            panic!("OpenCode ended: {}", fs::read_to_string(home.path().join("stderr")).unwrap())
        };
        let url = timeout(TEST_TIMEOUT, address).await.unwrap();
        let client = Client::builder().no_proxy().timeout(TEST_TIMEOUT).build().unwrap();
        let opencode = Self { url, client, home, process, _stdout: lines };
        assert_eq!(opencode.get("/global/health").await, json!({ "healthy": true, "version": VERSION }));
        opencode
    }

    fn workspace(&self) -> PathBuf {
        self.home.path().join("work")
    }

    /// Sends one prompt in a new session and returns the answer.
    async fn turn(&self, title: &str, text: &str) -> Value {
        let session = self.post("/session", &json!({ "title": title })).await;
        self.prompt(&format!("/session/{}", session["id"].as_str().unwrap()), text).await
    }

    async fn prompt(&self, session: &str, text: &str) -> Value {
        let model = json!({ "providerID": "anthropic", "modelID": "claude-opus-4-6" });
        let body = json!({ "model": model, "parts": [{ "type": "text", "text": text }] });
        self.post(&format!("{session}/message"), &body).await
    }

    /// Polls until the answer is as wanted: the title arrives some time after the turn.
    async fn wait_for(&self, path: &str, wanted: impl Fn(&Value) -> bool) {
        let mut last = Value::Null;
        let asking = async {
            while !wanted(&last) {
                tokio::time::sleep(Duration::from_millis(20)).await;
                last = self.get(path).await;
            }
        };
        let came = timeout(TEST_TIMEOUT, asking).await;
        assert!(came.is_ok(), "the expected answer never arrived: {last}");
    }

    async fn get(&self, path: &str) -> Value {
        self.client.get(format!("{}{path}", self.url)).send().await.unwrap().json().await.unwrap()
    }

    async fn post(&self, path: &str, body: &Value) -> Value {
        let reply = self.client.post(format!("{}{path}", self.url)).json(body).send().await.unwrap();
        assert!(reply.status().is_success(), "{path}: {}", reply.text().await.unwrap());
        reply.json().await.unwrap()
    }
}

impl Drop for OpenCode {
    /// Kills the whole process group, because the agent starts processes of its own.
    fn drop(&mut self) {
        let id = self.process.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        if let Some(id) = id {
            let _ = kill_process_group(id, Signal::KILL);
        }
    }
}

/// OpenCode installs packages into its directories unless they look installed already.
fn prepare(home: &Path) {
    let plugin = json!({ "@opencode-ai/plugin": VERSION });
    for directory in [home.join(".config/opencode"), home.join("config")] {
        fs::create_dir_all(directory.join("node_modules")).unwrap();
        fs::write(directory.join("package.json"), json!({ "dependencies": plugin }).to_string()).unwrap();
        let lock = json!({ "lockfileVersion": 3, "packages": { "": { "dependencies": plugin } } });
        fs::write(directory.join("package-lock.json"), lock.to_string()).unwrap();
    }
    fs::create_dir(home.join("work")).unwrap();
    let model = json!({
        "id": "claude-opus-4-6", "name": "Claude Opus 4.6", "release_date": "2026-02-04", "attachment": true,
        "reasoning": true, "temperature": true, "tool_call": true,
        "cost": { "input": 5, "output": 25, "cache_read": 0.5, "cache_write": 6.25 },
        "limit": { "context": 1_000_000, "output": 128_000 },
        "modalities": { "input": ["text"], "output": ["text"] },
    });
    let catalogue = json!({ "anthropic": {
        "id": "anthropic", "name": "Anthropic", "env": ["ANTHROPIC_API_KEY"], "npm": "@ai-sdk/anthropic",
        "models": { "claude-opus-4-6": model },
    } });
    fs::write(home.join("models.json"), catalogue.to_string()).unwrap();
}

fn command(home: &Path, model: &str) -> Command {
    let binary = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools/node_modules/.bin/opencode");
    assert!(binary.exists(), "OpenCode is not installed: run `make test`, which installs OpenCode");
    let config = json!({
        "$schema": "https://opencode.ai/config.json",
        "model": "anthropic/claude-opus-4-6", "snapshot": false, "share": "disabled", "autoupdate": false,
        "provider": { "anthropic": { "options": { "baseURL": format!("{model}/v1"), "apiKey": "none" } } },
        "permission": { "*": "allow", "question": "deny" },
    });
    let mut command = std::process::Command::new(binary);
    command
        .args(["serve", "--hostname", "127.0.0.1", "--port", "0"])
        .current_dir(home.join("work"))
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("HOME", home)
        .env("OPENCODE_CONFIG_CONTENT", config.to_string())
        .env("OPENCODE_CONFIG_DIR", home.join("config"))
        .env("OPENCODE_MODELS_PATH", home.join("models.json"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(File::create(home.join("stderr")).unwrap())
        .process_group(0);
    for switch in ["MODELS_FETCH", "AUTOUPDATE", "LSP_DOWNLOAD", "DEFAULT_PLUGINS", "SHARE"] {
        command.env(format!("OPENCODE_DISABLE_{switch}"), "1");
    }
    let mut command = Command::from(command);
    command.kill_on_drop(true);
    command
}
