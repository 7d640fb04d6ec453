//! End-to-end tests: this binary, OpenCode in a sandbox, a scripted model, and clients that watch.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::{Error, Message, WebSocket, client};

use crate::deadline::Deadline;
use crate::harness::{Machine, Server};

/// A timeout longer than a boot of the agent on a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_mins(2);

/// A client for a gateway that may have to boot an agent first.
pub(crate) fn http() -> reqwest::blocking::Client {
    reqwest::blocking::Client::builder().no_proxy().timeout(TEST_TIMEOUT).build().unwrap()
}

const SCRIPT: &str = r#"
[[rule]]
system = "title generator"
[[rule.step]]
text = "A title"

[[rule]]
when = "use bash"
[[rule.step]]
text = "I will ask the shell."
tool = [{ name = "bash", input = { command = "echo from-$((6 * 7)); pwd", description = "Ask" } }]
[[rule.step]]
text = "It said: {tool_result}"

[[rule]]
when = "read the trigger"
[[rule.step]]
tool = [{ name = "bash", input = { command = "cat ~/.proliferate/trigger-context.json", description = "Read" } }]
[[rule.step]]
text = "It said: {tool_result}"

[[rule]]
when = "count"
[[rule.step]]
text = "@COUNT@"
chunk = 8
delta_delay_ms = 40

[[rule]]
when = "save the commands"
[[rule.step]]
tool = [{ name = "save_service_commands", input = { commands = [{ name = "web", command = "npm run dev" }] } }]
[[rule.step]]
text = "It said: {tool_result}"

[[rule]]
when = "save the files"
[[rule.step]]
tool = [{ name = "save_snapshot", input = {} }]
[[rule.step]]
text = "It said: {tool_result}"

[[rule]]
when = "what were you told"
system = "the current directory is the user's repository"
[[rule.step]]
text = "There is a repository."

[[rule]]
when = "what were you told"
[[rule.step]]
text = "There is none."

[[rule]]
when = "break"
[[rule.step]]
error = { status = 400, message = "the model refuses" }

[[rule]]
[[rule.step]]
text = "You said: {prompt}"
"#;

/// The scripted answer to "count": long enough to be interrupted in the middle.
fn count() -> String {
    (1..=300).fold(String::new(), |text, number| format!("{text}{number} "))
}

/// A server with one session; its sandbox ends with it.
pub(crate) struct Real {
    pub(crate) machine: Machine,
    pub(crate) server: Option<Server>,
    pub(crate) key: String,
    pub(crate) session: String,
}

impl Real {
    pub(crate) fn start() -> Self {
        let mut real = Self::serving(&[]);
        real.new_session(&json!({}));
        real
    }

    /// Starts a server with these settings and no session.
    pub(crate) fn serving(settings: &[(&str, &str)]) -> Self {
        Self::on(Machine::new(), settings)
    }

    pub(crate) fn on(machine: Machine, settings: &[(&str, &str)]) -> Self {
        let script = machine.file("script.toml");
        std::fs::write(&script, SCRIPT.replace("@COUNT@", count().trim())).unwrap();
        let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools/node_modules/.bin");
        let path = format!("{}:{}", tools.display(), crate::harness::path());
        let machine = machine.with("PROLIFERATE_MODEL_SCRIPT", script.to_str().unwrap()).with("PATH", &path);
        // With a budget set, every model that the real agent requests must have a price.
        let machine = machine.with("MODEL_PRICES", "*=3/15").with("SESSION_BUDGET_DOLLARS", "50");
        // It would slow down every first turn.
        let machine = machine.with("SANDBOX_BROWSER", "0");
        let machine = settings.iter().fold(machine, |machine, (name, value)| machine.with(name, value));
        let server = machine.serve();
        let key = machine.json(&["keys", "create", "--name", "ci"])["key"].as_str().unwrap().to_owned();
        Self { machine, server: Some(server), key, session: String::new() }
    }

    /// Creates a session with additional fields in the request, and uses it from now on.
    pub(crate) fn new_session(&mut self, more: &Value) {
        let mut body = json!({"sessionType": "coding", "clientType": "web"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let made = self.post("/proliferate/sessions", &body);
        made["sessionId"].as_str().unwrap().clone_into(&mut self.session);
    }

    /// Sends a GET request as the member and expects success.
    pub(crate) fn get(&self, path: &str) -> Value {
        let (status, answer) = self.server().get(path, &self.key);
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    }

    pub(crate) fn patch(&self, path: &str, body: &Value) {
        let answer = self.request("PATCH", path).json(body).send().unwrap();
        assert!(answer.status().is_success(), "{path}: {}", answer.status());
    }

    pub(crate) fn delete(&self, path: &str) {
        let answer = self.request("DELETE", path).send().unwrap();
        assert!(answer.status().is_success(), "{path}: {}", answer.status());
    }

    /// Runs SQL directly on the gateway's database. Returns the text of the result, if any.
    pub(crate) fn sql(&self, statement: &'static str) -> Option<String> {
        let file = self.machine.data_dir().join("proliferate.db");
        let threads = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        threads.block_on(async {
            let pool = sqlx::SqlitePool::connect(&format!("sqlite:{}", file.display())).await.unwrap();
            let answer = sqlx::query_scalar(statement).fetch_optional(&pool).await.unwrap();
            pool.close().await;
            answer
        })
    }

    /// The ids of all sandboxes.
    pub(crate) fn sandboxes(&self) -> Vec<String> {
        let all = self.machine.json(&["sandbox", "ls"]);
        all.as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect()
    }

    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// The id of the session's current sandbox.
    pub(crate) fn sandbox(&self) -> String {
        let info = self.get(&format!("/proliferate/{}", self.session));
        info["sandboxId"].as_str().unwrap_or(&self.session).to_owned()
    }

    /// Runs a shell command in a sandbox and returns its output.
    pub(crate) fn shell(&self, sandbox: &str, command: &str) -> String {
        let ran = self.machine.run(&["sandbox", "exec", sandbox, "--", "sh", "-c", command]);
        assert_eq!(ran.code, 0, "{command}: {}", ran.err);
        ran.out.trim().to_owned()
    }

    pub(crate) fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    /// Sends a POST request and returns the status.
    pub(crate) fn try_post(&self, path: &str, body: &Value) -> u16 {
        self.send(path, body).status().as_u16()
    }

    fn send(&self, path: &str, body: &Value) -> reqwest::blocking::Response {
        let request = self.request("POST", path).header("content-type", "application/json");
        request.body(body.to_string()).send().unwrap()
    }

    /// A request with the owner's key, before its body.
    pub(crate) fn request(&self, method: &str, path: &str) -> reqwest::blocking::RequestBuilder {
        http().request(method.parse().unwrap(), self.server().url(path)).bearer_auth(&self.key)
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Value {
        let answer = self.send(path, body);
        assert!(answer.status().is_success(), "{path}: {}", answer.status());
        answer.json().unwrap()
    }

    /// Kills the gateway, as a power failure would, and starts it again.
    pub(crate) fn kill_and_start(&mut self) {
        self.server.take().unwrap().kill();
        self.server = Some(self.machine.serve());
    }

    /// Restarts the gateway with additional settings for this start only.
    pub(crate) fn restart_with(&mut self, settings: &[(&str, &str)]) {
        assert_eq!(self.server.take().unwrap().stop(), 0);
        self.server = Some(self.machine.serve_with(settings));
    }

    pub(crate) fn watch(&self, more: &str) -> Watching {
        let address = self.server().said["address"].as_str().unwrap();
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        let url = format!("ws://{address}/proliferate/{}?token={}{more}", self.session, self.key);
        let (socket, _) = client(url, stream).unwrap_or_else(|error| panic!("{error}"));
        Watching { socket, closed: None }
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        drop(self.server.take());
        for sandbox in self.sandboxes() {
            let removed = self.machine.run(&["sandbox", "rm", &sandbox]);
            assert!(removed.code == 0 || std::thread::panicking(), "{}", removed.err);
        }
    }
}

pub(crate) struct Watching {
    socket: WebSocket<TcpStream>,
    /// The close code and reason from the server.
    pub(crate) closed: Option<(u16, String)>,
}

impl Watching {
    pub(crate) fn frame(&mut self) -> Value {
        self.next().unwrap_or_else(|| panic!("the connection has ended"))
    }

    /// The next frame; `None` once the server has closed the connection.
    pub(crate) fn next(&mut self) -> Option<Value> {
        loop {
            match self.socket.read() {
                Ok(Message::Text(text)) => return Some(serde_json::from_str(&text).unwrap()),
                Ok(Message::Close(close)) => {
                    self.closed = close.map(|close| (close.code.into(), close.reason.to_string()));
                    return None;
                }
                Err(Error::ConnectionClosed | Error::Protocol(_)) => return None,
                Ok(_) => {}
                // A read may be interrupted when the whole machine is suspended for a moment.
                Err(Error::Io(error)) if error.kind() == ErrorKind::Interrupted => {}
                Err(Error::Io(error)) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }

    pub(crate) fn until(&mut self, mut wanted: impl FnMut(&Value) -> bool) -> Vec<Value> {
        let (deadline, mut frames) = (Deadline::new(), Vec::new());
        while frames.last().is_none_or(|last| !wanted(last)) {
            deadline.check(format_args!("a frame after {frames:?}"));
            frames.push(self.frame());
        }
        frames
    }

    pub(crate) fn until_type(&mut self, kind: &str) -> Vec<Value> {
        self.until(|frame| frame["type"] == kind)
    }

    pub(crate) fn say(&mut self, message: &Value) {
        self.socket.send(Message::text(message.to_string())).unwrap();
    }

    pub(crate) fn prompt(&mut self, content: &str) {
        self.say(&json!({"type": "prompt", "content": content}));
    }

    /// Reads until this many tokens have arrived.
    pub(crate) fn some_tokens(&mut self, many: usize) -> Vec<Value> {
        let mut seen = 0;
        self.until(|frame| {
            seen += usize::from(frame["type"] == "token");
            seen == many
        })
    }
}

pub(crate) fn tokens(frames: &[Value]) -> String {
    let tokens = frames.iter().filter(|frame| frame["type"] == "token");
    tokens.map(|frame| frame["payload"]["token"].as_str().unwrap()).collect()
}

fn numbered(frames: &[Value]) -> Vec<&Value> {
    frames.iter().filter(|frame| frame["seq"].is_number() && frame["type"] != "init").collect()
}

fn place(frames: &[Value]) -> i64 {
    numbered(frames).last().unwrap()["seq"].as_i64().unwrap()
}

fn assert_unbroken(frames: &[Value]) {
    let all: Vec<i64> = numbered(frames).iter().map(|frame| frame["seq"].as_i64().unwrap()).collect();
    assert!(all.windows(2).all(|pair| pair[1] == pair[0] + 1), "{all:?}");
}

pub(crate) fn outcome(frames: &[Value]) -> &str {
    frames.last().unwrap()["payload"]["outcome"].as_str().unwrap()
}

/// The error code of a failed commit follows from the state of the repository: a locked index, or conflicts.
fn failed_commits_have_codes(real: &Real, git: &mut impl FnMut(Value) -> Value) {
    let code = |result: Value| result["code"].as_str().unwrap().to_owned();
    real.shell(&real.session, "touch .git/index.lock");
    assert_eq!(code(git(json!({"type": "git_commit", "message": "m"}))), "REPO_BUSY");
    real.shell(&real.session, "rm .git/index.lock && echo ours > 'a file' && git commit -qam ours");
    let theirs = "git checkout -q -b theirs main && echo theirs > 'a file' && git commit -qam theirs";
    real.shell(&real.session, theirs);
    real.shell(&real.session, "! git merge -q work");
    assert_eq!(code(git(json!({"type": "git_commit", "message": "m", "files": ["b"]}))), "MERGE_CONFLICT");
    let back =
        "git rm -q --cached b && git merge --abort && git checkout -q work && git reset -q --hard HEAD~1";
    real.shell(&real.session, back);
}

#[test]
fn git_works_in_the_real_sandbox_and_answers_only_its_caller() {
    let mut real = Real::start();
    let mut socket = real.watch("");
    socket.until(|frame| frame["type"] == "status" && frame["payload"]["status"] == "running");
    socket.say(&json!({"type": "get_git_status"}));
    let none = socket.until_type("git_status").pop().unwrap();
    assert_eq!(none["payload"]["branch"], "", "a workspace without a repository has an empty state");
    socket.say(&json!({"type": "git_commit", "message": "m"}));
    let nowhere = socket.until_type("git_result").pop().unwrap();
    assert_eq!(nowhere["payload"]["code"], "NOT_A_REPO", "{nowhere}");
    let set_up =
        "git init -q -b main && git init -q --bare ../remote.git && echo one > 'a file' && echo two > b";
    assert_eq!(real.machine.run(&["sandbox", "exec", &real.session, "--", "sh", "-c", set_up]).code, 0);
    let mut git = |message: Value| {
        socket.say(&message);
        socket.until_type("git_result").pop().unwrap()["payload"].clone()
    };
    let code = |result: &Value| result["code"].as_str().unwrap().to_owned();
    assert_eq!(code(&git(json!({"type": "git_commit", "message": "m", "files": []}))), "NOTHING_TO_COMMIT");
    assert_eq!(code(&git(json!({"type": "git_commit", "message": "first", "files": ["a file"]}))), "SUCCESS");
    assert_eq!(code(&git(json!({"type": "git_create_branch", "branchName": "--orphan"}))), "UNKNOWN_ERROR");
    assert_eq!(code(&git(json!({"type": "git_create_branch", "branchName": "work"}))), "SUCCESS");
    assert_eq!(code(&git(json!({"type": "git_create_branch", "branchName": "main"}))), "BRANCH_EXISTS");
    failed_commits_have_codes(&real, &mut git);
    assert_eq!(code(&git(json!({"type": "git_push"}))), "NO_REMOTE");
    let remote = ["sandbox", "exec", &real.session, "--", "git", "remote", "add", "origin", "../remote.git"];
    assert_eq!(real.machine.run(&remote).code, 0);
    assert_eq!(code(&git(json!({"type": "git_push"}))), "NO_REMOTE", "remotes of the agent's do not count");
    assert_eq!(code(&git(json!({"type": "git_push", "workspacePath": "../.."}))), "UNKNOWN_ERROR");
    socket.say(&json!({"type": "get_git_status"}));
    let state = socket
        .until(|frame| frame["type"] == "git_status" && frame["payload"]["branch"] == "work")
        .pop()
        .unwrap();
    let state = &state["payload"];
    assert_eq!(
        (state["branch"].as_str(), state["commits"][0]["message"].as_str()),
        (Some("work"), Some("first"))
    );
    assert_eq!(state["untrackedFiles"], json!(["b"]));
    // Commits have the member as their author by default, and a repository's own configuration overrides it.
    let author = |real: &Real| real.shell(&real.session, "git log -1 --format='%an <%ae>'");
    let me = real.get("/v1/members")["members"][0].clone();
    let name = |field: &str| me[field].as_str().unwrap().to_owned();
    assert_eq!(author(&real), format!("{} <{}>", name("name"), name("email")));
    real.shell(&real.session, "git config user.name Ada && git commit -q --allow-empty -m second");
    assert_eq!(author(&real), format!("Ada <{}>", name("email")));
    let path = format!("/proliferate/sessions/{}/status", real.session);
    assert_eq!(real.get(&path)["sandboxAlive"], true);
    assert_eq!(real.get("/proliferate/sessions")["sessions"][0]["branchName"], "work");
    // A `git status` that was killed must not be reported as a clean repository.
    let filter = "git config filter.x.clean 'kill -9 $PPID; :' && echo '* filter=x' > .git/info/attributes";
    real.shell(&real.session, &format!("{filter} && touch 'a file'"));
    socket.say(&json!({"type": "get_git_status"}));
    let broken = socket.until(|frame| frame["type"] == "git_status" || frame["type"] == "git_result");
    let broken = &broken.last().unwrap()["payload"];
    assert_eq!(
        (&broken["action"], &broken["code"], &broken["message"]),
        (&json!("get_status"), &json!("UNKNOWN_ERROR"), &json!("git was killed by signal 9"))
    );
    // A client that floods the session with requests gets `REPO_BUSY`.
    for _ in 0..100 {
        socket.say(&json!({"type": "get_git_status"}));
    }
    socket.until(|frame| frame["type"] == "git_result" && frame["payload"]["code"] == "REPO_BUSY");
    // After the restart no owner monitors the sandbox; its status is checked on request.
    real.kill_and_start();
    assert_eq!(real.get(&path)["sandboxAlive"], true);
    assert_eq!(real.machine.run(&["sandbox", "rm", &real.session]).code, 0);
    let status = real.get(&path);
    assert_eq!(status["sandboxAlive"], false, "{status}");
}

#[test]
fn a_real_agent_works_for_two_clients_and_can_be_cancelled() {
    let real = Real::start();
    let (mut one, mut two) = (real.watch(""), real.watch(""));
    for socket in [&mut one, &mut two] {
        socket.until(|frame| frame["type"] == "status" && frame["payload"]["status"] == "running");
    }
    one.prompt("please use bash");
    let frames = one.until_type("turn_complete");
    assert_unbroken(&frames);
    let ended = frames.iter().find(|frame| frame["type"] == "tool_end").unwrap();
    let result = ended["payload"]["result"].as_str().unwrap();
    assert!(result.contains("from-42") && result.contains("/home/user/workspace"), "{result}");
    assert!(tokens(&frames).starts_with("I will ask the shell.It said:"), "{}", tokens(&frames));
    assert_eq!(outcome(&frames), "ok");
    let seen = two.until_type("turn_complete");
    let after = numbered(&frames)[0]["seq"].as_i64().unwrap();
    let same: Vec<_> =
        numbered(&seen).into_iter().filter(|frame| frame["seq"].as_i64().unwrap() >= after).collect();
    assert_eq!(same, numbered(&frames), "both see the same");

    one.prompt("break");
    let frames = one.until_type("turn_complete");
    assert_eq!(outcome(&frames), "error");
    let said = frames.iter().find(|frame| frame["type"] == "error").unwrap().to_string();
    assert!(said.contains("the model refuses"), "{said}");

    one.prompt("count, please");
    one.some_tokens(5);
    one.say(&json!({"type": "cancel"}));
    one.prompt("and now this");
    let frames = one.until_type("turn_complete");
    assert_eq!(outcome(&frames), "cancelled");
    let frames = one.until_type("turn_complete");
    assert_eq!((outcome(&frames), tokens(&frames).as_str()), ("ok", "You said: and now this"));
}

#[test]
fn the_event_that_started_a_session_is_in_its_sandbox() {
    let mut real = Real::serving(&[]);
    real.new_session(&json!({"triggerContext": {"issue": 7}}));
    let mut socket = real.watch("");
    socket.prompt("please read the trigger");
    let frames = socket.until_type("turn_complete");
    assert!(tokens(&frames).contains(r#"{"issue":7}"#), "{}", tokens(&frames));
}

#[test]
fn a_client_that_leaves_and_a_gateway_that_is_killed_lose_nothing() {
    let mut real = Real::start();
    let mut socket = real.watch("");
    socket.until(|frame| frame["type"] == "status" && frame["payload"]["status"] == "running");
    socket.prompt("count for me");
    let mut frames = socket.some_tokens(10);
    drop(socket);
    let mut socket = real.watch(&format!("&since={}", place(&frames)));
    frames.extend(socket.some_tokens(10));
    assert_unbroken(&frames);

    let many = frames.len();
    real.kill_and_start();
    let mut socket = real.watch(&format!("&since={}", place(&frames)));
    frames.extend(socket.until_type("turn_complete"));
    assert!(frames.iter().all(|frame| frame["type"] != "gap" && frame["type"] != "init"));
    assert_unbroken(&frames);
    let init = real.watch("").until_type("init").pop().unwrap();
    let answer = init["payload"]["messages"][1].clone();
    let text = answer["content"].as_str().unwrap().trim();
    // Either the agent survived and repeated its model request, or its partial answer is kept and marked as
    // interrupted.
    let (before, whole) = (tokens(&frames[..many]), count());
    assert!(before.len() > 20 && text.starts_with(&before), "{text}");
    if answer["interrupted"] == true {
        assert_eq!((whole.starts_with(text), outcome(&frames)), (true, "error"), "{text}");
    } else {
        assert_eq!((text, outcome(&frames)), (whole.trim(), "ok"));
    }
    socket.prompt("still there?");
    let frames = socket.until_type("turn_complete");
    assert_eq!((outcome(&frames), tokens(&frames).as_str()), ("ok", "You said: still there?"));
}
