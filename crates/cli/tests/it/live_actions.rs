//! Actions in real sandboxes: the command line that agents use, and people who approve.

use std::process::{Child, Stdio};

use serde_json::{Value, json};
use testkit::{EffectRecorder, Plan};

use crate::deadline::{Lines, finish, until, wait_for, wait_for_end};
use crate::gate::{dead, with_tools};
use crate::harness::{Machine, ended};
use crate::live::Real;
use crate::live_environment::running;

/// A gateway whose tools count their effects.
pub(crate) struct Acting {
    pub(crate) real: Real,
    pub(crate) effects: EffectRecorder,
    _threads: tokio::runtime::Runtime,
}

impl Acting {
    pub(crate) fn start() -> Self {
        Self::on(Machine::new(), &[("WARM_POOL_SIZE", "0")])
    }

    /// Starts a gateway whose model follows this script.
    pub(crate) fn scripted(script: &str, setting: (&str, &str)) -> Self {
        let machine = Machine::new();
        let file = machine.file("actions.toml");
        std::fs::write(&file, script).unwrap();
        Self::on(machine, &[("PROLIFERATE_MODEL_SCRIPT", file.to_str().unwrap()), setting])
    }

    fn on(machine: Machine, settings: &[(&str, &str)]) -> Self {
        let threads = tokio::runtime::Runtime::new().unwrap();
        let effects = threads.block_on(EffectRecorder::start()).unwrap();
        let real = Real::on(with_tools(machine, &effects), settings);
        Self { real, effects, _threads: threads }
    }

    /// Runs a command in the sandbox. Returns its output, its errors and its exit code.
    fn run(&self, command: &str) -> (String, String, String) {
        let whole =
            format!("{command} > /tmp/out 2> /tmp/err; echo $?; cat /tmp/out; printf '\\001'; cat /tmp/err");
        let said = self.real.shell(&self.real.session, &whole.replace("/tmp/", "/tmp/act-"));
        let (code, rest) = said.split_once('\n').unwrap_or((&said, ""));
        let (out, err) = rest.split_once('\u{1}').unwrap_or((rest, ""));
        (out.to_owned(), err.trim().to_owned(), code.trim_end_matches('\u{1}').to_owned())
    }

    /// The only invocation that waits, once it does.
    pub(crate) fn waiting(&self) -> String {
        let path = format!("/proliferate/{}/actions/invocations", self.real.session);
        let pending = || {
            let all = self.real.get(&path)["invocations"].as_array().unwrap().clone();
            all.into_iter().find(|one| one["status"] == "pending")
        };
        wait_for("an invocation that waits for approval", pending)["id"].as_str().unwrap().to_owned()
    }
}

impl Acting {
    /// Has the agent request a write, and ends its command as soon as that has named the invocation.
    pub(crate) fn request(&self) -> String {
        self.request_with(r#"{"note":"hi"}"#)
    }

    fn request_with(&self, params: &str) -> String {
        let until_named =
            "until grep -qs 'actions wait' /tmp/act-said; do kill -0 $! || break; sleep 0.1; done";
        let said = self.real.shell(
            &self.real.session,
            &format!(
                "rm -f /tmp/act-said; {WRITE_ACTION_COMMAND} --params '{params}' >/dev/null 2>/tmp/act-said & {until_named}; kill $!; cat /tmp/act-said"
            ),
        );
        let named = said.split_once("actions wait ").and_then(|(_, rest)| rest.split_once('`'));
        named.unwrap_or_else(|| panic!("{said}")).0.to_owned()
    }

    /// Has the agent request a write and wait for its result, in a process that runs on while the gateway restarts.
    fn agent_that_waits(&self) -> Child {
        let command = ["sandbox", "exec", &self.real.session, "--", "sh", "-c", WRITE_ACTION_COMMAND];
        let mut command = self.real.machine.command(&command);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    fn approve(&self, id: &str) {
        let done = self.real.machine.run(&["approvals", "approve", id]);
        assert!(done.code == 0 && done.out.starts_with("executed"), "{} {}", done.out, done.err);
    }
}

const WRITE_ACTION_COMMAND: &str = "proliferate actions run --integration tools --action effect.write";

#[test]
fn the_command_line_in_a_sandbox_lists_and_runs_actions() {
    let mut acting = Acting::start();
    acting.real.new_session(&json!({}));
    let _socket = running(&acting.real);
    let (out, err, code) = acting.run("proliferate actions list");
    let list: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out} {err}"));
    assert_eq!((&list["integrations"][0]["integration"], code.as_str()), (&json!("tools"), "0"));
    let (out, ..) = acting.run("proliferate actions list --plain");
    assert!(out.contains("tools") && out.contains("  effect.write [write, require_approval]"), "{out}");
    let (out, _, code) = acting.run("proliferate actions guide --integration tools");
    assert!(out.contains("## effect.read (read)") && code == "0", "{out}");
    let (out, _, code) = acting.run("proliferate actions run --integration tools --action effect.read");
    assert!(serde_json::from_str::<Value>(&out).is_ok() && code == "0", "{out}");
    assert_eq!(acting.effects.all().len(), 1);
    for (command, says, exits) in [
        ("proliferate actions guide --integration none", "Error: Unknown integration", "1"),
        (
            "proliferate actions run --integration tools --action none",
            "Error: Unknown action: tools/none",
            "1",
        ),
        ("proliferate actions run --integration none --action a", "Error: Unknown integration: none", "1"),
        ("proliferate actions run --integration tools --action effect.drop", "Error: Action denied: ", "1"),
        (
            "proliferate actions run --integration tools --action effect.read --params '{'",
            "Error: --params",
            "1",
        ),
        ("proliferate actions run --integration tools", "--action", "2"),
        ("proliferate actions guide", "--integration", "2"),
        ("proliferate actions wait nothing", "Error: \"nothing\" is not the id", "1"),
    ] {
        let (out, err, code) = acting.run(command);
        assert!(out.is_empty() && err.contains(says) && code == exits, "{command}: {out} {err} {code}");
    }
    let (_, err, code) = acting.run(
        "env PROLIFERATE_SESSION_FILE=/none PROLIFERATE_SESSION_ID=01890a5d-ac96-774b-bcce-b302099a8057 \
         SANDBOX_MCP_AUTH_TOKEN=wrong proliferate actions list",
    );
    assert!(err.starts_with("Error: ") && code == "1", "a list that fails says so: {err} {code}");
    assert_eq!(acting.effects.all().len(), 1, "nothing else was executed");
}

#[test]
fn an_action_that_needs_approval_waits_in_the_sandbox_for_its_decision() {
    let mut acting = Acting::start();
    acting.real.new_session(&json!({}));
    let _socket = running(&acting.real);
    for (act, says) in [("approve", None), ("deny", Some("Error: Action denied: a person denied it"))] {
        let (out, err, code) = std::thread::scope(|scope| {
            let agent =
                scope.spawn(|| acting.run(&format!("{WRITE_ACTION_COMMAND} --params '{{\"note\":\"hi\"}}'")));
            let id = acting.waiting();
            acting.real.post(&format!("/v1/invocations/{id}/{act}"), &json!({}));
            agent.join().unwrap()
        });
        assert!(err.starts_with("Waiting for approval...\n"), "{err}");
        match says {
            None => assert!(serde_json::from_str::<Value>(&out).is_ok() && code == "0", "{out} {err}"),
            Some(text) => assert!(out.is_empty() && err.ends_with(text) && code == "1", "{out} {err}"),
        }
    }
    assert_eq!(acting.effects.all().len(), 1);
    // A shell that ended while it waited loses nothing.
    let id = acting.request();
    let (out, ..) = acting.run(&format!("proliferate actions status {id}"));
    assert_eq!(serde_json::from_str::<Value>(&out).unwrap()["status"], "pending");
    acting.real.post(&format!("/v1/invocations/{id}/approve"), &json!({}));
    let (out, err, code) = acting.run(&format!("proliferate actions wait {id}"));
    assert!(serde_json::from_str::<Value>(&out).is_ok() && err.is_empty() && code == "0", "{out} {err}");
    let (out, ..) = acting.run("proliferate actions history");
    let history: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(history["invocations"].as_array().unwrap().len(), 3, "{history}");
}

#[test]
fn a_users_token_that_is_found_in_a_sandbox_decides_nothing() {
    let mut acting = Acting::start();
    acting.real.new_session(&json!({}));
    let _socket = running(&acting.real);
    let (id, session, token) = (acting.request(), acting.real.session.clone(), acting.real.key.clone());
    let places = ["/v1/invocations".to_owned(), format!("/proliferate/{session}/actions/invocations")];
    let decisions = places.iter().flat_map(|place| {
        ["approve", "deny"].map(|act| ("POST", format!("{place}/{id}/{act}"), "{}".to_owned()))
    });
    // A mode would decide about every later request.
    let mode = r#"{"key":"tools:effect.write","mode":"allow"}"#.to_owned();
    for (method, path, body) in decisions.chain([("PUT", "/v1/action-modes".to_owned(), mode)]) {
        let script = format!(
            "perl -MIO::Socket::INET -e '$s = IO::Socket::INET->new(q(127.0.0.1:4098)) or die; print $s qq({method} \
            {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\ncontent-type: application/json\r\n\
            content-length: {}\r\nconnection: close\r\n\r\n), q({body}); print scalar <$s>'",
            body.len()
        );
        let said = acting.real.shell(&session, &script);
        assert!(said.contains(" 403 "), "{method} {path}: {said}");
    }
    assert_eq!(acting.effects.all().len(), 0);
    acting.approve(&id);
    assert_eq!(acting.effects.all().len(), 1, "outside of the sandbox the same person approves it");
}

#[test]
fn people_list_watch_approve_and_deny_on_the_command_line() {
    let mut acting = Acting::start();
    acting.real.new_session(&json!({}));
    let _socket = running(&acting.real);
    let machine = &acting.real.machine;
    assert_eq!(machine.json(&["approvals", "ls"]), json!([]));
    let id = acting.request();
    let listed = machine.json(&["approvals", "ls"]);
    let one = &listed[0];
    assert_eq!((&one["invocationId"], &one["params"]), (&json!(id), &json!({"note": "hi"})), "{listed}");
    assert_eq!((&one["session"]["id"], &one["canDecide"]), (&json!(acting.real.session), &json!(true)));
    let shown = machine.run(&["approvals", "ls"]).out;
    assert!(shown.contains(&id) && shown.contains("tools:effect.write") && shown.contains("hi"), "{shown}");
    let mut watch = machine.command(&["approvals", "watch", "--json"]);
    let mut watch = watch.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = Lines::of(watch.stdout.take().unwrap());
    let mut next = || serde_json::from_str::<Value>(&lines.next().unwrap()).unwrap()["invocationId"].clone();
    assert_eq!(next(), json!(id));
    let named = machine.run(&["approvals", "approve", "tools:effect.write"]);
    assert!(named.code == 1 && named.err.contains("no waiting invocation"), "{}", named.err);
    for act in ["approve", "deny"] {
        let prefix = machine.run(&["approvals", act, &id[..8]]);
        assert!(prefix.code == 2 && prefix.err.contains(&id), "a prefix decides nothing: {}", prefix.err);
    }
    let done = machine.run(&["approvals", "approve", &id]);
    assert!(
        done.code == 0 && done.out.starts_with("executed tools:effect.write"),
        "{} {}",
        done.out,
        done.err
    );
    assert_eq!(acting.effects.all().len(), 1);
    let again = machine.run(&["approvals", "approve", &id]);
    assert!(again.code == 1 && again.err.contains("in status: completed"), "{}", again.err);
    let second = acting.request();
    assert_eq!(next(), json!(second), "each is printed once");
    watch.kill().unwrap();
    watch.wait().unwrap();
    let long = format!(r#"{{"note":"{} and\u200b then THE END"}}"#, "x".repeat(100));
    let cut = acting.request_with(&long);
    let listed = machine.run(&["approvals", "ls"]);
    assert!(listed.out.contains("xxx…") && !listed.out.contains("THE END"), "{}", listed.out);
    let done = machine.run(&["approvals", "approve", &cut]);
    assert!(done.code == 0 && done.err.contains("and\\u{200b} then THE END"), "{} {}", done.out, done.err);
    assert_eq!(acting.effects.all().len(), 2);
    let denied = machine.json(&["approvals", "deny", &second]);
    assert_eq!((&denied["id"], &denied["status"]), (&json!(second), &json!("denied")), "{denied}");
    let none = machine.run(&["approvals", "deny", &second[..13]]);
    assert!(none.code == 1 && none.err.contains("approvals ls"), "a decided one waits no more: {}", none.err);
    let member = ["users", "create", "--email", "m@example.com", "--role", "member"];
    assert_eq!(machine.run(&member).code, 0);
    let token = machine.run(&["token", "user", "--user", "m@example.com"]).out.trim().to_owned();
    let third = acting.request();
    let refused = machine.run(&["approvals", "approve", &third, "--token", &token]);
    assert_eq!(refused.code, 1, "a member decides nothing: {}", refused.out);
    assert_eq!(acting.effects.all().len(), 2);
}

#[test]
fn an_approver_edits_the_parameters_and_decides_not_to_be_asked_again() {
    let mut acting = Acting::start();
    acting.real.new_session(&json!({}));
    let _socket = running(&acting.real);
    let machine = &acting.real.machine;
    let file = machine.file("params.json");
    std::fs::write(&file, r#"{"note": 7}"#).unwrap();
    let id = acting.request();
    let edit = ["approvals", "approve", &id, "--params", file.to_str().unwrap()];
    let wrong = machine.run(&edit);
    assert!(wrong.code == 1 && wrong.err.contains("note must be a text"), "{}", wrong.err);
    std::fs::write(&file, r#"{"note": "ho"}"#).unwrap();
    let done = machine.json(&edit);
    assert_eq!((&done["status"], &done["edited"]), (&json!("completed"), &json!(true)), "{done}");
    assert_eq!((&done["params"], acting.effects.all().len()), (&json!({"note": "ho"}), 1), "{done}");
    let set = ["actions", "modes", "set", "tools:effect.write", "require_approval"];
    assert_eq!(machine.run(&[&set[..], &["--two-person"]].concat()).code, 0);
    let id = acting.request();
    let always = ["approvals", "approve", &id, "--always"];
    let refused = machine.run(&always);
    assert!(refused.code == 1 && refused.err.contains("nothing was approved"), "{}", refused.err);
    // Neither is the owner, on whose behalf the session was made.
    let [first, second] = ["a@example.com", "b@example.com"].map(|email| {
        assert_eq!(machine.run(&["users", "create", "--email", email, "--role", "admin"]).code, 0);
        machine.run(&["token", "user", "--user", email]).out.trim().to_owned()
    });
    let edit = ["approvals", "approve", &id, "--token", &first, "--params", file.to_str().unwrap()];
    let edited = machine.json(&edit);
    let second = ["approvals", "approve", &id, "--token", &second];
    let refused = machine.run(&second);
    let hash = edited["requestHash"].as_str().unwrap();
    assert!(refused.code == 1 && refused.err.contains(hash) && refused.err.contains("ho"), "{}", refused.err);
    let done = machine.run(&[&second[..], &["--request-hash", &hash[..8]]].concat());
    assert!(done.code == 0 && done.out.starts_with("executed"), "{} {}", done.out, done.err);
    assert_eq!(acting.effects.all().len(), 2);
    assert_eq!(machine.run(&set).code, 0);
    let id = acting.request();
    let done = machine.run(&["approvals", "approve", &id, "--always"]);
    assert!(
        done.out.contains("the mode of tools:effect.write is allow from here on"),
        "{} {}",
        done.out,
        done.err
    );
    assert_eq!(acting.effects.all().len(), 3);
    let (_, err, code) = acting.run(WRITE_ACTION_COMMAND);
    assert_eq!((code.as_str(), acting.effects.all().len()), ("0", 4), "nobody is asked: {err}");
    let listed = machine.json(&["actions", "modes", "ls"]);
    assert_eq!(
        (&listed[0]["mode"], &listed[0]["source"]),
        (&json!("allow"), &json!(format!("approval {id}")))
    );
    assert_eq!(machine.run(&["actions", "modes", "unset", "tools:effect.write"]).code, 0);
    acting.request();
    assert_eq!(acting.effects.all().len(), 4, "revoked");
}

#[test]
fn an_approved_action_is_unknown_and_never_repeated_if_the_gateway_dies_with_it() {
    let mut acting = Acting::start();
    acting.real.new_session(&json!({}));
    for (point, effects) in [(Some("gate-approved"), 0), (None, 1)] {
        // A gateway that has just started reaches the sandbox once somebody uses the session.
        drop(running(&acting.real));
        let waiting = acting.request();
        if let Some(point) = point {
            // After the approval is on disk, and before the effect.
            acting.real.restart_with(&[("FAILPOINTS", &format!("{point}=return"))]);
        } else {
            // The action has taken effect and has not answered.
            let slow = Plan { delay: std::time::Duration::from_mins(5), ..Plan::default() };
            acting.effects.plan_next(slow);
        }
        let command = acting.real.machine.command(&["approvals", "approve", &waiting]).spawn();
        let mut approver = command.unwrap();
        let server = if point.is_some() {
            dead(acting.real.server.take().unwrap());
            acting.real.machine.serve()
        } else {
            until("the effect of the approved action", || !acting.effects.all().is_empty());
            acting.real.server.take().unwrap().kill();
            acting.real.machine.serve()
        };
        acting.real.server = Some(server);
        assert!(!wait_for_end("the approval to fail", &mut approver).success(), "{point:?}");
        let path = format!("/v1/invocations/{waiting}");
        let status = || acting.real.get(&path)["invocation"]["status"].clone();
        until("the end of the invocation after a restart", || status() != "executing");
        assert_eq!((status(), acting.effects.all().len()), (json!("unknown"), effects), "{point:?}");
        let again = acting.real.machine.run(&["approvals", "approve", &waiting]);
        assert!(again.code == 1 && again.err.contains("in status: unknown"), "{}", again.err);
        assert_eq!(acting.effects.all().len(), effects, "{point:?}: it was executed again");
    }
}

#[test]
fn a_call_still_waits_after_the_gateway_was_killed_and_an_approval_executes_it_once() {
    let mut acting = Acting::start();
    acting.real.new_session(&json!({}));
    drop(running(&acting.real));
    // After the request is on disk, and before the agent and the people who watch are told.
    acting.real.restart_with(&[("FAILPOINTS", "gate-waiting=return")]);
    let socket = running(&acting.real);
    let (_, err, code) = acting.run(WRITE_ACTION_COMMAND);
    assert!(err.contains("`proliferate actions history` shows it") && code == "1", "{err} {code}");
    dead(acting.real.server.take().unwrap());
    drop(socket);
    acting.real.server = Some(acting.real.machine.serve());
    let mut socket = acting.real.watch("");
    let id = acting.waiting();
    let shown = socket.until_type("init").pop().unwrap()["payload"]["approvals"].clone();
    assert_eq!(shown[0]["invocationId"], id, "{shown}");
    assert!(acting.effects.all().is_empty(), "nobody has approved it yet");
    acting.approve(&id);
    let (out, err, code) = acting.run(&format!("proliferate actions wait {id}"));
    assert!(serde_json::from_str::<Value>(&out).is_ok() && code == "0", "{out} {err}");

    let agent = acting.agent_that_waits();
    let id = acting.waiting();
    drop(socket);
    acting.real.kill_and_start();
    let _socket = running(&acting.real);
    assert_eq!((acting.waiting(), acting.effects.all().len()), (id.clone(), 1));
    acting.approve(&id);
    let agent = ended(&finish("the agent's command", agent));
    assert!(serde_json::from_str::<Value>(&agent.out).is_ok() && agent.code == 0, "{}", agent.err);
    let again = acting.real.machine.run(&["approvals", "approve", &id]);
    assert!(again.code == 1 && again.err.contains("in status: completed"), "{}", again.err);
    assert_eq!(acting.effects.all().len(), 2, "each was executed once");
}
