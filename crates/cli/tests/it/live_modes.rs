//! The modes of real agents: what the model is told, which tools it has, and what they do in a real sandbox.

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use testkit::ScriptedModel;

use crate::audit::behind_our_back;
use crate::gate::dead;
use crate::live::{Real, Watching, http, tokens};

const SCRIPT: &str = r#"
[[rule]]
system = "title generator"
[[rule.step]]
text = "A title"

[[rule]]
when = "save the commands"
[[rule.step]]
tool = [{ name = "save_service_commands", input = { commands = [{ name = "web", command = "npm start" }] } }]
[[rule.step]]
text = "It said: {tool_result}"

[[rule]]
when = "save the env files"
[[rule.step]]
tool = [{ name = "save_env_files", input = { files = [{ path = ".env", format = "dotenv", mode = "secret", keys = [{ key = "API_KEY", required = true }] }] } }]
[[rule.step]]
text = "It said: {tool_result}"

[[rule]]
when = "ask for variables"
[[rule.step]]
tool = [{ name = "request_env_variables", input = { keys = [{ key = "API_KEY", type = "secret" }, { key = "PORT", required = false }] } }]
[[rule.step]]
text = "It said: {tool_result}"

[[rule]]
when = "show the evidence"
[[rule.step]]
tool = [{ name = "verify", input = {} }]
[[rule.step]]
text = "It said: {tool_result}"

[[rule]]
when = "report the outcome"
[[rule.step]]
tool = [{ name = "automation_complete", input = { run_id = "r", completion_id = "c", outcome = "succeeded" } }]
[[rule.step]]
text = "It said: {tool_result}"

[[rule]]
when = "save the files"
[[rule.step]]
tool = [{ name = "save_snapshot", input = { message = "it runs" } }]
[[rule.step]]
text = "It said: {tool_result}"

[[rule]]
[[rule.step]]
text = "You said: {prompt}"
"#;

const TOOLS: [&str; 6] = [
    "automation_complete",
    "request_env_variables",
    "save_env_files",
    "save_service_commands",
    "save_snapshot",
    "verify",
];

/// What every agent is told about the command line in its sandbox.
const COMMANDS: [&str; 5] = [
    "`proliferate help`",
    "`proliferate services start",
    "`proliferate env apply`",
    "There is no preview",
    "`proliferate actions list --plain`",
];

/// A gateway whose model records what it is sent.
struct Recorded {
    real: Real,
    model: ScriptedModel,
    configuration: Value,
    _threads: tokio::runtime::Runtime,
}

impl Recorded {
    fn start() -> Self {
        let threads = tokio::runtime::Runtime::new().unwrap();
        let model = threads.block_on(ScriptedModel::start(model::Script::parse(SCRIPT).unwrap())).unwrap();
        let url = model.url();
        let real = Real::serving(&[
            ("ANTHROPIC_API_KEY", "sk-recorded"),
            ("ANTHROPIC_BASE_URL", &url),
            ("WARM_POOL_SIZE", "0"),
        ]);
        let configuration =
            real.post("/v1/configurations", &json!({"name": "app", "repos": []}))["id"].clone();
        Self { real, model, configuration, _threads: threads }
    }

    /// Creates a session of a mode, with more fields in the request.
    fn session(&mut self, mode: &str, fields: &Value) -> Watching {
        let mut body = match mode {
            "setup" => json!({"sessionType": "setup", "configurationId": self.configuration}),
            "coding" => json!({"configurationId": self.configuration}),
            "automation" => json!({"clientType": "automation", "configurationId": self.configuration}),
            _ => json!({}),
        };
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        self.real.new_session(&body);
        let mut socket = self.real.watch("");
        socket.until(|frame| frame["type"] == "status" && frame["payload"]["status"] == "running");
        socket
    }

    /// The instructions and the platform tools in the agent's last request to the model. Requests for a title have no
    /// tools, and come at any time.
    fn told(&self) -> (String, Vec<String>) {
        let mut requests = self.model.requests().into_iter().rev().map(|request| request.json());
        let body =
            requests.find(|body| body["tools"].as_array().is_some_and(|tools| !tools.is_empty())).unwrap();
        let tools = body["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap());
        let mut tools: Vec<_> = tools.filter(|name| TOOLS.contains(name)).map(str::to_owned).collect();
        tools.sort_unstable();
        let system = body["system"].as_array().unwrap().iter().map(|part| part["text"].as_str().unwrap());
        (system.collect(), tools)
    }
}

fn turn(socket: &mut Watching, prompt: &str) -> (String, Vec<Value>) {
    socket.prompt(prompt);
    let frames = socket.until_type("turn_complete");
    (tokens(&frames), frames)
}

#[test]
fn each_mode_has_its_instructions_and_its_tools_and_they_work() {
    let mut recorded = Recorded::start();
    for (mode, setup, tells) in [
        ("setup", true, &["Do not change source code", "Done — Save Snapshot"][..]),
        ("coding", false, &["the current directory is the user's repository", "smallest change"][..]),
        ("automation", false, &["smallest change", "This is mandatory", "must report the outcome"][..]),
        ("scratch", false, &["there is no repository"][..]),
    ] {
        let mut socket = recorded.session(mode, &json!({}));
        let (text, _) = turn(&mut socket, "hello");
        assert_eq!(text, "You said: hello", "{mode}");
        let (system, tools) = recorded.told();
        for part in tells
            .iter()
            .chain(&["API key, token or password of a connected integration", "Never print"])
            .chain(&COMMANDS)
        {
            assert!(system.contains(part), "{mode} is not told: {part}");
        }
        let has = |tool: &&str| match *tool {
            "automation_complete" => mode == "automation",
            "save_env_files" | "save_service_commands" => setup,
            _ => true,
        };
        let have: Vec<_> = TOOLS.into_iter().filter(has).collect();
        assert_eq!(tools, have, "{mode}");
        for tool in TOOLS {
            assert_eq!(system.contains(tool), have.contains(&tool), "{mode}: {tool}");
        }
        tools_of_setup(&mut socket, mode, setup);
        outcomes_are_reported_by_automations_alone(&mut socket, mode);
        variables_are_asked_for(&mut socket, mode);
        evidence_is_served(&recorded.real, &mut socket, mode);
        let target = if setup { "configuration" } else { "session" };
        let (text, frames) = turn(&mut socket, "please save the files");
        assert!(text.contains(&format!("Snapshot saved to {target}: ")), "{mode}: {text} {frames:?}");
    }
}

fn tools_of_setup(socket: &mut Watching, mode: &str, setup: bool) {
    for (prompt, saved) in [
        ("please save the commands", "Saved 1 service commands: web"),
        ("please save the env files", "Saved 1 environment files: .env"),
    ] {
        let (text, frames) = turn(socket, prompt);
        assert_eq!(text.contains(saved), setup, "{mode}: {text}");
        assert!(setup || is_refused(&text, &frames), "{mode}: {frames:?}");
    }
}

/// This session of an automation has no run.
fn outcomes_are_reported_by_automations_alone(socket: &mut Watching, mode: &str) {
    let (text, frames) = turn(socket, "please report the outcome");
    let reaches_the_gateway = text.contains("Run not found");
    assert_eq!(reaches_the_gateway, mode == "automation", "{mode}: {text}");
    assert!(reaches_the_gateway || is_refused(&text, &frames), "{mode}: {frames:?}");
}

fn is_refused(text: &str, frames: &[Value]) -> bool {
    let failed = |frame: &Value| frame["type"] == "tool_end" && frame["payload"]["status"] == "error";
    text.contains("unavailable tool") || frames.iter().any(failed)
}

fn variables_are_asked_for(socket: &mut Watching, mode: &str) {
    let (text, frames) = turn(socket, "please ask for variables");
    assert!(text.contains("The user was asked for: API_KEY, PORT"), "{mode}: {text}");
    let mut starts = frames.iter().filter(|frame| frame["type"] == "tool_start");
    let start = starts.rfind(|frame| !frame["payload"]["args"]["keys"].is_null()).unwrap();
    assert_eq!(start["payload"]["tool"], "request_env_variables", "{mode}");
    assert_eq!(start["payload"]["args"]["keys"][0]["key"], "API_KEY", "{mode}");
}

const WRITE_EVIDENCE_COMMAND: &str = "mkdir -p .proliferate/.verification/deep && cd .proliferate/.verification \
    && printf 'all 7 tests pass' > deep/test.log && printf PNG > page.png && : > empty \
    && printf 'API_KEY=canary-41' > .env && ln -s /etc/passwd link && mkfifo pipe \
    && head -c 11000000 /dev/zero > large.bin";

fn evidence_is_served(real: &Real, socket: &mut Watching, mode: &str) {
    real.shell(&real.sandbox(), WRITE_EVIDENCE_COMMAND);
    let (text, frames) = turn(socket, "please show the evidence");
    let result: Value = serde_json::from_str(text.trim_start_matches("It said: ")).unwrap_or_default();
    let prefix = result["key"].as_str().unwrap_or_else(|| panic!("{mode}: {text} {frames:?}"));
    assert!(prefix.starts_with(&format!("sessions/{}/verification/", real.session)), "{prefix}");
    for skipped in ["link (not a regular file)", "pipe (not", ".env (an environment", "large.bin (larger"] {
        assert!(result["skipped"].to_string().contains(skipped), "{result}");
    }
    let path = format!("/proliferate/{}/verification-media", real.session);
    let listed = real.get(&format!("{path}?prefix={prefix}"));
    let files: Vec<_> = listed["files"].as_array().unwrap().iter().map(|file| &file["path"]).collect();
    assert_eq!(files, ["deep/test.log", "page.png"], "{listed}");
    assert_eq!(listed["files"][0]["contentType"], "text/plain; charset=utf-8");
    let url = real.get(&format!("{path}?key={prefix}deep/test.log"))["url"].as_str().unwrap().to_owned();
    let client = http();
    assert_eq!(client.get(&url).send().unwrap().status(), 401, "it needs a credential");
    let content = client.get(&url).bearer_auth(real.key()).send().unwrap();
    assert_eq!(content.headers()["content-type"], "text/plain; charset=utf-8");
    assert_eq!(content.text().unwrap(), "all 7 tests pass");
    real.shell(&real.sandbox(), "rm -r .proliferate");
}

#[test]
fn a_custom_prompt_replaces_the_base_and_keeps_the_rules() {
    let mut recorded = Recorded::start();
    let id = recorded.configuration.as_str().unwrap().to_owned();
    let change = json!({"systemPrompt": "You are the pirate of this configuration."});
    recorded.real.patch(&format!("/v1/configurations/{id}"), &change);
    for (more, is) in [
        (json!({}), "You are the pirate of this configuration."),
        (
            json!({"systemPrompt": "You are the parrot of this session."}),
            "You are the parrot of this session.",
        ),
    ] {
        let mut socket = recorded.session("setup", &more);
        turn(&mut socket, "hello");
        let (system, tools) = recorded.told();
        assert!(system.contains(is) && !system.contains("Get the repositories"), "{system}");
        assert_eq!(system.contains("pirate"), is.contains("pirate"), "{system}");
        for rule in ["Do not change source code", "Done — Save Snapshot", "Never print", "`save_env_files`"]
        {
            assert!(system.contains(rule), "{rule}");
        }
        assert_eq!(tools, TOOLS[1..], "all tools of setup");
        recorded.real.post(&format!("/proliferate/{}/stop", recorded.real.session), &json!({}));
    }
}

#[test]
fn a_session_that_starts_at_once_has_the_same_instructions_and_calls_back() {
    let mut recorded = Recorded::start();
    let mut socket = recorded.session("coding", &json!({"sandboxMode": "immediate"}));
    let (text, frames) = turn(&mut socket, "please save the files");
    assert!(text.contains("Snapshot saved to session: "), "{frames:?}");
    assert!(recorded.told().0.contains("the current directory is the user's repository"));
}

/// The files of a sandbox that ended stay, and the agent would load every tool file that it finds.
#[test]
fn a_restart_removes_tool_files_that_the_mode_lacks() {
    let mut recorded = Recorded::start();
    let mut socket =
        recorded.session("coding", &json!({"agentConfig": {"tools": ["verify", "save_snapshot"]}}));
    turn(&mut socket, "hello");
    assert_eq!(recorded.told().1, ["save_snapshot", "verify"]);
    let sandbox = recorded.real.sandbox();
    let directory = "cd ~/.proliferate/agent/tool";
    assert_eq!(
        recorded.real.shell(&sandbox, &format!("{directory}; ls | tr '\\n' ' '")),
        "save_snapshot.js verify.js"
    );
    let stale = "sed 's/save_snapshot/save_env_files/; s/VERSION = 1/VERSION = 0/' save_snapshot.js > save_env_files.js; \
        sed -i 's/VERSION = 2/VERSION = 0/' verify.js";
    recorded.real.shell(&sandbox, &format!("{directory}; {stale}"));
    // The supervisor is the second process; the sandbox ends with it.
    recorded.real.machine.run(&["sandbox", "exec", &sandbox, "--", "kill", "-9", "2"]);
    // A prompt that the dying agent still takes fails with it.
    socket.until(|frame| frame["type"] == "status" && frame["payload"]["status"] == "resuming");
    let (text, _) = turn(&mut socket, "hello again");
    assert!(text.contains("hello again"), "{text}");
    let files = recorded
        .real
        .shell(&recorded.real.sandbox(), &format!("{directory}; ls | tr '\\n' ' '; grep -h 'VERSION =' *"));
    assert_eq!(files, "save_snapshot.js verify.js const VERSION = 1;\nconst VERSION = 2;");
    assert_eq!(recorded.told().1, ["save_snapshot", "verify"]);
}

/// The gateway dies when the files are saved and the outcome is not: the agent's tool calls the next gateway again, and
/// there is one upload.
#[test]
fn evidence_is_uploaded_once_although_the_gateway_dies_in_between() {
    let mut recorded = Recorded::start();
    drop(recorded.session("coding", &json!({})));
    let real = &mut recorded.real;
    real.shell(&real.sandbox(), WRITE_EVIDENCE_COMMAND);
    real.restart_with(&[("FAILPOINTS", "gate-executed=return")]);
    let mut socket = real.watch("");
    socket.prompt("please show the evidence");
    dead(real.server.take().unwrap());
    real.server = Some(real.machine.serve());
    let frames = real.watch("").until_type("turn_complete");
    let text = tokens(&frames);
    let result: Value = serde_json::from_str(text.trim_start_matches("It said: ")).unwrap_or_default();
    assert!(result["key"].is_string(), "{text} {frames:?}");
    let all = format!("sessions/{}/verification/", real.session);
    let listed = real.get(&format!("/proliferate/{}/verification-media?prefix={all}", real.session));
    assert_eq!(listed["files"].as_array().unwrap().len(), 2, "{listed}");
    let runs = real.get(&format!("/v1/runs?case_id={}&run_kind=tool_gateway", real.session))["runs"].clone();
    assert_eq!((runs.as_array().unwrap().len(), &runs[0]["status"]), (1, &json!("completed")), "{runs}");
    let verified = real.machine.run(&["audit", "verify"]);
    assert_eq!(verified.code, 0, "{}", verified.err);
    let path = format!("/v1/audit/events?run_id={}", runs[0]["run_id"].as_str().unwrap());
    let events = real.get(&path)["events"].clone();
    let outcome =
        events.as_array().unwrap().iter().find(|event| event["action_type"] == "tool_call").unwrap();
    let named = outcome["output_artifacts"].as_array().unwrap().iter();
    let evidence: Vec<_> = named.filter(|it| it["artifact_kind"] == "evidence").collect();
    assert_eq!(evidence.len(), 2, "{outcome}");
    let hash = hex::encode(Sha256::digest("all 7 tests pass"));
    assert!(evidence.iter().any(|it| it["hash_sha256"] == hash.as_str()), "{outcome}");
    // Who replaces a file with its hash leaves the id, which the event has, and the id contains the hash.
    behind_our_back(
        &real.machine,
        &[
            "UPDATE artifact_contents SET content = CAST('all 8 tests pass' AS BLOB)
            WHERE content = CAST('all 7 tests pass' AS BLOB)",
            "UPDATE artifacts SET hash_sha256 = '92e5b75e105066e7533248dfe4df7cf04e1b552acc7526408260bd1958332ac3'
            WHERE artifact_kind = 'evidence' AND content_type LIKE 'text/%'",
        ],
    );
    let changed = real.machine.run(&["audit", "verify"]);
    assert_eq!(changed.code, 1, "{}", changed.out);
    assert!(changed.err.contains("artifacts"), "{}", changed.err);
}
