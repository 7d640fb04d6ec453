//! A running OpenCode process with its own home, configuration directory and repository.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use agent::instructions::Part;
use agent::{AgentType as _, Setup, Tool, Urls};
use clock::{Clock, Rng};
use model::Script;
use opencode::OpenCode;
use opencode::api::{Client, Dial, Endpoint};
use opencode::files::VERSION;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::json;
use tempfile::TempDir;
use testkit::ScriptedModel;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

/// Aborts a test that would hang.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_mins(1);
pub(crate) const MODEL: &str = "anthropic/claude-opus-4-6";
pub(crate) const KEY: &str = "pls_first_key";

fn probe() -> Tool {
    Tool {
        name: "probe",
        version: 1,
        description: "Probes.",
        schema: json!({ "type": "object", "properties": {}, "required": [] }),
        execute: Some("() => 'probed'"),
    }
}

const RULES: &str = r#"
[[rule]]
when = "scripted tool"
[[rule.step]]
text = "I run it."
tool = [{ name = "bash", input = { command = "echo sum-$((40 + 2)) pager-$PAGER", description = "Add" } }]
[[rule.step]]
text = "It printed {tool_result}"

[[rule]]
when = "scripted slowness"
[[rule.step]]
text = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
chunk = 4
delta_delay_ms = 100

[[rule]]
when = "scripted refusal"
[[rule.step]]
error = { status = 400, message = "refused by the script" }

[[rule]]
when = "scripted limit"
[[rule.step]]
error = { status = 429, message = "slow down", retry_after_ms = 1, times = 1 }
text = "after the wait"

[[rule]]
when = "scripted probe"
[[rule.step]]
tool = [{ name = "probe" }]
[[rule.step]]
text = "It said {tool_result}"

[[rule]]
when = "scripted delegation"
[[rule.step]]
tool = [{ name = "task", input = { description = "Help", prompt = "be the scripted helper", subagent_type = "general" } }]
[[rule.step]]
text = "My helper is done."

[[rule]]
when = "scripted helper"
[[rule.step]]
text = "I am the helper."

[[rule]]
[[rule.step]]
text = "A plain answer."
"#;

pub(crate) struct Agent {
    pub(crate) model: ScriptedModel,
    process: Process,
    home: TempDir,
    pub(crate) clock: Clock,
    pub(crate) rng: Rng,
}

struct Process {
    address: SocketAddr,
    child: Child,
    /// Kept open, so that the process does not fail when it writes.
    _stdout: Lines<BufReader<ChildStdout>>,
}

impl Agent {
    pub(crate) async fn start() -> Self {
        let model = ScriptedModel::start(Script::parse(RULES).unwrap()).await.unwrap();
        let home = TempDir::new().unwrap();
        make_repository(&home.path().join("repo"));
        let process = Process::start(home.path(), &model.url()).await;
        let (clock, rng) = (Clock::system(), Rng::system());
        let agent = Self { model, process, home, clock, rng };
        agent.assert_ready().await;
        agent
    }

    /// Simulates a power failure and a restart.
    pub(crate) async fn kill_and_start(&mut self) {
        self.process.kill().await;
        self.process = Process::start(self.home.path(), &self.model.url()).await;
        self.assert_ready().await;
    }

    async fn assert_ready(&self) {
        let version = self.client().wait_until_ready(TEST_TIMEOUT).await.unwrap();
        assert_eq!(version, VERSION);
    }

    pub(crate) fn client(&self) -> Client<impl Dial + use<>> {
        let address = self.process.address;
        Client::new(move || TcpStream::connect(address), Endpoint::local())
    }

    pub(crate) fn now(&self) -> i64 {
        self.clock.now().timestamp_millis()
    }

    pub(crate) fn repository(&self) -> PathBuf {
        self.home.path().join("repo")
    }

    pub(crate) fn write_key(&self, key: &str) {
        fs::write(self.home.path().join("ours/model-key"), key).unwrap();
    }
}

impl Process {
    async fn start(home: &Path, model_url: &str) -> Self {
        let (directory, repository) = (home.join("ours"), home.join("repo"));
        let setup = Setup {
            home: home.to_str().unwrap(),
            directory: directory.to_str().unwrap(),
            workspace: repository.to_str().unwrap(),
            urls: Urls { model: model_url, mcp: "http://127.0.0.1:1/mcp" },
            model_key: KEY,
            session: None,
            model: MODEL,
            chat_models: &[],
            instructions: Part::Coding.text(),
            tools: &[probe()],
            browser: None,
            port: 0,
        };
        for entry in OpenCode.files(&setup) {
            fs::create_dir_all(Path::new(&entry.path).parent().unwrap()).unwrap();
            fs::write(&entry.path, &entry.contents).unwrap();
        }
        let mut child = command(home, &setup).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = timeout(TEST_TIMEOUT, wait_for_address(&mut lines, home)).await.unwrap();
        Self { address, child, _stdout: lines }
    }

    /// Kills the whole process group, because the agent starts processes of its own.
    fn kill_group(&self) {
        let id = self.child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        if let Some(id) = id {
            let _ = kill_process_group(id, Signal::KILL);
        }
    }

    async fn kill(&mut self) {
        self.kill_group();
        self.child.wait().await.unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill_group();
    }
}

async fn wait_for_address(lines: &mut Lines<BufReader<ChildStdout>>, home: &Path) -> SocketAddr {
    while let Some(line) = lines.next_line().await.unwrap() {
        if let Some((_, address)) = line.split_once("listening on http://") {
            return address.trim().parse().unwrap();
        }
    }
    panic!("OpenCode ended: {}", fs::read_to_string(home.join("stderr")).unwrap())
}

/// A repository with its own agent configuration: its instructions must be used, its model provider must not.
fn make_repository(directory: &Path) {
    fs::create_dir_all(directory.join(".opencode/tool")).unwrap();
    fs::write(directory.join("AGENTS.md"), "The house rule of this repository is tidiness.\n").unwrap();
    let elsewhere =
        r#"{"provider":{"anthropic":{"options":{"baseURL":"http://127.0.0.1:9/v1","apiKey":"theirs"}}}}"#;
    fs::write(directory.join("opencode.json"), elsewhere).unwrap();
    fs::write(directory.join(".opencode/opencode.json"), elsewhere).unwrap();
    let tool = "export default { description: 'x', args: {}, execute: async () => 'x' }\n";
    fs::write(directory.join(".opencode/tool/theirs.js"), tool).unwrap();
    git(directory, &["init", "-q"]);
    git(directory, &["add", "-A"]);
    git(directory, &["-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "-qm", "first"]);
}

pub(crate) fn git(directory: &Path, arguments: &[&str]) -> String {
    let output = std::process::Command::new("git").current_dir(directory).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn command(home: &Path, setup: &Setup<'_>) -> Command {
    let binary = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools/node_modules/.bin/opencode");
    assert!(binary.exists(), "OpenCode is not installed: run `make test`, which installs OpenCode");
    let launch = OpenCode.launch(setup);
    let mut command = std::process::Command::new(binary);
    command
        .args(launch.arguments)
        .current_dir(home.join("repo"))
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .envs(launch.environment)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(File::create(home.join("stderr")).unwrap())
        .process_group(0);
    let mut command = Command::from(command);
    command.kill_on_drop(true);
    command
}
