//! The real agent asks a question, a person answers it, and the agent goes on: across a restart of the gateway, and
//! after the sandbox has ended.

use std::process::Stdio;

use serde_json::{Value, json};

use crate::deadline::{Lines, until};
use crate::harness::Machine;
use crate::live::{Real, Watching, outcome, tokens};
use crate::remote::Laptop;

const SCRIPT: &str = r#"
[[rule]]
system = "title generator"
[[rule.step]]
text = "A title"

[[rule]]
when = "ask me"
[[rule.step]]
text = "I have to ask."
tool = [{ name = "question", input = { questions = [{ question = "Which colour?", header = "Colour", options = [{ label = "Red", description = "Like a rose" }, { label = "Blue", description = "Like the sea" }] }] } }]
[[rule.step]]
text = "It answered: {tool_result}"

[[rule]]
[[rule.step]]
text = "You said: {prompt}"
"#;

fn asking(setting: (&str, &str)) -> (Real, Watching, Value) {
    let machine = Machine::new();
    let script = machine.file("questions.toml");
    std::fs::write(&script, SCRIPT).unwrap();
    let script = ("PROLIFERATE_MODEL_SCRIPT", script.to_str().unwrap());
    let mut real = Real::on(machine, &[script, setting, ("WARM_POOL_SIZE", "0")]);
    real.new_session(&json!({}));
    let mut socket = real.watch("");
    socket.prompt("please ask me");
    let question = socket.until_type("question").pop().unwrap();
    assert_eq!(question["payload"]["questions"][0]["question"], "Which colour?", "{question}");
    (real, socket, question["payload"]["questionId"].clone())
}

#[test]
fn an_answer_after_a_restart_of_the_gateway_reaches_the_waiting_agent() {
    let (mut real, socket, id) = asking(("SANDBOX_LIFETIME_SECONDS", "3600"));
    drop(socket);
    real.kill_and_start();
    let listed = real.get("/v1/questions");
    assert_eq!(listed["questions"][0]["questionId"], id, "{listed}");
    // Another machine has only an address and a key.
    let laptop = Laptop::new();
    assert_eq!(laptop.run(&["questions", "ls"]).code, 3, "it does not know the gateway");
    let listed = laptop.json(&["questions", "ls", "--url", &real.server().url(""), "--token", real.key()]);
    assert_eq!(listed[0]["questionId"], id, "{listed}");
    laptop.log_in(&real.machine, &real.server().url(""));
    let mut socket = real.watch("");
    let wrong = laptop.run(&["questions", "answer", "que_none", "Blue"]);
    assert_eq!(wrong.code, 1, "{}", wrong.err);
    let id = id.as_str().unwrap();
    assert_eq!(laptop.json(&["questions", "answer", id, "Blue"])["questionId"], id);
    let frames = socket.until_type("turn_complete");
    assert_eq!(outcome(&frames), "ok", "{frames:?}");
    let text = tokens(&frames);
    assert!(text.contains("It answered:") && text.contains("Blue"), "{text}");
    assert_eq!(real.get("/v1/questions")["questions"], json!([]));
}

#[test]
fn an_answer_after_the_lifetime_of_the_sandbox_becomes_the_next_prompt() {
    let (real, mut socket, id) = asking(("SANDBOX_LIFETIME_SECONDS", "8"));
    let frames = socket.until(|frame| frame["type"] == "turn_complete");
    assert_eq!(outcome(&frames), "ok", "{frames:?}");
    socket.until(|frame| frame["type"] == "status" && frame["payload"]["status"] == "running");
    socket.say(&json!({ "type": "answer_question", "questionId": id, "answers": [["Red"]] }));
    let frames = socket.until_type("turn_complete");
    let text = tokens(&frames);
    assert!(text.contains("Which colour?") && text.contains("Red"), "{text}");
    assert_eq!(real.get("/v1/questions")["questions"], json!([]));
}

#[test]
fn a_question_that_is_older_than_the_idle_grace_keeps_no_sandbox() {
    let (real, socket, id) = asking(("QUESTION_IDLE_GRACE_SECONDS", "1"));
    let mut watch = real.machine.command(&["questions", "watch", "--json"]);
    let mut watch = watch.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = Lines::of(watch.stdout.take().unwrap());
    let printed: Value = serde_json::from_str(&lines.next().unwrap()).unwrap();
    assert_eq!((&printed["questionId"], &printed["sessionId"]), (&id, &json!(real.session)), "{printed}");
    watch.kill().unwrap();
    watch.wait().unwrap();
    assert_eq!(real.sandboxes().len(), 1, "somebody watches the session");
    drop(socket);
    let path = format!("/proliferate/{}", real.session);
    until("the session to pause", || real.get(&path)["status"] == "paused");
    assert!(real.sandboxes().is_empty(), "{:?}", real.sandboxes());
    assert_eq!(real.get("/v1/questions")["questions"][0]["questionId"], id, "it stays open");
    real.machine.json(&["questions", "answer", id.as_str().unwrap(), "Red"]);
    let frames = real.watch("").until_type("turn_complete");
    let text = tokens(&frames);
    assert!(text.contains("Which colour?") && text.contains("Red"), "{text}");
}
