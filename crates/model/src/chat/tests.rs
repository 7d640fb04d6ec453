//! Answers over the Chat Completions API: the same as over the Messages API, in the other format.

use super::*;
use crate::{Call, Model, Reply, Script};

const TOOL_TURN: &str = r#"
[[rule]]
when = "go"
[[rule.step]]
thinking = "hm"
text = "äbc"
chunk = 2
tool = [{ name = "bash", input = { command = "ls" } }, { name = "bash", input = { command = "pwd" } }]
[[rule.step]]
text = "saw {tool_result}"
[[rule]]
when = "broken"
[[rule.step]]
error = { status = 429, message = "slow down", retry_after_ms = 1500 }
[[rule]]
system = "be brief"
[[rule.step]]
text = "brief"
stop_reason = "max_tokens"
"#;

fn ask(body: &Value) -> Reply {
    let model = Model::new(Script::parse(TOOL_TURN).unwrap());
    let body = body.to_string();
    let call =
        Call { method: "POST", path: "/v1/chat/completions", conversation: "ses_1", body: body.as_bytes() };
    model.answer(&call)
}

fn prompt(text: &str, stream: bool) -> Value {
    json!({ "model": "m-1", "stream": stream, "messages": [{ "role": "user", "content": text }] })
}

fn body(reply: &Reply) -> Value {
    serde_json::from_slice(&reply.bytes()).unwrap()
}

/// The chunks of a stream, whose end must be marked.
fn chunks(reply: &Reply) -> Vec<Value> {
    let text = String::from_utf8(reply.bytes()).unwrap();
    let all = text.strip_suffix("data: [DONE]\n\n").unwrap();
    let one = |event: &str| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap();
    all.split_terminator("\n\n").map(one).collect()
}

#[test]
fn streamed_and_complete_answers_are_equal() {
    let whole = body(&ask(&prompt("go", false)));
    assert_eq!(whole["object"], "chat.completion");
    let (mut text, mut thought, mut reason) = (String::new(), String::new(), Value::Null);
    let mut calls: Vec<Value> = Vec::new();
    for chunk in chunks(&ask(&prompt("go", true))) {
        assert_eq!((&chunk["object"], &chunk["id"]), (&json!("chat.completion.chunk"), &whole["id"]));
        assert!(chunk["usage"].is_null(), "nobody asked for it");
        let choice = &chunk["choices"][0];
        text.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        thought.push_str(choice["delta"]["reasoning_content"].as_str().unwrap_or_default());
        reason = choice["finish_reason"].clone();
        let Some(call) = choice["delta"]["tool_calls"].get(0) else { continue };
        let index = usize::try_from(call["index"].as_u64().unwrap()).unwrap();
        if index == calls.len() {
            let mut call = call.clone();
            call.as_object_mut().unwrap().remove("index");
            calls.push(call);
        } else {
            let known = &mut calls[index]["function"]["arguments"];
            let piece = call["function"]["arguments"].as_str().unwrap();
            *known = json!(format!("{}{piece}", known.as_str().unwrap()));
        }
    }
    let message = &whole["choices"][0]["message"];
    assert_eq!((&message["content"], &message["reasoning_content"]), (&json!("äbc"), &json!("hm")));
    assert_eq!((text.as_str(), thought.as_str()), ("äbc", "hm"));
    assert_eq!(message["tool_calls"], json!(calls));
    assert_eq!(calls[1]["function"], json!({ "name": "bash", "arguments": r#"{"command":"pwd"}"# }));
    assert_eq!(
        (&reason, &whole["choices"][0]["finish_reason"]),
        (&json!("tool_calls"), &json!("tool_calls"))
    );
}

#[test]
fn the_next_step_answers_all_results_of_the_last_tools() {
    let first = body(&ask(&prompt("go", false)))["choices"][0]["message"].clone();
    let result = |at: usize, text: &str| json!({ "role": "tool", "tool_call_id": first["tool_calls"][at]["id"], "content": text });
    let mut request = prompt("go", false);
    let said = request["messages"].as_array_mut().unwrap();
    said.extend([first.clone(), result(0, "one"), result(1, "two")]);
    let next = body(&ask(&request));
    assert_eq!(next["choices"][0]["message"]["content"], "saw one\ntwo");
    assert_eq!(next["choices"][0]["finish_reason"], "stop");
}

#[test]
fn usage_is_always_in_a_complete_answer_and_in_a_stream_on_request() {
    let whole = body(&ask(&prompt("go", false)))["usage"].clone();
    assert_eq!(whole["total_tokens"].as_u64(), Some(2 + whole["completion_tokens"].as_u64().unwrap()));
    let mut request = prompt("go", true);
    request["stream_options"] = json!({ "include_usage": true });
    let chunks = chunks(&ask(&request));
    let last = chunks.last().unwrap();
    assert_eq!((&last["usage"], &last["choices"]), (&whole, &json!([])));
}

#[test]
fn errors_have_the_format_of_the_api() {
    let reply = ask(&prompt("broken", true));
    assert_eq!(reply.status, 429);
    assert!(reply.headers.contains(&("retry-after", "2".to_owned())));
    let error = json!({ "message": "slow down", "type": "rate_limit_error", "param": null, "code": null });
    assert_eq!(body(&reply), json!({ "error": error }));
    for bad in [json!({}), json!({ "model": "m" }), json!({ "model": "m", "messages": [] }), json!([])] {
        let reply = ask(&bad);
        assert_eq!(
            (reply.status, &body(&reply)["error"]["type"]),
            (400, &json!("invalid_request_error")),
            "{bad}"
        );
    }
}

#[test]
fn the_system_prompt_may_come_from_the_developer_in_parts() {
    let mut request = prompt("anything", false);
    let parts = json!([{ "type": "text", "text": "Be" }, { "type": "text", "text": "brief" }]);
    request["messages"].as_array_mut().unwrap().insert(0, json!({ "role": "developer", "content": parts }));
    let answer = body(&ask(&request));
    assert_eq!(answer["choices"][0]["message"], json!({ "role": "assistant", "content": "brief" }));
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
}
