//! The gate in a process that dies at every point between a claim and its answer, with every kind of tool. The test
//! counts the effects outside and compares them with what the gateway reports afterwards.

use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::EffectRecorder;

use crate::deadline::{until, wait_for_end};
use crate::harness::{Machine, Server};
use crate::live::{Real, tokens};
use crate::postgres::Database;

/// The crash points: after the claim and before the effect, after the effect and before its outcome is recorded, after
/// the outcome is recorded and before the reply.
const CRASH_POINTS: [&str; 3] = ["gate-claimed", "gate-executed", "gate-settled"];

/// How long to wait: less than the 30 s after which a gateway without a heartbeat counts as dead.
const WAIT_FOR_CRASH: Duration = Duration::from_secs(20);

/// A machine whose tools count their effects in the recorder.
fn machine(effects: &EffectRecorder) -> Machine {
    with_tools(Machine::new(), effects)
}

pub(crate) fn with_tools(machine: Machine, effects: &EffectRecorder) -> Machine {
    let directory = machine.file("policy");
    std::fs::create_dir(&directory).unwrap();
    let (url, address) = (effects.url(), effects.url().trim_start_matches("http://").to_owned());
    let tools = format!(
        "- {{name: effect.write, method: POST, url: '{url}/effects/write', risk: write,\n  schema: {{type: object, properties: {{note: {{type: string}}}}}}}}\n\
         - {{name: effect.read, method: GET, url: '{url}/effects/read', risk: read}}\n\
         - {{name: effect.drop, method: POST, url: '{url}/effects/drop', risk: danger}}\n"
    );
    std::fs::write(directory.join("tools.yaml"), tools).unwrap();
    machine
        .with("PROLIFERATE_POLICY_DIR", directory.to_str().unwrap())
        .with("CONNECTOR_ALLOWED_HOSTS", address.trim_end_matches('/'))
}

fn post(server: &Server, path: &str, token: &str, body: &Value) -> reqwest::Result<(u16, Value)> {
    let client = reqwest::blocking::Client::builder().no_proxy().timeout(WAIT_FOR_CRASH).build()?;
    let request = client.post(server.url(path)).bearer_auth(token).header("content-type", "application/json");
    let answer = request.body(body.to_string()).send()?;
    Ok((answer.status().as_u16(), answer.json()?))
}

/// Waits for a server with a crash point, and asserts that it aborted itself.
pub(crate) fn dead(mut server: Server) {
    let status = wait_for_end("the gateway to crash", &mut server.child);
    assert_eq!(status.signal(), Some(6), "{status:?}");
}

#[test]
fn an_effect_outside_happens_at_most_once_wherever_the_gateway_dies() {
    for point in CRASH_POINTS {
        die_during_an_effect(point, Machine::new());
    }
}

/// The next gateway on the same host sees that the process is gone, and does not wait for the heartbeat to expire.
#[test]
fn an_effect_outside_happens_at_most_once_wherever_the_gateway_dies_on_postgres() {
    for point in CRASH_POINTS {
        let database = Database::new(&point.replace('-', "_"));
        die_during_an_effect(point, Machine::new().on(&database.url()));
    }
}

fn die_during_an_effect(point: &str, machine: Machine) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let effects = runtime.block_on(EffectRecorder::start()).unwrap();
    let machine = with_tools(machine, &effects);
    let dying = machine.serve_with(&[("FAILPOINTS", &format!("{point}=return"))]);
    let token = machine.run(&["token", "service", "--name", "worker"]).out.trim().to_owned();
    let orgs = machine.json(&["orgs", "ls"]);
    let org = orgs[0]["id"].as_str().unwrap().to_owned();
    let call = json!({
        "tool_name": "effect", "operation": "effect.write", "lane_id": "actions.write",
        "actor": {"actor_type": "system", "actor_id": "worker"}, "case_id": "case-1",
        "run_id": "run-00000001", "scope": {"organization_id": org},
    });
    assert!(post(&dying, "/v1/tool-calls", &token, &call).is_err(), "{point}: it was to die");
    dead(dying);
    let before = effects.all().len();
    assert_eq!(before, usize::from(point != "gate-claimed"), "{point}");

    let server = machine.serve();
    let (status, first) = post(&server, "/v1/tool-calls", &token, &call).unwrap();
    let (again, second) = post(&server, "/v1/tool-calls", &token, &call).unwrap();
    assert_eq!((status, &first), (again, &second), "{point}");
    assert_eq!(effects.all().len(), before, "{point}: it was executed again");
    let run = server.get(&format!("/v1/runs/run-00000001?organization_id={org}"), &token).1;
    if point == "gate-settled" {
        assert_eq!((status, run["status"].as_str()), (200, Some("completed")), "{first}");
    } else {
        assert_eq!((status, run["outcome"].as_str()), (502, Some("unknown")), "{first}");
        assert_eq!(first["error"]["retryable"], false, "{first}");
    }
    let path = format!("/v1/audit/events?organization_id={org}&run_id=run-00000001");
    let events = server.get(&path, &token).1["events"].clone();
    let kinds: Vec<_> = events.as_array().unwrap().iter().map(|event| &event["action_type"]).collect();
    assert_eq!(kinds, ["authz_decision", "tool_call"], "{point}");
    assert_eq!(server.stop(), 0);
}

/// Wherever a gateway dies with a request, its idempotency key is free for the retry, which makes nothing twice.
#[test]
fn a_request_with_a_key_is_done_after_the_gateway_died_with_it() {
    for point in ["idempotent-reserved", "session-inserted", "idempotent-done"] {
        die_with_a_key(point);
    }
}

fn die_with_a_key(point: &str) {
    let machine = Machine::new();
    let create = |server: &Server, token: &str| {
        let client = reqwest::blocking::Client::builder().no_proxy().build().unwrap();
        let request = client.post(server.url("/proliferate/sessions")).bearer_auth(token);
        let request = request.header("idempotency-key", "once").header("content-type", "application/json");
        let answer = request.body(r#"{"sessionType":"coding","clientType":"web"}"#).send()?;
        Ok::<_, reqwest::Error>((answer.status().as_u16(), answer.json::<Value>()?))
    };
    let dying = machine.serve_with(&[("FAILPOINTS", &format!("{point}=return"))]);
    let token = machine.run(&["token", "user"]).out.trim().to_owned();
    assert!(create(&dying, &token).is_err(), "{point}: it was to die");
    dead(dying);
    let server = machine.serve();
    let (status, made) = create(&server, &token).unwrap();
    assert!((200..300).contains(&status), "{point}: {status} {made}");
    assert_eq!(create(&server, &token).unwrap(), (status, made), "{point}: and once");
    let listed = server.get("/proliferate/sessions", &token).1;
    assert_eq!(listed["sessions"].as_array().unwrap().len(), 1, "{point}: {listed}");
}

/// A deletion that the gateway does not survive is finished by the next one, wherever it was cut off.
#[test]
fn a_deletion_is_finished_after_the_gateway_died_with_it() {
    for point in ["session-deleted", "session-discarded"] {
        let machine = Machine::new();
        let dying = machine.serve_with(&[("FAILPOINTS", &format!("{point}=return"))]);
        let token = machine.run(&["token", "user"]).out.trim().to_owned();
        let new = json!({"sessionType": "coding", "clientType": "web"});
        let (_, made) = post(&dying, "/proliferate/sessions", &token, &new).unwrap();
        let path = format!("/proliferate/{}", made["sessionId"].as_str().unwrap());
        let client = reqwest::blocking::Client::builder().no_proxy().timeout(WAIT_FOR_CRASH).build().unwrap();
        let deleted = client.delete(dying.url(&path)).bearer_auth(&token).send();
        assert!(deleted.is_err(), "{point}: it was to die");
        dead(dying);

        let server = machine.serve();
        let pause = Duration::from_millis(50);
        let gone = (0..WAIT_FOR_CRASH.as_millis() / pause.as_millis()).any(|_| {
            std::thread::sleep(pause);
            server.get(&path, &token).0 == 404
        });
        assert!(gone, "{point}: the session is still there");
        let listed = server.get("/proliferate/sessions", &token).1;
        assert_eq!(listed["sessions"], json!([]), "{point}");
        let events = server.get("/v1/audit/events?limit=1000", &token).1["events"].clone();
        let deletions =
            events.as_array().unwrap().iter().filter(|event| {
                event["target"]["name"] == "session" && event["target"]["operation"] == "delete"
            });
        assert_eq!(deletions.count(), 1, "{point}: {events}");
        assert_eq!(server.stop(), 0);
    }
}

#[test]
fn a_replay_safe_tool_is_retried_wherever_the_gateway_dies() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for point in CRASH_POINTS {
        let effects = runtime.block_on(EffectRecorder::start()).unwrap();
        let machine = machine(&effects);
        let dying = machine.serve_with(&[("FAILPOINTS", &format!("{point}=return"))]);
        let token = machine.run(&["token", "service", "--name", "worker"]).out.trim().to_owned();
        let org = machine.json(&["orgs", "ls"])[0]["id"].as_str().unwrap().to_owned();
        let call = json!({
            "tool_name": "effect", "operation": "effect.read", "lane_id": "actions.read",
            "actor": {"actor_type": "system", "actor_id": "worker"}, "case_id": "case-1",
            "run_id": "run-00000001", "scope": {"organization_id": org},
        });
        assert!(post(&dying, "/v1/tool-calls", &token, &call).is_err(), "{point}: it was to die");
        dead(dying);

        let server = machine.serve();
        let (status, first) = post(&server, "/v1/tool-calls", &token, &call).unwrap();
        assert_eq!((status, &first["outcome"]), (200, &json!("success")), "{point}: {first}");
        assert_eq!(post(&server, "/v1/tool-calls", &token, &call).unwrap(), (200, first), "{point}");
        let asked = effects.all().len();
        assert_eq!(asked, if point == "gate-executed" { 2 } else { 1 }, "{point}");
        assert_eq!(server.stop(), 0);
    }
}

/// Such a call is atomic: after a crash, either all of it has happened or nothing.
#[test]
fn a_database_change_happens_once_wherever_the_gateway_dies() {
    for point in ["gate-decided", "gate-settled"] {
        let machine = Machine::new();
        let dying = machine.serve_with(&[("FAILPOINTS", &format!("{point}=return"))]);
        let key = machine.json(&["keys", "create", "--name", "ci"])["key"].as_str().unwrap().to_owned();
        let (_, made) =
            post(&dying, "/v1/configurations", &key, &json!({"name": "app", "repos": []})).unwrap();
        let session = json!({"sessionType": "setup", "clientType": "web", "configurationId": made["id"]});
        let (status, made) = post(&dying, "/proliferate/sessions", &key, &session).unwrap();
        assert_eq!(status, 201, "{made}");
        let session = made["sessionId"].as_str().unwrap();
        let token = machine.run(&["token", "sandbox", "--session", session]).out.trim().to_owned();
        let path = format!("/proliferate/{session}/tools/save_service_commands");
        let body =
            json!({"tool_call_id": "toolu_1", "args": {"commands": [{"name": "web", "command": "run"}]}});
        assert!(post(&dying, &path, &token, &body).is_err(), "{point}: it was to die");
        dead(dying);

        let server = machine.serve();
        let runs = format!("/v1/runs?case_id={session}&run_kind=tool_gateway");
        let changed = || {
            let listed = server.get("/v1/configurations", &key).1["configurations"][0].clone();
            listed["updatedAt"] != listed["createdAt"]
        };
        let kept = server.get(&runs, &key).1["runs"].as_array().unwrap().len();
        let done = point == "gate-settled";
        assert_eq!((kept, changed()), (usize::from(done), done), "{point}");
        let (status, first) = post(&server, &path, &token, &body).unwrap();
        assert_eq!((status, &first["success"]), (200, &json!(true)), "{point}: {first}");
        assert_eq!(post(&server, &path, &token, &body).unwrap(), (200, first), "{point}");
        let other =
            json!({"tool_call_id": "toolu_1", "args": {"commands": [{"name": "web", "command": "walk"}]}});
        assert_eq!(post(&server, &path, &token, &other).unwrap().0, 409, "{point}");
        assert!(changed(), "{point}");
        assert_eq!(server.stop(), 0);
    }
}

/// The complete path: agent, tool, callback, gate, effect, ledger, answer and stream. The gateway dies in the middle.
#[test]
fn the_real_agent_saves_its_commands_once_although_the_gateway_dies_in_between() {
    let mut real = Real::serving(&[]);
    let made = real.post("/v1/configurations", &json!({"name": "app", "repos": []}));
    real.new_session(&json!({"sessionType": "setup", "configurationId": made["id"]}));
    let mut socket = real.watch("");
    socket.until(|frame| frame["type"] == "status" && frame["payload"]["status"] == "running");
    drop(socket);

    real.restart_with(&[("FAILPOINTS", "gate-settled=return")]);
    let mut socket = real.watch("");
    socket.prompt("please save the commands");
    dead(real.server.take().unwrap());
    real.server = Some(real.machine.serve());
    let mut socket = real.watch("");
    let frames = socket.until_type("turn_complete");
    assert!(tokens(&frames).contains("Saved 1 service commands: web"), "{frames:?}");

    let path = format!("/v1/runs?case_id={}&run_kind=tool_gateway", real.session);
    let runs = real.get(&path)["runs"].clone();
    let runs = runs.as_array().unwrap();
    assert_eq!(runs.len(), 1, "{runs:?}");
    assert_eq!(runs[0]["status"], "completed");
    assert!(runs[0]["parent_run_id"].as_str().unwrap().starts_with("turn_"), "{runs:?}");
    // Watchers see the end of a turn before its run is completed.
    let path = format!("/v1/runs?case_id={}&run_kind=agent", real.session);
    until("the turn's run to complete", || real.get(&path)["runs"][0]["status"] == "completed");
}

#[test]
fn the_real_agent_saves_its_files() {
    let mut real = Real::serving(&[]);
    real.new_session(&json!({}));
    let mut socket = real.watch("");
    socket.prompt("please save the files");
    let frames = socket.until_type("turn_complete");
    assert!(tokens(&frames).contains("Snapshot saved to session: "), "{frames:?}");
    let info = real.get(&format!("/v1/runs?case_id={}&run_kind=tool_gateway", real.session));
    assert_eq!(info["runs"][0]["status"], "completed", "{info}");
}
