//! The Chat Completions API: parses its requests, and serializes answers as JSON or as a stream of chunks.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::message::{Block, Chunking, Message, pieces};
use crate::reply::Frame;
use crate::request::{Request, fingerprint, last_user_text, text_length, texts, tokens};

/// The time of every answer, in seconds since the Unix epoch: the model has no clock.
pub(crate) const CREATED: u64 = 1_767_225_600;

#[derive(Deserialize)]
struct Wire {
    model: Option<Value>,
    messages: Option<Value>,
    #[serde(default)]
    stream: Value,
    #[serde(default)]
    stream_options: Value,
    #[serde(default)]
    tools: Value,
}

/// Parses a request of the Chat Completions API. The error text is shown to the client.
pub(crate) fn parse(body: &[u8], conversation: &str) -> Result<Request, String> {
    let wire: Wire =
        serde_json::from_slice(body).map_err(|error| format!("the body is not valid: {error}"))?;
    let Some(Value::String(model)) = wire.model else {
        return Err("you must provide a model parameter".to_owned());
    };
    let Some(Value::Array(messages)) = &wire.messages else {
        return Err("'messages' must be a list".to_owned());
    };
    if messages.is_empty() {
        return Err("'messages' must have at least one message".to_owned());
    }
    let (at, prompt) = last_user_text(messages);
    let is_system = |message: &&Value| message["role"] == "system" || message["role"] == "developer";
    let system: Vec<&str> =
        messages.iter().filter(is_system).flat_map(|message| texts(&message["content"])).collect();
    let length = [&wire.tools].into_iter().chain(messages).map(text_length).sum();
    Ok(Request {
        model,
        stream: wire.stream == Value::Bool(true),
        stream_usage: wire.stream_options["include_usage"] == Value::Bool(true),
        system: system.join("\n"),
        prompt,
        step: messages[at..].iter().filter(|message| message["role"] == "assistant").count(),
        tool_result: last_tool_results(&messages[at..]),
        input_tokens: tokens(length),
        fingerprint: fingerprint(conversation, messages),
    })
}

/// The results of the tools that the last answer called: the tool messages that follow it.
fn last_tool_results(messages: &[Value]) -> String {
    let of_tools = messages.iter().rev().skip_while(|message| message["role"] != "tool");
    let mut results: Vec<String> = of_tools
        .take_while(|message| message["role"] == "tool")
        .map(|message| texts(&message["content"]).join("\n"))
        .collect();
    results.reverse();
    results.join("\n")
}

/// A complete answer.
pub(crate) fn complete(message: &Message) -> Value {
    let mut said = json!({ "role": "assistant", "content": null });
    let mut calls = Vec::new();
    for block in &message.blocks {
        match block {
            Block::Thinking { words, .. } => said["reasoning_content"] = json!(words),
            Block::Text(words) => said["content"] = json!(words),
            Block::Tool { id, name, input } => calls.push(call(id, name, &input.to_string())),
        }
    }
    if !calls.is_empty() {
        said["tool_calls"] = json!(calls);
    }
    let choice = json!({ "index": 0, "message": said, "logprobs": null, "finish_reason": finish(message) });
    let mut whole = envelope(message, "chat.completion", &json!([choice]));
    whole["usage"] = usage(message);
    whole
}

/// All chunks up to `[DONE]`, one frame each. The usage is sent only to clients that ask for it.
pub(crate) fn frames(message: &Message, chunking: Chunking, with_usage: bool) -> Vec<Frame> {
    let chunk = |delta: &Value, reason: &Value, delay| {
        let choice = json!({ "index": 0, "delta": delta, "logprobs": null, "finish_reason": reason });
        frame(&envelope(message, "chat.completion.chunk", &json!([choice])), delay)
    };
    let role = json!({ "role": "assistant", "content": "" });
    let mut frames = vec![chunk(&role, &Value::Null, Duration::ZERO)];
    let mut index = 0;
    for block in &message.blocks {
        if let Block::Tool { id, name, .. } = block {
            let mut opening = call(id, name, "");
            opening["index"] = json!(index);
            frames.push(chunk(&json!({ "tool_calls": [opening] }), &Value::Null, Duration::ZERO));
        }
        let deltas = deltas(block, chunking.chunk, index);
        frames.extend(deltas.iter().map(|delta| chunk(delta, &Value::Null, chunking.delay)));
        index += usize::from(matches!(block, Block::Tool { .. }));
    }
    frames.push(chunk(&json!({}), &json!(finish(message)), Duration::ZERO));
    if with_usage {
        let mut last = envelope(message, "chat.completion.chunk", &json!([]));
        last["usage"] = usage(message);
        frames.push(frame(&last, Duration::ZERO));
    }
    frames.push(Frame::Send { delay: Duration::ZERO, bytes: b"data: [DONE]\n\n".to_vec() });
    frames
}

fn deltas(block: &Block, chunk: usize, index: usize) -> Vec<Value> {
    match block {
        // Not part of OpenAI's own API; this is the name that other providers have agreed on.
        Block::Thinking { words, .. } => {
            pieces(words, chunk).map(|piece| json!({ "reasoning_content": piece })).collect()
        }
        Block::Text(words) => pieces(words, chunk).map(|piece| json!({ "content": piece })).collect(),
        Block::Tool { input, .. } => pieces(&input.to_string(), chunk)
            .map(|piece| json!({ "tool_calls": [{ "index": index, "function": { "arguments": piece } }] }))
            .collect(),
    }
}

fn call(id: &str, name: &str, arguments: &str) -> Value {
    json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } })
}

fn envelope(message: &Message, object: &str, choices: &Value) -> Value {
    json!({ "id": message.id, "object": object, "created": CREATED, "model": message.model, "choices": choices })
}

fn usage(message: &Message) -> Value {
    let (input, output) = (message.input_tokens, message.output_tokens());
    json!({ "prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output })
}

fn finish(message: &Message) -> &'static str {
    match message.stop_reason {
        "tool_use" => "tool_calls",
        "max_tokens" => "length",
        "refusal" => "content_filter",
        _ => "stop",
    }
}

fn frame(chunk: &Value, delay: Duration) -> Frame {
    Frame::Send { delay, bytes: format!("data: {chunk}\n\n").into_bytes() }
}

#[cfg(test)]
mod tests;
