//! A request as the model understands it, and the parser for the Messages API: strict about what the real API
//! requires, and ignoring everything else.

use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

/// Agents insert their own notes to the model into user messages; these are not the user's text.
const REMINDER_TAG: &str = "<system-reminder>";

#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) model: String,
    pub(crate) stream: bool,
    /// Whether a stream reports its usage. The Messages API always does.
    pub(crate) stream_usage: bool,
    pub(crate) system: String,
    /// The most recent text of the user.
    pub(crate) prompt: String,
    /// How many times the model has already answered this text.
    pub(crate) step: usize,
    /// The result of the tools that the last answer called.
    pub(crate) tool_result: String,
    pub(crate) input_tokens: usize,
    /// Identifies the current state of the conversation; a retry has the same one.
    pub(crate) fingerprint: String,
}

#[derive(Deserialize)]
struct Wire {
    model: Option<Value>,
    max_tokens: Option<Value>,
    messages: Option<Value>,
    #[serde(default)]
    stream: Value,
    #[serde(default)]
    system: Value,
    #[serde(default)]
    tools: Value,
}

/// Whether the caller wants an answer or only the number of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Answer,
    Count,
}

impl Request {
    /// The error is a message for the client in the format of the API: `field: problem`.
    pub(crate) fn parse(body: &[u8], conversation: &str, purpose: Purpose) -> Result<Self, String> {
        let wire: Wire =
            serde_json::from_slice(body).map_err(|error| format!("the body is not valid: {error}"))?;
        let model = match wire.model {
            Some(Value::String(model)) => model,
            Some(_) => return Err("model: Input should be a valid string".to_owned()),
            None => return Err("model: Field required".to_owned()),
        };
        if purpose == Purpose::Answer
            && wire.max_tokens.as_ref().and_then(Value::as_u64).is_none_or(|n| n == 0)
        {
            return Err("max_tokens: a number of 1 or more is required".to_owned());
        }
        let Some(Value::Array(messages)) = &wire.messages else {
            return Err("messages: a list is required".to_owned());
        };
        if messages.is_empty() {
            return Err("messages: at least one message is required".to_owned());
        }
        let (at, prompt) = last_user_text(messages);
        let length = [&wire.system, &wire.tools].into_iter().chain(messages).map(text_length).sum();
        Ok(Self {
            model,
            stream: wire.stream == Value::Bool(true),
            stream_usage: true,
            system: texts(&wire.system).join("\n"),
            prompt,
            step: messages[at..].iter().filter(|message| message["role"] == "assistant").count(),
            tool_result: last_tool_result(&messages[at..]),
            input_tokens: tokens(length),
            fingerprint: fingerprint(conversation, messages),
        })
    }
}

/// An approximation: four characters per token.
pub(crate) fn tokens(characters: usize) -> usize {
    characters.div_ceil(4).max(1)
}

/// The index of the most recent message with text of the user, and that text.
pub(crate) fn last_user_text(messages: &[Value]) -> (usize, String) {
    let users = messages.iter().enumerate().rev().filter(|(_, message)| message["role"] == "user");
    for (at, message) in users {
        let texts = texts(&message["content"]);
        let own = texts.iter().rfind(|text| !text.trim_start().starts_with(REMINDER_TAG));
        if let Some(text) = own.or(texts.last()) {
            return (at, text.trim().to_owned());
        }
    }
    (0, String::new())
}

fn last_tool_result(messages: &[Value]) -> String {
    let results = |message: &Value| -> Vec<String> {
        let blocks = message["content"].as_array().map(Vec::as_slice).unwrap_or_default();
        let of_tools = blocks.iter().filter(|block| block["type"] == "tool_result");
        of_tools.map(|block| texts(&block["content"]).join("\n")).collect()
    };
    messages.iter().rev().map(results).find(|found| !found.is_empty()).unwrap_or_default().join("\n")
}

/// Content is a string, or a list of blocks of which some are text.
pub(crate) fn texts(content: &Value) -> Vec<&str> {
    let texts: Vec<&str> = match content {
        Value::String(text) => vec![text],
        Value::Array(blocks) => {
            let of_text = blocks.iter().filter(|block| block["type"] == "text");
            of_text.filter_map(|block| block["text"].as_str()).collect()
        }
        _ => Vec::new(),
    };
    texts.into_iter().filter(|text| !text.trim().is_empty()).collect()
}

/// The number of characters in all strings of a value. The JSON parser has already limited its depth.
pub(crate) fn text_length(value: &Value) -> usize {
    match value {
        Value::String(text) => text.chars().count(),
        Value::Array(items) => items.iter().map(text_length).sum(),
        Value::Object(fields) => fields.values().map(text_length).sum(),
        _ => 0,
    }
}

pub(crate) fn fingerprint(conversation: &str, messages: &[Value]) -> String {
    let mut hash = Sha256::new();
    hash.update(conversation.len().to_be_bytes());
    hash.update(conversation);
    for message in messages {
        hash.update(message.to_string());
    }
    short_hex(&hash.finalize())
}

/// An id that depends only on its arguments.
pub(crate) fn derive_id(prefix: &str, fingerprint: &str, part: usize) -> String {
    let hash = Sha256::digest(format!("{prefix}/{fingerprint}/{part}"));
    format!("{prefix}_{}", short_hex(&hash))
}

fn short_hex(hash: &[u8]) -> String {
    hex::encode(&hash[..hash.len().min(12)])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(messages: &Value) -> Request {
        let body = json!({ "model": "m", "max_tokens": 1, "messages": messages });
        Request::parse(body.to_string().as_bytes(), "c", Purpose::Answer).unwrap()
    }

    #[test]
    fn the_prompt_is_the_last_user_text_despite_tool_results() {
        let request = read(&json!([
            { "role": "user", "content": "first" },
            { "role": "assistant", "content": "answer" },
            { "role": "user", "content": [{ "type": "text", "text": "failed before" }, { "type": "text", "text": " second " }] },
            { "role": "assistant", "content": [{ "type": "tool_use", "id": "t", "name": "bash", "input": {} }] },
            { "role": "user", "content": [
                { "type": "tool_result", "tool_use_id": "t", "content": [{ "type": "text", "text": "out" }, { "type": "image" }] },
                { "type": "tool_result", "tool_use_id": "u", "content": "put" },
            ] },
        ]));
        assert_eq!(
            (request.prompt.as_str(), request.step, request.tool_result.as_str()),
            ("second", 1, "out\nput")
        );
    }

    #[test]
    fn a_reminder_is_the_prompt_only_if_there_is_no_other_text() {
        let reminder = json!({ "type": "text", "text": "<system-reminder>plan</system-reminder>" });
        let mixed = json!([{ "role": "user", "content": [{ "type": "text", "text": "do it" }, reminder] }]);
        assert_eq!(read(&mixed).prompt, "do it");
        assert_eq!(read(&json!([{ "role": "user", "content": [reminder] }])).prompt, reminder["text"]);
    }

    #[test]
    fn the_fingerprint_depends_on_conversation_and_messages() {
        let of = |conversation: &str, text: &str| {
            let body = json!({ "model": "m", "messages": [{ "role": "user", "content": text }] }).to_string();
            Request::parse(body.as_bytes(), conversation, Purpose::Count).unwrap().fingerprint
        };
        assert_eq!(of("a", "x"), of("a", "x"));
        assert_ne!(of("a", "x"), of("b", "x"));
        assert_ne!(of("a", "x"), of("a", "y"));
    }

    #[test]
    fn tokens_grow_with_every_text_of_the_request() {
        let count = |body: Value| {
            Request::parse(body.to_string().as_bytes(), "", Purpose::Count).unwrap().input_tokens
        };
        let messages = json!([{ "role": "user", "content": "x".repeat(392) }]);
        assert_eq!(count(json!({ "model": "m", "messages": messages })), 99);
        let with_system = json!({ "model": "m", "messages": messages, "system": "x".repeat(40) });
        assert_eq!(count(with_system), 109);
    }
}
