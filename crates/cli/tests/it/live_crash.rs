//! The gateway is killed, or its database fails, just as a client receives a frame: for every frame of a turn, on both
//! databases. Afterwards `init` contains everything that the client has received, and the turn completes.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::{FakeAgent, Turn};
use tokio::runtime::Runtime;

use crate::deadline::until;
use crate::harness::{Machine, postgres};
use crate::live::{Real, Watching};

type TurnAct = fn(&Turn);

/// The agent's actions in the turn, and the type of the frame that shows each.
const CRASHING_ACTS: [(TurnAct, &str); 6] = [
    (Turn::begin, "message"),
    (|turn| turn.say("I will look. "), "token"),
    (|turn| turn.call("bash", &json!({"command": "ls"}), "a file"), "tool_end"),
    (Turn::step, "message"),
    (|turn| turn.say("There is a file."), "token"),
    (Turn::end, "turn_complete"),
];
/// The minimum number of frames of such a turn: the prompt, two answers with their ends, two tokens, the call, the
/// end.
const MIN_FRAMES: usize = 12;

#[derive(Clone, Copy)]
enum Fault {
    Kill,
    /// PostgreSQL closes its connections, or SQLite refuses to save.
    Database,
}

pub(crate) struct Stage {
    pub(crate) real: Real,
    /// The URL of the database, if it is PostgreSQL.
    url: Option<String>,
    pub(crate) agent: FakeAgent,
    threads: Runtime,
}

impl Stage {
    pub(crate) fn start(url: Option<String>) -> Self {
        let threads =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let agent = threads.block_on(FakeAgent::start()).unwrap();
        let mut machine = Machine::new();
        if let Some(url) = &url {
            machine = machine.on(url);
        }
        let attach = [("SANDBOX_PROVIDER", "attach"), ("SANDBOX_ATTACH_URL", &*agent.url())];
        Self { real: Real::on(machine, &attach), url, agent, threads }
    }

    fn on_postgres(name: &str) -> Self {
        let server = postgres();
        let name = format!("crash_{name}_{}", std::process::id());
        psql(&server, &format!("CREATE DATABASE {name}"));
        Self::start(Some(format!("{}/{name}", server.rsplit_once('/').unwrap().0)))
    }

    fn next_turn(&self) -> Turn {
        let next = async { tokio::time::timeout(Duration::from_mins(1), self.agent.next_turn()).await };
        self.threads.block_on(next).unwrap()
    }

    /// Plays a turn and injects the fault after its nth frame. Returns `false` if the turn has fewer frames.
    fn walk(&mut self, nth: usize, fault: Fault) -> bool {
        // With a title, the first frame of the turn is its prompt.
        self.real.new_session(&json!({"title": "A walk"}));
        let mut socket = self.real.watch("");
        socket.until(|frame| frame["type"] == "status" && frame["payload"]["status"] == "running");
        socket.prompt("go");
        let mut played = Played::default();
        let mut acts = CRASHING_ACTS.iter();
        let mut wanted = "message";
        while played.read(&mut socket, wanted, nth) && played.frames.len() < nth {
            let Some((act, shown_by)) = acts.next() else { return false };
            act(played.turn.get_or_insert_with(|| self.next_turn()));
            wanted = *shown_by;
        }
        self.strike(fault);
        if matches!(fault, Fault::Database) && played.turn.is_some() {
            for (act, shown_by) in acts.by_ref() {
                played.turn.iter().for_each(act);
                if !played.read(&mut socket, shown_by, usize::MAX) {
                    break;
                }
            }
        }
        self.repair(fault);
        let received = |at: &str| format!("{at} frame {nth}: {:#?}", played.frames);
        let init = self.real.watch("&passive=1").until_type("init").pop().unwrap();
        assert_contains(&init, &played.frames, &received("after"));
        let mut socket = self.real.watch("");
        socket.until(|frame| frame["type"] == "status" && frame["payload"]["status"] == "running");
        for (act, _) in acts {
            act(played.turn.get_or_insert_with(|| self.next_turn()));
        }
        self.until_turn_ended(&played.frames[0]);
        let init = self.real.watch("").until_type("init").pop().unwrap();
        assert_contains(&init, &played.frames, &received("at the end, after"));
        let messages = init["payload"]["messages"].as_array().unwrap();
        assert!(messages.iter().all(|message| message["isComplete"] == true), "{init}");
        true
    }

    fn strike(&mut self, fault: Fault) {
        match (fault, &self.url) {
            (Fault::Kill, _) => self.real.kill_and_start(),
            (Fault::Database, Some(url)) => psql(
                url,
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                WHERE datname = current_database() AND pid <> pg_backend_pid()",
            ),
            (Fault::Database, None) => drop(self.real.sql(
                "CREATE TRIGGER broken BEFORE INSERT ON messages BEGIN SELECT RAISE(ABORT, 'broken'); END",
            )),
        }
    }

    fn repair(&self, fault: Fault) {
        match (fault, &self.url) {
            (Fault::Kill, _) => {}
            // The first requests may fail because their pooled connection is broken.
            (Fault::Database, Some(_)) => {
                until("the gateway to be ready", || self.real.server().get("/ready", "").0 == 200);
            }
            (Fault::Database, None) => drop(self.real.sql("DROP TRIGGER broken")),
        }
    }

    /// Waits for the end of the prompt's run, and checks that the prompt was sent to the agent once.
    fn until_turn_ended(&self, prompt: &Value) {
        let prompt = prompt["payload"]["id"].as_str().unwrap();
        let path = format!("/v1/runs/turn_{prompt}");
        until("the run to complete", || self.real.get(&path)["status"] == "completed");
        let sent = self.agent.asked("/prompt_async");
        assert_eq!(sent.iter().filter(|asked| asked.body["messageID"] == prompt).count(), 1);
    }
}

/// The frames received since the prompt, and the agent's side of the turn.
#[derive(Default)]
struct Played {
    frames: Vec<Value>,
    turn: Option<Turn>,
}

impl Played {
    /// Reads up to a frame of this type, or up to this many frames. Returns `false` if the server closed first.
    fn read(&mut self, socket: &mut Watching, wanted: &str, most: usize) -> bool {
        loop {
            let Some(frame) = socket.next() else { return false };
            if frame["seq"].is_null() {
                continue;
            }
            let found = frame["type"] == wanted;
            self.frames.push(frame);
            if found || self.frames.len() == most {
                return true;
            }
        }
    }
}

fn psql(url: &str, sql: &str) {
    let done = Command::new("psql").args([url, "-v", "ON_ERROR_STOP=1", "-qtc", sql]).output().unwrap();
    assert!(done.status.success(), "{sql}: {done:?}");
}

/// Asserts that a conversation contains everything that the frames reported.
fn assert_contains(init: &Value, frames: &[Value], when: &str) {
    let messages = init["payload"]["messages"].as_array().unwrap();
    let find = |id: &Value| {
        let found = messages.iter().find(|message| message["id"] == *id);
        found.unwrap_or_else(|| panic!("{id} is not in {init} {when}"))
    };
    let mut texts: BTreeMap<String, String> = BTreeMap::new();
    for frame in frames {
        let said = &frame["payload"];
        let id = said["messageId"].as_str().unwrap_or_default();
        match frame["type"].as_str().unwrap() {
            "message" => {
                assert_eq!(find(&said["id"])["role"], said["role"], "{when}");
            }
            "token" => texts.entry(id.to_owned()).or_default().push_str(said["token"].as_str().unwrap()),
            "tool_end" => {
                let calls = messages.iter().filter_map(|message| message["toolCalls"].as_array());
                let call = calls.flatten().find(|call| call["id"] == said["toolCallId"]);
                let call = call.unwrap_or_else(|| panic!("{said} is not in {init} {when}"));
                assert_eq!(call["result"], said["result"], "{when}");
            }
            "message_complete" => {
                let message = find(&said["messageId"]);
                assert_eq!(message["isComplete"], true, "{init} {when}");
                assert_eq!(message["content"], texts.get(id).cloned().unwrap_or_default(), "{init} {when}");
            }
            _ => {}
        }
    }
    for (id, text) in texts {
        let content = find(&json!(id))["content"].as_str().unwrap();
        assert!(content.starts_with(&text), "{content:?} for {text:?} {when}");
    }
}

fn at_every_frame(mut stage: Stage, fault: Fault) {
    let mut nth = 1;
    while stage.walk(nth, fault) {
        nth += 1;
    }
    assert!(nth > MIN_FRAMES, "{nth}");
}

#[test]
fn a_kill_at_any_frame_loses_nothing_on_sqlite() {
    at_every_frame(Stage::start(None), Fault::Kill);
}

#[test]
fn a_kill_at_any_frame_loses_nothing_on_postgres() {
    at_every_frame(Stage::on_postgres("kill"), Fault::Kill);
}

#[test]
fn a_database_that_refuses_at_any_frame_loses_nothing_on_sqlite() {
    at_every_frame(Stage::start(None), Fault::Database);
}

#[test]
fn a_database_that_ends_its_connections_at_any_frame_loses_nothing_on_postgres() {
    at_every_frame(Stage::on_postgres("broken"), Fault::Database);
}
