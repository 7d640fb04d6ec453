//! The model's answers: event order, choice of steps, faults, and hostile input.

use serde_json::Value;

use super::*;
use crate::script::CLOSING_TEXT;

fn model(script: &str) -> Model {
    Model::new(Script::parse(script).unwrap())
}

fn ask(model: &Model, body: &Value) -> Reply {
    send(model, "POST", "/v1/messages", body.to_string().as_bytes())
}

fn send(model: &Model, method: &str, path: &str, body: &[u8]) -> Reply {
    model.answer(&Call { method, path, conversation: "ses_1", body })
}

fn prompt(text: &str, stream: bool) -> Value {
    json!({ "model": "m-1", "max_tokens": 10, "stream": stream, "messages": [{ "role": "user", "content": text }] })
}

fn body(reply: &Reply) -> Value {
    serde_json::from_slice(&reply.bytes()).unwrap()
}

fn events(reply: &Reply) -> Vec<Value> {
    let text = String::from_utf8(reply.bytes()).unwrap();
    let one = |event: &str| {
        let (name, data) = event.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name, format!("event: {}", data["type"].as_str().unwrap()));
        data
    };
    text.split_terminator("\n\n").map(one).collect()
}

fn kinds(events: &[Value]) -> Vec<&str> {
    let of = |event: &'_ Value| event["delta"]["type"].as_str().map(str::len);
    events
        .iter()
        .map(|e| if of(e).is_some() { &e["delta"]["type"] } else { &e["type"] }.as_str().unwrap())
        .collect()
}

const TOOL_TURN: &str = r#"
[[rule]]
when = "go"
[[rule.step]]
thinking = "hm"
text = "äbc"
chunk = 2
delay_ms = 5
delta_delay_ms = 3
tool = [{ name = "bash", input = { command = "ls" } }, { name = "bash", input = { command = "pwd" } }]
[[rule.step]]
text = "saw {tool_result}"
"#;

#[test]
fn a_stream_has_the_event_order_of_the_real_api() {
    let reply = ask(&model(TOOL_TURN), &prompt("Go!", true));
    assert_eq!(reply.status, 200);
    assert!(reply.headers.contains(&("content-type", "text/event-stream; charset=utf-8".to_owned())));
    assert_eq!(reply.delay.as_millis(), 5);
    let events = events(&reply);
    #[rustfmt::skip]
    assert_eq!(kinds(&events)[..14], [
        "message_start",
        "content_block_start", "ping", "thinking_delta", "signature_delta", "content_block_stop",
        "content_block_start", "text_delta", "text_delta", "content_block_stop",
        "content_block_start", "input_json_delta", "input_json_delta", "input_json_delta",
    ]);
    assert_eq!(kinds(&events).iter().rev().take(2).collect::<Vec<_>>(), [&"message_stop", &"message_delta"]);
    assert_eq!(events[0]["message"]["content"], json!([]));
    assert_eq!(events[0]["message"]["model"], "m-1");
    assert_eq!(events[1]["content_block"], json!({ "type": "thinking", "thinking": "", "signature": "" }));
    assert_eq!((&events[7]["delta"]["text"], &events[8]["delta"]["text"]), (&json!("äb"), &json!("c")));
    let end = &events[events.len() - 2];
    assert_eq!(end["delta"], json!({ "stop_reason": "tool_use", "stop_sequence": null }));
    assert!(end["usage"]["output_tokens"].as_u64().unwrap() > 1);
}

#[test]
fn streamed_and_complete_answers_are_equal() {
    let model = model(TOOL_TURN);
    let whole = body(&ask(&model, &prompt("go", false)));
    let mut built: Vec<Value> = Vec::new();
    let mut inputs = vec![String::new(); 4];
    for event in events(&ask(&model, &prompt("go", true))) {
        let index = usize::try_from(event["index"].as_u64().unwrap_or_default()).unwrap();
        let delta = &event["delta"];
        let grow = |block: &mut Value, key: &str| {
            block[key] = json!(format!("{}{}", block[key].as_str().unwrap(), delta[key].as_str().unwrap()));
        };
        match delta["type"].as_str().or(event["type"].as_str()).unwrap() {
            "content_block_start" => built.push(event["content_block"].clone()),
            "thinking_delta" => grow(&mut built[index], "thinking"),
            "signature_delta" => grow(&mut built[index], "signature"),
            "text_delta" => grow(&mut built[index], "text"),
            "input_json_delta" => inputs[index].push_str(delta["partial_json"].as_str().unwrap()),
            _ => {}
        }
    }
    for (block, input) in built.iter_mut().zip(inputs).filter(|(block, _)| block["type"] == "tool_use") {
        block["input"] = serde_json::from_str(&input).unwrap();
    }
    assert_eq!(whole["content"], Value::Array(built));
    assert_eq!(whole["stop_reason"], "tool_use");
}

#[test]
fn steps_follow_the_assistant_messages() {
    let model = model(TOOL_TURN);
    let mut request = prompt("go", false);
    let first = body(&ask(&model, &request));
    assert_eq!(first, body(&ask(&model, &request)), "a retry gets the same answer, ids included");
    let ids = [&first["content"][2]["id"], &first["content"][3]["id"]];
    assert_ne!(ids[0], ids[1]);
    assert!(ids[0].as_str().unwrap().starts_with("toolu_"));

    let mut seen = vec![ids[0].clone()];
    for _ in 0..3 {
        let messages = request["messages"].as_array_mut().unwrap();
        messages.push(json!({ "role": "assistant", "content": first["content"] }));
        let result = json!({ "type": "tool_result", "tool_use_id": ids[0], "content": "the files" });
        messages.push(json!({ "role": "user", "content": [result] }));
        let next = body(&ask(&model, &request));
        assert_eq!(next["content"], json!([{ "type": "text", "text": "saw the files" }]));
        assert_eq!(next["stop_reason"], "end_turn");
        assert!(!seen.contains(&next["id"]));
        seen.push(next["id"].clone());
    }
}

#[test]
fn a_rule_with_only_tool_calls_ends_the_turn() {
    let model = model("[[rule]]\n[[rule.step]]\ntool = [{ name = \"bash\" }]");
    let mut request = prompt("x", false);
    request["messages"].as_array_mut().unwrap().push(json!({ "role": "assistant", "content": "…" }));
    assert_eq!(body(&ask(&model, &request))["content"], json!([{ "type": "text", "text": CLOSING_TEXT }]));
}

#[test]
fn the_first_matching_rule_is_used_and_spaces_match_whole_words() {
    let model = model(
        "[[rule]]\nwhen = \" ls \"\n[[rule.step]]\ntext = \"word\"\n[[rule]]\nwhen = [\"x\", \"FALSE\"]\n[[rule.step]]\ntext = \"part\"",
    );
    let text = |words: &str| body(&ask(&model, &prompt(words, false)))["content"][0]["text"].clone();
    assert_eq!(text("LS"), "word");
    assert_eq!(text("run\nls please, no false moves"), "word");
    assert_eq!(text("false"), "part");
    let unmatched = ask(&model, &prompt("nothing", false));
    assert_eq!(
        (unmatched.status, &body(&unmatched)["error"]["type"]),
        (400, &json!("invalid_request_error"))
    );
}

#[test]
fn errors_are_counted_per_conversation() {
    let script = "[[rule]]\n[[rule.step]]\ntext = \"ok\"\n\
        error = { status = 429, message = \"slow down\", retry_after_ms = 1500, times = 2 }";
    let model = model(script);
    let first = ask(&model, &prompt("a", true));
    assert_eq!(first.status, 429);
    assert_eq!(
        body(&first),
        json!({ "type": "error", "error": { "type": "rate_limit_error", "message": "slow down" } })
    );
    assert!(first.headers.contains(&("retry-after-ms", "1500".to_owned())));
    assert!(first.headers.contains(&("retry-after", "2".to_owned())));
    assert_eq!(ask(&model, &prompt("a", true)).status, 429);
    assert_eq!(ask(&model, &prompt("a", true)).status, 200);
    let bytes = prompt("a", true).to_string().into_bytes();
    let other = Call { method: "POST", path: "/v1/messages", conversation: "ses_2", body: &bytes };
    assert_eq!(model.answer(&other).status, 429, "another conversation has its own count");
}

#[test]
fn each_error_status_has_its_name() {
    let names = [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (500, "api_error"),
        (529, "overloaded_error"),
    ];
    for (status, name) in names {
        let script = format!("[[rule]]\n[[rule.step]]\nerror = {{ status = {status}, message = \"m\" }}");
        let reply = ask(&model(&script), &prompt("a", false));
        assert_eq!((reply.status, body(&reply)["error"]["type"].as_str().unwrap()), (status, name));
    }
}

#[test]
fn a_dropped_stream_can_be_retried() {
    let model = model("[[rule]]\n[[rule.step]]\ntext = \"some words\"\ndrop_after = 2\ndrop_times = 1");
    let cut = ask(&model, &prompt("a", true));
    assert_eq!(kinds(&events(&cut)), ["message_start", "content_block_start"]);
    assert_eq!(cut.frames.last(), Some(&Frame::Cut));
    let whole = ask(&model, &prompt("a", true));
    assert!(!whole.frames.contains(&Frame::Cut));
    assert_eq!(kinds(&events(&whole)).last(), Some(&"message_stop"));
}

#[test]
fn other_routes_are_served() {
    let model = Model::new(Script::built_in());
    let models = body(&send(&model, "GET", "/v1/models?limit=1000", b""));
    assert_eq!(models["data"][0]["id"], MODELS[0]);
    let counted =
        send(&model, "POST", "/v1/messages/count_tokens", prompt("12345678", false).to_string().as_bytes());
    assert_eq!(body(&counted), json!({ "input_tokens": 3 }));
    assert_eq!(send(&model, "GET", "/v1/messages", b"").status, 405);
    assert_eq!(send(&model, "POST", "/v1/complete", b"").status, 404);
}

#[test]
fn hostile_bodies_get_an_error_and_no_panic() {
    let model = Model::new(Script::built_in());
    let deep = "[".repeat(100_000);
    let bodies = [
        "",
        "null",
        "[]",
        "{}",
        "\u{0}",
        "{\"model\":1}",
        "{\"model\":\"m\",\"max_tokens\":1}",
        "{\"model\":\"m\",\"max_tokens\":0,\"messages\":[{}]}",
        "{\"model\":\"m\",\"max_tokens\":1,\"messages\":[]}",
        "{\"model\":\"m\",\"max_tokens\":1,\"messages\":{}}",
        deep.as_str(),
    ];
    for text in bodies {
        let reply = send(&model, "POST", "/v1/messages", text.as_bytes());
        assert_eq!(
            (reply.status, &body(&reply)["type"]),
            (400, &json!("error")),
            "{}",
            &text[..text.len().min(80)]
        );
    }
    assert_eq!(send(&model, "POST", "/v1/messages", &vec![b' '; MAX_BODY + 1]).status, 413);
    let odd = [
        json!([1, null, "x", {}]),
        json!([{ "role": "user" }]),
        json!([{ "role": "user", "content": [{ "type": "text" }, 3] }]),
    ];
    for messages in odd {
        let request = json!({ "model": "m", "max_tokens": 1, "messages": messages });
        assert_eq!(ask(&model, &request).status, 200, "{request}");
    }
}

/// Plays a prompt to the end of its turn; returns the names of the called tools and the final text.
fn play(model: &Model, words: &str) -> (Vec<String>, String) {
    let mut request = prompt(words, false);
    let mut called = Vec::new();
    for _ in 0..10 {
        let answer = body(&ask(model, &request));
        let blocks = answer["content"].as_array().unwrap().clone();
        let tools: Vec<&Value> = blocks.iter().filter(|block| block["type"] == "tool_use").collect();
        if tools.is_empty() {
            return (called, blocks.last().unwrap()["text"].as_str().unwrap().to_owned());
        }
        called.extend(tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()));
        let results: Vec<Value> = tools
            .iter()
            .map(|tool| json!({ "type": "tool_result", "tool_use_id": tool["id"], "content": "TOOL SAID" }))
            .collect();
        let messages = request["messages"].as_array_mut().unwrap();
        messages.extend([
            json!({ "role": "assistant", "content": blocks }),
            json!({ "role": "user", "content": results }),
        ]);
    }
    panic!("the turn does not end: {words}");
}

/// The end of the prompt of a run.
const AUTOMATION: &str = "List the open issues.\n---\nWhen you are done, call the tool `automation_complete` once, with \
    run_id `run-1` and completion_id `run:run-1:completion`. Files that are not pushed are gone after it.";

#[test]
fn the_built_in_script_ends_the_run_that_its_prompt_names() {
    let model = Model::new(Script::built_in());
    let mut request = prompt(AUTOMATION, false);
    let first = body(&ask(&model, &request))["content"].clone();
    let result = json!([{ "type": "tool_result", "tool_use_id": first[1]["id"], "content": "{}" }]);
    let messages = request["messages"].as_array_mut().unwrap();
    messages.extend([
        json!({ "role": "assistant", "content": first }),
        json!({ "role": "user", "content": result }),
    ]);
    let call = body(&ask(&model, &request))["content"][1].clone();
    assert_eq!(call["name"], "automation_complete");
    let ids = [&call["input"]["run_id"], &call["input"]["completion_id"]];
    assert_eq!(ids, ["run-1", "run:run-1:completion"], "{call}");
    assert_eq!(call["input"]["outcome"], "succeeded");
}

#[test]
fn every_rule_of_the_built_in_script_answers() {
    let model = Model::new(Script::built_in());
    let table = [
        ("Please list my files", vec!["bash"], "TOOL SAID"),
        ("ls", vec!["bash"], "TOOL SAID"),
        ("create two files", vec!["write", "bash"], "TOOL SAID"),
        ("Write me a file", vec!["write", "bash"], "TOOL SAID"),
        ("think hard", vec![], "thought about it"),
        (AUTOMATION, vec!["bash", "automation_complete"], "reported the outcome"),
        ("Hello!", vec![], "ANTHROPIC_API_KEY"),
        ("what is 2+2?", vec![], "You said: what is 2+2?"),
    ];
    for (words, tools, said) in table {
        let (called, last) = play(&model, words);
        assert_eq!(called, tools, "{words}");
        assert!(last.contains(said), "{words}: {last}");
    }
    assert_eq!(body(&ask(&model, &prompt("think", false)))["content"][0]["type"], "thinking");
    assert_eq!(ask(&model, &prompt("show me an error", false)).status, 400);
    let mut title = prompt("list my files", false);
    title["system"] =
        json!([{ "type": "text", "text": "You are a title generator. You output ONLY a thread title." }]);
    assert_eq!(body(&ask(&model, &title))["content"], json!([{ "type": "text", "text": "list my files" }]));
}
