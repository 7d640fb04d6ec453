//! The experience at a terminal: names instead of ids, a prompt with history, completion, and clear messages.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;

use serde_json::Value;

use crate::deadline::{DEADLINE, until, wait_for_end};
use crate::harness::{Machine, Server};
use crate::session::scripted;

/// A machine with two organizations, one of which has a member.
fn acme() -> Machine {
    let machine = Machine::new();
    machine.json(&["orgs", "create", "--name", "First"]);
    machine.json(&["orgs", "create", "--name", "Acme Corp"]);
    let args = ["users", "create", "--email", "ada@example.com", "--name", "Ada", "--role", "owner"];
    machine.json(&[&args[..], &["--org", "acme corp"]].concat());
    machine
}

#[test]
fn names_addresses_and_beginnings_of_ids_stand_for_ids() {
    let machine = acme();
    for named in ["ada@example.com", "ada"] {
        let changed = machine.run(&["users", "role", named, "owner", "--org", "Acme Corp"]);
        assert_eq!(changed.code, 0, "{}", changed.err);
    }
    let id = machine.json(&["users", "ls", "--org", "Acme Corp"])[0]["id"].as_str().unwrap().to_owned();
    assert_eq!(machine.run(&["token", "user", "--user", &id[..18]]).code, 0);
    machine.json(&["keys", "create", "--name", "ci", "--user", "ada@example.com"]);
    assert_eq!(machine.run(&["keys", "revoke", "ci", "--org", "acme corp"]).code, 0);
    let unknown = machine.run(&["users", "rm", "eve@example.com", "--org", "Acme Corp"]);
    assert!(unknown.code == 1 && unknown.err.contains("proliferate users ls"), "{}", unknown.err);
    machine.json(&["orgs", "create", "--name", "acme CORP"]);
    let several = machine.run(&["users", "ls", "--org", "acme corp"]);
    assert_eq!(several.code, 2);
    assert!(several.err.contains("Acme Corp") && several.err.contains("acme CORP"), "{}", several.err);
}

#[test]
fn names_in_the_database_are_completed() {
    let machine = acme();
    let complete = |words: &[&str]| {
        let mut command = machine.command(&[&["--", "proliferate"], words].concat());
        command.env("COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", words.len().to_string());
        command.env("_CLAP_IFS", "\n").env("_CLAP_COMPLETE_COMP_TYPE", "9");
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    assert_eq!(complete(&["users", "role", "ad"]), "ada@example.com");
    assert!(complete(&["users", "role", "ada", ""]).contains("member"));
    assert!(complete(&["token", "user", "--org", "F"]).contains("First"));
    assert!(complete(&["ses"]).contains("session"));
    let elsewhere = machine.file("elsewhere").display().to_string();
    assert_eq!(complete(&["--data-dir", &elsewhere, "users", "role", "ad"]), "", "and nothing is made there");
    assert!(!Path::new(&elsewhere).exists());
}

#[test]
fn a_running_gateway_is_found_on_whichever_port_it_is() {
    let machine = Machine::new();
    let server = machine.serve();
    let listed = machine.run(&["session", "ls"]);
    assert_eq!((listed.code, listed.out.as_str()), (0, "none\n"), "{}", listed.err);
    server.kill();
    assert!(machine.data_dir().join("address").exists(), "the killed one left it");
    let machine = machine.with("PROLIFERATE_LISTEN", "127.0.0.1:1");
    let gone = machine.run(&["session", "ls"]);
    assert_eq!(gone.code, 3);
    assert!(gone.err.contains("no gateway serves"), "no address is asked: {}", gone.err);
}

#[test]
fn nothing_hostile_reaches_the_terminal_in_text_or_json() {
    let machine = Machine::new();
    let evil = "a\u{202e}b\u{9b}2Jc";
    let made = machine.run(&["orgs", "create", "--name", evil]);
    let shown =
        [made.out, made.err, machine.run(&["orgs", "ls"]).out, machine.run(&["orgs", "ls", "--json"]).out];
    for text in shown {
        assert!(!text.contains(['\u{202e}', '\u{9b}']), "{text:?}");
    }
    let asked = machine.run(&["users", "ls", "--org", evil]);
    assert!(!asked.err.contains(['\u{202e}', '\u{9b}']), "{:?}", asked.err);
}

#[test]
fn a_missing_permission_is_not_reported_as_damage() {
    let machine = acme();
    let file = machine.data_dir().join("proliferate.db");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o000)).unwrap();
    let said = if rustix::process::geteuid().is_root() {
        let shown = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(machine.data_dir(), shown.clone()).unwrap();
        std::fs::set_permissions(machine.data_dir().parent().unwrap(), shown).unwrap();
        // Copy the program: the build directory may not be readable for an ordinary user.
        let directory = tempfile::tempdir().unwrap();
        let machine = machine.moved_to(directory.path());
        let plain = machine.command(&["orgs", "ls"]);
        let mut user = Command::new("setpriv");
        user.args(["--reuid=61236", "--regid=61236", "--clear-groups", "--"]).arg(plain.get_program());
        user.args(plain.get_args()).env_clear();
        user.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        String::from_utf8(user.output().unwrap().stderr).unwrap()
    } else {
        machine.run(&["orgs", "ls"]).err
    };
    assert!(said.contains("no permission") && !said.contains("backup"), "{said}");
}

#[test]
fn a_command_that_is_not_there_is_exit_code_127() {
    let machine = Machine::new();
    let ran = machine.run(&["sandbox", "run", "--offline", "--", "no-such-command"]);
    assert_eq!(ran.code, 127, "{}", ran.err);
    assert!(ran.err.contains("no-such-command: command not found"), "{}", ran.err);
    let ran = machine.run(&["sandbox", "run", "--offline", "--", "/etc/hostname"]);
    assert_eq!(ran.code, 126, "{}", ran.err);
}

#[test]
fn doctor_tries_what_serve_needs_and_changes_nothing() {
    let machine = Machine::new();
    machine.serve().stop();
    let before = everything_in(&machine.data_dir());
    let (bad, script) = (machine.file("policy"), machine.file("script.toml"));
    std::fs::create_dir(&bad).unwrap();
    std::fs::write(bad.join("lanes.yaml"), "lanes: [").unwrap();
    std::fs::write(&script, "[[rule").unwrap();
    let keys = machine.data_dir().join("keys.env");
    let kept = std::fs::read(&keys).unwrap();
    let machine = machine
        .with("PROLIFERATE_POLICY_DIR", bad.to_str().unwrap())
        .with("PROLIFERATE_MODEL_SCRIPT", script.to_str().unwrap());
    let failed = || {
        let report: Value = serde_json::from_str(&machine.run(&["doctor", "--json"]).out).unwrap();
        let bad = |check: &&Value| check["state"] == "failed";
        let names =
            report["checks"].as_array().unwrap().iter().filter(bad).map(|check| check["name"].clone());
        names.map(|name| name.as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let names = failed();
    assert!(names.contains(&"policy".to_owned()) && names.contains(&"model script".to_owned()), "{names:?}");
    assert!(!names.contains(&"secrets".to_owned()), "{names:?}");
    assert_eq!(everything_in(&machine.data_dir()), before, "it changed something");
    std::fs::write(&keys, "GATEWAY_JWT_SECRET=x\n").unwrap();
    assert!(failed().contains(&"secrets".to_owned()));
    std::fs::write(&keys, kept).unwrap();
}

/// Every file with its content and modification time.
fn everything_in(directory: &Path) -> Vec<(String, Vec<u8>, std::time::SystemTime)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            found.extend(everything_in(&path));
        } else {
            let changed = entry.metadata().unwrap().modified().unwrap();
            found.push((path.display().to_string(), std::fs::read(&path).unwrap(), changed));
        }
    }
    found.sort();
    found
}

#[test]
fn wait_shows_and_waits_for_its_own_prompt_alone() {
    let (machine, server) = scripted();
    // Stopping the gateway signs the ledger.
    machine.run(&["policy", "lock", "--reason", "r"]);
    machine.run(&["policy", "unlock", "--reason", "r"]);
    server.stop();
    let server = machine.serve();
    let id = machine.json(&["session", "new", "--prompt", "count slowly"])["id"].as_str().unwrap().to_owned();
    // Send the same prompt twice: `--wait` must not show the first one.
    assert_eq!(machine.run(&["session", "prompt", &id, "hello"]).code, 0);
    let asked = machine.run(&["session", "prompt", &id, "hello", "--wait"]);
    assert_eq!(asked.code, 0, "{}", asked.err);
    assert_eq!(asked.out, "› hello\nA plain answer.\n");
    let counted = metrics(&server);
    for (name, least) in [
        ("live_sessions", 1),
        ("sandboxes", 1),
        ("sandbox_memory_bytes", 1_000_000),
        ("turns_total{outcome=\"ok\"}", 3),
        ("model_requests_total", 3),
        ("model_tokens_total{kind=\"output\"}", 3),
        ("checkpoint_age_seconds", 0),
    ] {
        let line = counted.lines().find_map(|line| line.strip_prefix(&format!("proliferate_{name} ")));
        let value = line.unwrap_or_else(|| panic!("{name} is not in:\n{counted}"));
        assert!(value.parse::<f64>().unwrap() >= f64::from(least), "{name} {value}");
    }
    let said = machine.run(&["session", "show", &id]).out;
    assert!(said.contains("fifteen") && said.matches("A plain answer.").count() == 2, "{said}");
    machine.json(&["session", "rm", &id]);
}

fn metrics(server: &Server) -> String {
    let client = reqwest::blocking::Client::builder().no_proxy().build().unwrap();
    client.get(server.url("/metrics")).send().unwrap().text().unwrap()
}

/// A command running on its own pseudo-terminal.
struct Typing {
    child: Child,
    keys: Option<ChildStdin>,
    screen: mpsc::Receiver<Vec<u8>>,
    seen: String,
}

impl Typing {
    fn start(machine: &Machine, args: &[&str]) -> Self {
        let plain = machine.command(args);
        let words = std::iter::once(plain.get_program()).chain(plain.get_args());
        let line = words.map(|word| format!("'{}'", word.to_str().unwrap())).collect::<Vec<_>>().join(" ");
        let mut script = Command::new("script");
        script.args(["-qec", &line, "/dev/null"]).env_clear().env("TERM", "xterm").env("SHELL", "/bin/sh");
        script.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let mut child = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (tell, screen) = mpsc::channel();
        let mut out = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(length @ 1..) = out.read(&mut piece) {
                let _ = tell.send(piece[..length].to_vec());
            }
        });
        Self { keys: child.stdin.take(), child, screen, seen: String::new() }
    }

    fn until(&mut self, wanted: &str) {
        while !self.seen.contains(wanted) {
            let piece = self.screen.recv_timeout(DEADLINE);
            let piece = piece.unwrap_or_else(|_| panic!("{wanted:?} is not in {:?}", self.seen));
            self.seen.push_str(&String::from_utf8_lossy(&piece));
        }
        let end = self.seen.find(wanted).unwrap() + wanted.len();
        self.seen.drain(..end);
    }

    fn press(&mut self, keys: &str) {
        let input = self.keys.as_mut().unwrap();
        input.write_all(keys.as_bytes()).unwrap();
        input.flush().unwrap();
    }

    fn end(mut self) {
        self.press("\u{4}");
        assert!(wait_for_end("the terminal to close", &mut self.child).success());
    }
}

impl Drop for Typing {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_prompt_is_edited_pasted_and_remembered() {
    let (machine, _server) = scripted();
    let id = machine.json(&["session", "new"])["id"].as_str().unwrap().to_owned();
    let mut typing = Typing::start(&machine, &["session", "attach", &id]);
    // The editor enables bracketed paste when it takes over the terminal.
    typing.until("\u{1b}[?2004h");
    typing.press("\u{1b}[200~one\ntwo\u{1b}[201~");
    typing.press(" threX\u{7f}e\r");
    typing.until("A plain answer.");
    typing.until("\u{1b}[?2004h");
    typing.end();
    let mut typing = Typing::start(&machine, &["session", "attach", &id]);
    typing.until("\u{1b}[?2004h");
    // The up arrow recalls the last line of the earlier run.
    typing.press("\u{1b}[A\r");
    typing.until("A plain answer.");
    typing.until("\u{1b}[?2004h");
    // One Ctrl-C at an idle prompt does not leave.
    typing.press("\u{3}");
    typing.until("Ctrl-C again leaves");
    typing.until("\u{1b}[?2004h");
    typing.end();
    let said = machine.json(&["session", "show", &id]);
    let prompts: Vec<_> = said["payload"]["messages"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|message| message["role"] == "user")
        .map(|message| message["content"].clone())
        .collect();
    assert_eq!(prompts, ["one\ntwo three", "one\ntwo three"]);
    let history = machine.file(".local/state/proliferate/history");
    assert_eq!(history.metadata().unwrap().permissions().mode() & 0o077, 0, "others can read it");
    machine.json(&["session", "rm", &id]);
}

#[test]
fn a_typed_line_answers_a_question_and_ctrl_d_leaves_a_working_agent() {
    let (machine, _server) = scripted();
    let id = machine.json(&["session", "new"])["id"].as_str().unwrap().to_owned();
    let mut typing = Typing::start(&machine, &["session", "attach", &id]);
    typing.until("\u{1b}[?2004h");
    typing.press("please ask me\r");
    typing.until("Which colour?");
    typing.until("2. Blue: Like the sea");
    typing.until("\u{1b}[?2004h");
    typing.press("2\r");
    typing.until("It heard:");
    typing.until("\u{1b}[?2004h");
    typing.press("count slowly\r");
    typing.until("one two");
    typing.end();
    until("the turn to end without us", || {
        let shown = machine.run(&["session", "show", &id]).out;
        assert!(!shown.contains("(interrupted)") && !shown.contains("cancelled"), "{shown}");
        shown.contains("fifteen")
    });
    let shown = machine.run(&["session", "show", &id]).out;
    assert!(shown.contains("Blue"), "{shown}");
    machine.json(&["session", "rm", &id]);
}
