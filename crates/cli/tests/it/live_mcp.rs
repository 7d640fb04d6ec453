//! The real agent uses actions, as tools of the gateway's MCP server and with the command line in its sandbox: it lists and
//! calls them, and gets the result of a call that a person approved.

use serde_json::{Value, json};

use crate::live::{Watching, outcome, tokens};
use crate::live_actions::Acting;
use crate::live_pool::waiting;

/// The name of a tool from `tools.yaml`, as the agent sees it.
fn tool_of(action: &str) -> String {
    let digits = ledger::sha256(action.as_bytes()).to_string();
    format!("proliferate_tools__{}_{}", action.replace('.', "_"), &digits[..6])
}

/// A model that calls a tool for each of these prompts, and repeats what the tool said.
fn script(calls: &[(&str, &str, Value)]) -> String {
    let rule = |(prompt, tool, input): &(&str, &str, Value)| {
        let input = toml_of(input);
        format!(
            "[[rule]]\nwhen = \"{prompt}\"\n[[rule.step]]\ntool = [{{ name = \"{tool}\", input = {input} }}]\n\
             [[rule.step]]\ntext = \"It said: {{tool_result}}\"\n"
        )
    };
    let title = "[[rule]]\nsystem = \"title generator\"\n[[rule.step]]\ntext = \"A title\"\n";
    let rules: String = calls.iter().map(rule).collect();
    format!("{title}{rules}[[rule]]\n[[rule.step]]\ntext = \"You said: {{prompt}}\"\n")
}

/// An object of texts as an inline table.
fn toml_of(input: &Value) -> String {
    let fields = input.as_object().unwrap().iter().map(|(key, value)| format!("{key} = {value}"));
    format!("{{ {} }}", fields.collect::<Vec<_>>().join(", "))
}

fn said(socket: &mut Watching, prompt: &str) -> String {
    socket.prompt(prompt);
    let frames = socket.until_type("turn_complete");
    assert_eq!(outcome(&frames), "ok", "{frames:?}");
    tokens(&frames)
}

fn calls() -> Vec<(&'static str, String, Value)> {
    vec![
        ("read it", tool_of("effect.read"), json!({})),
        ("write it", tool_of("effect.write"), json!({"note": "hi"})),
    ]
}

fn with_script(more: &[(&'static str, String, Value)]) -> String {
    let all: Vec<_> = calls().into_iter().chain(more.iter().cloned()).collect();
    let all: Vec<_> =
        all.iter().map(|(prompt, tool, input)| (*prompt, tool.as_str(), input.clone())).collect();
    script(&all)
}

#[test]
fn the_agent_calls_actions_over_mcp_and_fetches_what_a_person_approved() {
    let mut acting = Acting::scripted(&with_script(&[]), ("WARM_POOL_SIZE", "0"));
    acting.real.new_session(&json!({}));
    let mut socket = acting.real.watch("");
    let read = said(&mut socket, "read it");
    assert!(read.contains("It said:") && acting.effects.all().len() == 1, "{read}");
    let waits = said(&mut socket, "write it");
    let id = acting.waiting();
    assert!(waits.contains("waits for a person's approval") && waits.contains(&id), "{waits}");
    assert_eq!(acting.effects.all().len(), 1, "nobody has approved it yet");
    let done = acting.real.machine.run(&["approvals", "approve", &id]);
    assert_eq!((done.code, acting.effects.all().len()), (0, 2), "{}", done.err);
    let denied = {
        said(&mut socket, "write it");
        let id = acting.waiting();
        acting.real.machine.json(&["approvals", "deny", &id]);
        id
    };
    // The model is scripted, so it learns the ids from its next script.
    let fetch = |id: &str| ("proliferate_get_invocation".to_owned(), json!({"invocationId": id}));
    let [(tool, approved), (_, denied)] = [fetch(&id), fetch(&denied)];
    let more = [("fetch one", tool.clone(), approved), ("fetch two", tool, denied)];
    let file = acting.real.machine.file("next.toml");
    std::fs::write(&file, with_script(&more)).unwrap();
    drop(socket);
    acting.real.restart_with(&[("PROLIFERATE_MODEL_SCRIPT", file.to_str().unwrap())]);
    let mut socket = acting.real.watch("");
    let fetched = said(&mut socket, "fetch one");
    assert!(fetched.contains("It said:") && !fetched.contains("waits"), "{fetched}");
    let fetched = said(&mut socket, "fetch two");
    assert!(fetched.contains("Action denied: a person denied it"), "{fetched}");
    acting.real.machine.json(&["actions", "modes", "set", "tools:effect.write", "deny"]);
    let refused = said(&mut socket, "write it");
    assert!(refused.contains("Action denied: the mode of the tool is deny"), "{refused}");
    assert_eq!(acting.effects.all().len(), 2);
}

#[test]
fn an_agent_from_the_pool_gets_the_actions_of_its_session() {
    let mut acting = Acting::scripted(&with_script(&[]), ("WARM_POOL_SIZE", "1"));
    waiting(&acting.real);
    acting.real.new_session(&json!({}));
    let read = said(&mut acting.real.watch(""), "read it");
    assert!(read.contains("It said:") && acting.effects.all().len() == 1, "{read}");
}

/// A model that runs this command in its shell for a prompt.
fn shell(prompt: &'static str, command: &str) -> (&'static str, String, Value) {
    (prompt, "bash".to_owned(), json!({"command": command, "description": "Acts"}))
}

#[test]
fn the_agent_uses_the_command_line_and_gets_the_result_of_what_a_person_approved() {
    let run = |action: &str| {
        let command = format!("proliferate actions run --integration tools --action {action}");
        format!("{command} --params '{{\"note\":\"from the shell\"}}'; echo code=$?")
    };
    let more = [
        shell("list them", "proliferate actions list --plain"),
        shell("look it up", &run("effect.read")),
        shell("change it", &run("effect.write")),
        shell("drop it", &run("effect.drop")),
    ];
    let mut acting = Acting::scripted(&with_script(&more), ("WARM_POOL_SIZE", "0"));
    acting.real.new_session(&json!({}));
    let mut socket = acting.real.watch("");
    let listed = said(&mut socket, "list them");
    for action in ["effect.read [read, allow]", "effect.write [write, require_approval]"] {
        assert!(listed.contains(action), "{listed}");
    }
    let read = said(&mut socket, "look it up");
    assert!(read.contains("code=0") && acting.effects.count("read") == 1, "{read}");
    let mut changed = |act: &str| {
        socket.prompt("change it");
        let waits = socket.until_type("action_approval_request").pop().unwrap();
        let id = waits["payload"]["invocationId"].as_str().unwrap();
        acting.real.machine.json(&["approvals", act, id]);
        let frames = socket.until_type("turn_complete");
        assert_eq!(outcome(&frames), "ok", "{frames:?}");
        tokens(&frames)
    };
    let approved = changed("approve");
    assert!(approved.contains("Waiting for approval...") && approved.contains("code=0"), "{approved}");
    let effect = acting.effects.all().pop().unwrap();
    assert!(effect.key == "write" && effect.body.to_string().contains("from the shell"), "{effect:?}");
    assert!(approved.contains("\"count\""), "the answer of the tool: {approved}");
    let denied = changed("deny");
    let says = "Error: Action denied: a person denied it";
    assert!(denied.contains(says) && denied.contains("code=1"), "{denied}");
    let dropped = said(&mut socket, "drop it");
    assert!(dropped.contains("Error: Action denied: the mode of the tool is deny"), "{dropped}");
    assert!(dropped.contains("code=1") && acting.effects.all().len() == 2, "{dropped}");
}
