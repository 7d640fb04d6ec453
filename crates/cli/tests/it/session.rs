//! Sessions from the terminal: the real binary, the real OpenCode in a real sandbox, and a scripted model.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, Stdio};

use serde_json::{Value, json};
use testkit::FaultProxy;

use crate::deadline::{Lines, until, wait_for_end};
use crate::harness::{Machine, Server, ended, path};

const SLOW_MODEL_SCRIPT: &str =
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen";
const SCRIPT: &str = r#"
[[rule]]
when = "count slowly"
[[rule.step]]
text = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
chunk = 4
delta_delay_ms = 150

[[rule]]
when = "ask me"
[[rule.step]]
tool = [{ name = "question", input = { questions = [{ question = "Which colour?", header = "Colour", options = [{ label = "Red", description = "Like a rose" }, { label = "Blue", description = "Like the sea" }] }] } }]
[[rule.step]]
text = "It heard: {tool_result}"

[[rule]]
[[rule.step]]
text = "A plain answer."
"#;

/// A machine with the agent that `make test` installs on its `PATH`.
pub(crate) fn machine() -> Machine {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools/node_modules/.bin");
    let machine = Machine::new().with("PATH", &format!("{}:{}", tools.display(), path()));
    machine.with("SANDBOX_BROWSER", "0")
}

/// A gateway whose model follows the script of these tests.
pub(crate) fn scripted() -> (Machine, Server) {
    let machine = machine();
    let script = machine.file("script.toml");
    std::fs::write(&script, SCRIPT).unwrap();
    let machine = machine.with("PROLIFERATE_MODEL_SCRIPT", &script.display().to_string());
    let server = machine.serve();
    (machine, server)
}

fn types(frames: &[Value]) -> Vec<&str> {
    frames.iter().filter_map(|frame| frame["type"].as_str()).collect()
}

/// Fails unless the sequence numbers increase by exactly one.
fn assert_whole(frames: &[Value]) {
    let numbers: Vec<i64> = frames.iter().filter_map(|frame| frame["seq"].as_i64()).collect();
    let expected: Vec<i64> = (numbers[0]..).take(numbers.len()).collect();
    assert_eq!(numbers, expected);
}

/// The agent's text, concatenated from its tokens.
fn spoken(frames: &[Value]) -> String {
    frames.iter().filter_map(|frame| frame["payload"]["token"].as_str()).collect()
}

#[test]
fn a_session_is_created_watched_prompted_listed_stopped_and_deleted() {
    let machine = machine();
    let server = machine.serve();
    let machine = machine.with("PROLIFERATE_URL", &server.url(""));
    let made = machine.run(&[
        "session",
        "new",
        "--title",
        "Tidy up",
        "--prompt",
        "list the files",
        "--attach",
        "--json",
    ]);
    assert_eq!(made.code, 0, "{}", made.err);
    let mut frames: Vec<Value> = made.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let id = frames.remove(0)["id"].as_str().unwrap().to_owned();
    assert_whole(&frames);
    assert!(spoken(&frames).contains("That was a real command"), "{}", made.out);
    let call = frames.iter().rfind(|frame| frame["type"] == "tool_start").unwrap();
    assert_eq!(
        (&call["payload"]["tool"], &call["payload"]["args"]["command"]),
        (&json!("bash"), &json!("ls -la"))
    );
    assert!(types(&frames).contains(&"tool_end"));
    let last = frames.last().unwrap();
    assert_eq!((&last["type"], &last["payload"]["outcome"]), (&json!("turn_complete"), &json!("ok")));

    let listed = machine.json(&["session", "ls", "--status", "running"]);
    assert_eq!((&listed[0]["id"], &listed[0]["title"]), (&json!(id), &json!("Tidy up")));
    let answered = machine.run(&["session", "prompt", &id, "create a file", "--wait"]);
    assert_eq!(answered.code, 0, "{}", answered.err);
    for said in
        ["› create a file\n", "→ write {\"content\":", "→ bash {\"command\":\"cat hello.txt\"", "it says:"]
    {
        assert!(answered.out.contains(said), "{said} is not in:\n{}", answered.out);
    }
    assert!(!answered.out.contains('\u{1b}'), "colours are for terminals");
    assert!(!answered.out.contains("list the files\n"), "what was said before is not asked for");
    let refused = machine.run(&["session", "prompt", &id, "give me an error", "--wait"]);
    assert_eq!(refused.code, 1, "{}", refused.out);
    let piped = machine.feed(&["session", "attach", &id], "hello\n\nthink\n");
    assert_eq!(piped.code, 0, "{}", piped.err);
    let (before, after) = piped.out.split_once("› hello\n").unwrap();
    assert!(
        before.contains("› list the files") && before.contains("hello.txt"),
        "the history comes first: {before}"
    );
    assert!(
        after.contains("I am the built-in model") && after.contains("› think\nI have thought"),
        "{after}"
    );

    assert_eq!(machine.run(&["session", "stop", &id]).code, 0);
    assert_eq!(machine.json(&["session", "ls"])[0]["status"], "stopped");
    let shown = machine.run(&["session", "show", &id]);
    assert!(
        shown.out.starts_with("› list the files\n") && shown.out.contains("I have thought"),
        "{}",
        shown.out
    );
    assert_eq!(machine.json(&["session", "ls"])[0]["status"], "stopped", "looking woke it");
    assert_eq!(machine.run(&["session", "rm", &id]).code, 0);
    let gone = machine.run(&["session", "show", &id]);
    assert_eq!(gone.code, 1);
    assert!(gone.err.contains("session ls"), "{}", gone.err);
}

#[test]
fn attach_outlives_its_connection_and_its_gateway() {
    let (machine, server) = scripted();
    let address = server.url("").trim_start_matches("http://").to_owned();
    let wire = Wire::start(&address);
    let token = machine.run(&["token", "user"]).out.trim().to_owned();
    let machine = machine.with("PROLIFERATE_URL", &format!("http://{}", wire.proxy.address()));
    let machine = machine.with("PROLIFERATE_TOKEN", &token);

    let mut watcher =
        Watcher::start(&machine, &["session", "new", "--attach", "--json", "--prompt", "count slowly"]);
    let id = watcher.next()["id"].as_str().unwrap().to_owned();
    let mut frames = watcher.until("token");
    wire.proxy.reset_now();
    frames.extend(watcher.until("turn_complete"));
    assert_eq!(spoken(&frames), SLOW_MODEL_SCRIPT, "nothing is lost and nothing comes twice");
    server.kill();
    let _server: Server = machine.serve_at(&address);
    writeln!(watcher.input.as_mut().unwrap(), "and another one").unwrap();
    frames.extend(watcher.until("turn_complete"));
    assert_eq!(spoken(&frames), format!("{SLOW_MODEL_SCRIPT}A plain answer."));
    assert_whole(&frames);
    assert!(!types(&frames).contains(&"gap"), "{frames:?}");
    assert_eq!(watcher.end(), 0);

    let mut waiting =
        Watcher::start(&machine, &["session", "prompt", &id, "count slowly", "--wait", "--json"]);
    waiting.until("token");
    waiting.interrupt();
    let rest = waiting.until("turn_complete");
    assert_eq!(rest.last().unwrap()["payload"]["outcome"], "cancelled");
    assert_eq!(waiting.end(), 1, "a turn that was cancelled did not go well");
    // Remove the session: dropping the server kills it, and no next gateway would clean up its sandbox.
    assert_eq!(machine.run(&["session", "rm", &id]).code, 0);
}

#[test]
fn prompts_queued_when_a_session_stops_are_never_sent() {
    let (machine, server) = scripted();
    let machine = machine.with("PROLIFERATE_URL", &server.url(""));
    let mut watcher =
        Watcher::start(&machine, &["session", "new", "--attach", "--json", "--prompt", "count slowly"]);
    let id = watcher.next()["id"].as_str().unwrap().to_owned();
    watcher.until("token");
    assert_eq!(machine.run(&["session", "prompt", &id, "this one waits"]).code, 0);
    assert_eq!(machine.run(&["session", "stop", &id]).code, 0);
    assert_eq!(watcher.end(), 1, "its turn did not go well");
    server.kill();
    let server = machine.serve();
    let machine = machine.with("PROLIFERATE_URL", &server.url(""));
    let asked = machine.run(&["session", "prompt", &id, "a new beginning", "--wait"]);
    assert_eq!(asked.code, 0, "{}", asked.err);
    let shown = machine.run(&["session", "show", &id]).out;
    assert!(shown.starts_with("› count slowly\none") && shown.contains("(interrupted)"), "{shown}");
    assert!(shown.ends_with("› a new beginning\nA plain answer.\n"), "{shown}");
    assert!(!shown.contains("this one waits"), "{shown}");
    assert_eq!(machine.run(&["session", "rm", &id]).code, 0);
}

#[test]
fn a_prompt_that_is_cancelled_during_the_boot_is_never_sent() {
    let (machine, server) = scripted();
    let machine = machine.with("PROLIFERATE_URL", &server.url(""));
    let mut watcher =
        Watcher::start(&machine, &["session", "new", "--attach", "--json", "--prompt", "too early"]);
    let id = watcher.next()["id"].as_str().unwrap().to_owned();
    watcher.until("init");
    watcher.interrupt();
    watcher.until("message_cancelled");
    assert_eq!(watcher.end(), 1, "it was not answered");
    let asked = machine.run(&["session", "prompt", &id, "in time", "--wait"]);
    assert_eq!(asked.code, 0, "{}", asked.err);
    assert_eq!(machine.run(&["session", "show", &id]).out, "› in time\nA plain answer.\n");
    assert_eq!(machine.run(&["session", "rm", &id]).code, 0);
}

#[test]
fn obstacles_to_a_start_are_named_with_their_remedy() {
    let machine = Machine::new();
    let none = machine.run(&["session", "ls"]);
    assert_eq!(none.code, 3);
    assert!(none.err.contains("PROLIFERATE_TOKEN"), "{}", none.err);
    let server = machine.serve();
    let away = machine.run(&["session", "ls", "--url", "http://127.0.0.1:1", "--token", "x"]);
    assert_eq!(away.code, 3);
    assert!(away.err.contains("proliferate up"), "{}", away.err);
    let stranger = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    stranger.set_nonblocking(true).unwrap();
    let theirs = format!("http://{}", stranger.local_addr().unwrap());
    let refused = machine.run(&["session", "ls", "--url", &theirs]);
    let setting = machine.command(&["session", "ls"]).env("PROLIFERATE_URL", &theirs).output().unwrap();
    for refused in [refused, ended(&setting)] {
        assert_eq!(refused.code, 3, "{}", refused.out);
        let remedy = format!("there is no credential for {theirs}/: `proliferate login {theirs}/` first");
        assert!(refused.err.contains(&remedy), "{}", refused.err);
    }
    let nobody = stranger.accept().unwrap_err().kind();
    assert_eq!(nobody, std::io::ErrorKind::WouldBlock, "the owner's token was sent to a stranger");
    let url = server.url("");
    let ls = |args: &[&str]| machine.run(&[&["session", "ls", "--url", &url], args].concat());
    assert_eq!(ls(&[]).out, "none\n");
    let stranger = ls(&["--token", "nonsense"]);
    assert_eq!(stranger.code, 1);
    assert!(stranger.err.contains("proliferate login URL"), "{}", stranger.err);
    assert_eq!(ls(&["--status", "asleep"]).code, 2);
    assert_eq!(machine.run(&["session", "ls", "--url", "ftp://here"]).code, 2);
    let unknown = machine.run(&["session", "new", "--url", &url, "--model", "hal-9000"]);
    assert_eq!(unknown.code, 1);
    assert!(unknown.err.contains("No configured provider serves the model hal-9000"), "{}", unknown.err);
    let empty = machine.run(&["session", "prompt", "--url", &url, &"0".repeat(8), " "]);
    assert!(empty.err.contains("session ls"), "{}", empty.err);
}

/// A fault-injecting proxy between the terminal and the gateway.
struct Wire {
    proxy: FaultProxy,
    _threads: tokio::runtime::Runtime,
}

impl Wire {
    fn start(address: &str) -> Self {
        let threads =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let target: SocketAddr = address.parse().unwrap();
        Self { proxy: threads.block_on(FaultProxy::start(target)).unwrap(), _threads: threads }
    }
}

#[test]
fn a_session_that_nobody_watches_begins_with_its_prompt() {
    let (machine, server) = scripted();
    let machine = machine.with("PROLIFERATE_URL", &server.url(""));
    let id = machine.json(&["session", "new", "--prompt", "hello"])["id"].as_str().unwrap().to_owned();
    // Showing a session does not boot it.
    let shown = || machine.run(&["session", "show", &id]).out;
    until("there is no answer", || shown().contains("A plain answer."));
    assert_eq!(shown(), "› hello\nA plain answer.\n");
    machine.json(&["session", "rm", &id]);
}

/// Inserts more messages than the first frame of a stream contains.
const INSERT_SESSIONS_SQL: &str = "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 20)
    INSERT INTO messages (session_id, id, org_id, position, role, content, is_complete, interrupted, created_at)
    SELECT s.id, printf('msg_%02d', n.n), s.org_id, n.n, 'user', printf('number %d ', n.n) || hex(zeroblob(500000)),
    1, 0, '2026-11-15T12:00:00+00:00' FROM sessions s, n";

#[test]
fn a_long_conversation_is_shown_completely() {
    let (machine, server) = scripted();
    let url = server.url("");
    let machine = machine.with("PROLIFERATE_URL", &url);
    let id = machine.json(&["session", "new"])["id"].as_str().unwrap().to_owned();
    let file = machine.data_dir().join("proliferate.db");
    let threads = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    threads.block_on(async {
        let pool = sqlx::SqlitePool::connect(&format!("sqlite:{}", file.display())).await.unwrap();
        sqlx::query(INSERT_SESSIONS_SQL).execute(&pool).await.unwrap();
        pool.close().await;
    });
    let shown = machine.json(&["session", "show", &id]);
    let ids: Vec<_> =
        shown["payload"]["messages"].as_array().unwrap().iter().map(|one| one["id"].clone()).collect();
    assert_eq!(ids, (1..=20).map(|number| json!(format!("msg_{number:02}"))).collect::<Vec<_>>());
    let text = machine.run(&["session", "show", &id]);
    assert_eq!((text.code, text.out.matches("number ").count()), (0, 20), "{}", text.err);
    let attached = machine.run(&["session", "attach", &id]);
    assert!(attached.err.contains("earlier messages: `proliferate session show"), "{}", attached.err);
    machine.json(&["session", "rm", &id]);
}

/// A command that prints frames as JSON.
struct Watcher {
    child: Child,
    input: Option<ChildStdin>,
    out: Lines,
}

impl Watcher {
    fn start(machine: &Machine, args: &[&str]) -> Self {
        let mut child = machine.command(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let out = Lines::of(child.stdout.take().unwrap());
        Self { input: child.stdin.take(), child, out }
    }

    fn next(&mut self) -> Value {
        let line = self.out.next().unwrap_or_else(|| panic!("it ended too early"));
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error} in {line}"))
    }

    /// Reads all frames up to and including the next one of this type.
    fn until(&mut self, kind: &str) -> Vec<Value> {
        let mut frames = vec![self.next()];
        while frames.last().unwrap()["type"] != kind {
            frames.push(self.next());
        }
        frames
    }

    fn interrupt(&self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    }

    /// Closes standard input, waits for the end, and returns the exit code.
    fn end(&mut self) -> i32 {
        self.input = None;
        while self.out.next().is_some() {}
        wait_for_end("the end of the command", &mut self.child).code().unwrap_or(-1)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
