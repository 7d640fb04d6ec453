//! The bounds of a request of the Messages API, computed before the request is forwarded. A caller with a budget
//! must not be able to make a request look cheaper than it is.
//!
//! A token is at least one byte of text, so a request has at most as many tokens as bytes. Content that is billed
//! differently is weighed separately: each image by a constant, documents by the model's whole context window. Unknown
//! fields are refused, because the provider may run them, and bill them, by itself.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::request::{Bounds, Thinking};
use super::weight::{Length, MAX_PREAMBLE_TOKENS, Number, Weigh, Weighed, Weight, place};

/// An upper bound of the tokens that a provider bills for one image. Providers scale images down.
const MAX_IMAGE_TOKENS: i64 = 5_000;
/// The tool types that the provider defines and the agent runs.
const KNOWN_TOOLS: [&str; 4] = ["bash_", "computer_", "memory_", "text_editor_"];

/// A request of the Messages API, with all fields whose cost is known.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields<'a> {
    #[serde(borrow)]
    model: Cow<'a, str>,
    #[serde(borrow)]
    max_tokens: &'a RawValue,
    #[serde(borrow)]
    thinking: Option<&'a RawValue>,
    messages: Weighed<Message>,
    tools: Option<Weighed<Tool>>,
    output_config: Option<IgnoredAny>,
    output_format: Option<IgnoredAny>,
    #[serde(rename = "cache_control")]
    _cache_control: Option<IgnoredAny>,
    #[serde(rename = "metadata")]
    _metadata: Option<IgnoredAny>,
    #[serde(rename = "service_tier")]
    _service_tier: Option<IgnoredAny>,
    #[serde(rename = "stop_sequences")]
    _stop_sequences: Option<IgnoredAny>,
    #[serde(rename = "stream")]
    _stream: Option<IgnoredAny>,
    #[serde(rename = "system")]
    _system: Option<IgnoredAny>,
    #[serde(rename = "temperature")]
    _temperature: Option<IgnoredAny>,
    #[serde(rename = "tool_choice")]
    _tool_choice: Option<IgnoredAny>,
    #[serde(rename = "top_k")]
    _top_k: Option<IgnoredAny>,
    #[serde(rename = "top_p")]
    _top_p: Option<IgnoredAny>,
}

impl Fields<'_> {
    /// The maximum number of input tokens of a request with this many bytes.
    fn most_input(&self, bytes: usize) -> i64 {
        let form = self.output_config.is_some() || self.output_format.is_some();
        let tools = self.tools.as_ref().map(|tools| tools.weight.tokens.saturating_add(MAX_PREAMBLE_TOKENS));
        self.messages.weight.most_input(bytes, tools.unwrap_or(if form { MAX_PREAMBLE_TOKENS } else { 0 }))
    }
}

/// The model that a request names and the bounds of its cost.
pub(super) fn bounds(body: &[u8]) -> Result<(String, Bounds), String> {
    let fields: Fields<'_> = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let output = Number::of(body, fields.max_tokens).ok_or("max_tokens must be a whole number")?;
    let thinking = fields.thinking.map(|raw| thinking(body, raw)).transpose()?.flatten();
    let bounds = Bounds {
        input: fields.most_input(body.len()),
        // The most expensive way is to write all of the input to a cache, and for an hour if the request allows it.
        input_twentieths: if may_keep_long(body) { 40 } else { 25 },
        output,
        output_is_absent: false,
        thinking,
        hides_output: fields.thinking.is_some_and(enables_thinking),
    };
    Ok((fields.model.into_owned(), bounds))
}

fn thinking(body: &[u8], raw: &RawValue) -> Result<Option<Thinking>, String> {
    #[derive(Deserialize)]
    struct ThinkingField<'a> {
        #[serde(borrow)]
        budget_tokens: Option<&'a RawValue>,
    }
    let wanted: ThinkingField<'_> = serde_json::from_str(raw.get()).map_err(|error| error.to_string())?;
    let Some(budget) = wanted.budget_tokens else { return Ok(None) };
    let budget = Number::of(body, budget).ok_or("thinking.budget_tokens must be a whole number")?;
    Ok(Some(Thinking { budget, place: place(body, raw) }))
}

/// Whether this `thinking` value makes the model think. Anything but an explicit `disabled` counts.
fn enables_thinking(raw: &RawValue) -> bool {
    #[derive(Deserialize)]
    struct ThinkingField {
        r#type: String,
    }
    serde_json::from_str::<ThinkingField>(raw.get()).map_or(true, |wanted| wanted.r#type != "disabled")
}

/// Whether the body can contain a `ttl` field, even if its letters are escaped.
fn may_keep_long(body: &[u8]) -> bool {
    let letter = |six: &[u8]| six.eq_ignore_ascii_case(br"\u0074") || six.eq_ignore_ascii_case(br"\u006c");
    body.windows(3).any(|three| three == b"ttl") || body.windows(6).any(letter)
}

#[derive(Deserialize)]
struct Message {
    content: Weighed<Block>,
}

impl Weigh for Message {
    fn weight(&self) -> Result<Weight, String> {
        Ok(self.content.weight)
    }
}

/// A content block of a message.
#[derive(Deserialize)]
struct Block {
    #[serde(rename = "type")]
    kind: String,
    source: Option<Source>,
    content: Option<Weighed<Block>>,
}

#[derive(Deserialize)]
struct Source {
    #[serde(rename = "type")]
    kind: String,
    data: Option<Length>,
}

impl Weigh for Block {
    fn weight(&self) -> Result<Weight, String> {
        let source = self.source.as_ref();
        match (self.kind.as_str(), source.map(|source| source.kind.as_str())) {
            ("text" | "tool_use" | "thinking" | "redacted_thinking", _) | ("document", Some("text")) => {
                Ok(Weight::default())
            }
            ("tool_result", _) => Ok(self.content.as_ref().map(|content| content.weight).unwrap_or_default()),
            ("image", kind) => {
                let data = source.and_then(|source| source.data.as_ref());
                let bytes = data.filter(|_| kind == Some("base64")).map_or(0, |data| data.0);
                Ok(Weight::of(MAX_IMAGE_TOKENS.saturating_sub(bytes)))
            }
            ("document", _) => Ok(Weight { tokens: 0, documents: true }),
            (other, _) => Err(format!("what `{other}` in a message costs cannot be known before")),
        }
    }
}

#[derive(Deserialize)]
struct Tool {
    #[serde(rename = "type")]
    kind: Option<String>,
}

impl Weigh for Tool {
    fn weight(&self) -> Result<Weight, String> {
        match self.kind.as_deref() {
            None | Some("custom") => Ok(Weight::default()),
            Some(known) if KNOWN_TOOLS.iter().any(|tool| known.starts_with(tool)) => {
                Ok(Weight::of(MAX_PREAMBLE_TOKENS))
            }
            Some(other) => {
                Err(format!("the provider runs `{other}` itself, at a cost that cannot be known before"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::weight::MAX_CONTEXT_TOKENS;
    use super::*;

    /// The maximum number of tokens of a request with this message and these other fields, minus its number of bytes.
    fn beside_bytes(content: &Value, more: &Value) -> Result<i64, String> {
        let mut body =
            json!({"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": content}]});
        for (name, value) in more.as_object().unwrap() {
            body[name] = value.clone();
        }
        let text = body.to_string();
        let fields = serde_json::from_str::<Fields<'_>>(&text).map_err(|error| error.to_string())?;
        Ok(fields.most_input(text.len()) - i64::try_from(text.len()).unwrap())
    }

    #[test]
    fn a_request_costs_one_token_per_byte_and_the_billed_tokens_of_images_and_documents() {
        let data = "A".repeat(100_000);
        let picture =
            json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}});
        let linked = json!({"type": "image", "source": {"type": "url", "url": "https://a/b.png"}});
        let result =
            |content: Value| json!([{"type": "tool_result", "tool_use_id": "t", "content": content}]);
        let none = json!({});
        for (content, expected) in [
            (json!("hi"), 0),
            (json!([{"type": "text", "text": "hi"}]), 0),
            (json!([picture]), MAX_IMAGE_TOKENS - 100_000),
            (json!([picture, picture]), 2 * (MAX_IMAGE_TOKENS - 100_000)),
            (json!([linked]), MAX_IMAGE_TOKENS),
            (result(json!([picture])), MAX_IMAGE_TOKENS - 100_000),
            (result(json!("text")), 0),
            // The same content in places where it is only text: there, each byte can be a token.
            (json!([{"type": "tool_use", "id": "t", "name": "n", "input": picture}]), 0),
            (json!([{"type": "text", "text": "x", "source": picture["source"]}]), 0),
            (
                json!([{"type": "image", "source": {"type": "url", "url": "u", "data": data}}]),
                MAX_IMAGE_TOKENS,
            ),
            (json!([{"type": "document", "source": {"type": "text", "data": "words"}}]), 0),
            (
                json!([{"type": "document", "source": {"type": "base64", "data": "JVBERi0="}}]),
                MAX_CONTEXT_TOKENS,
            ),
            (
                result(json!([{"type": "document", "source": {"type": "file", "file_id": "f"}}])),
                MAX_CONTEXT_TOKENS,
            ),
        ] {
            assert_eq!(beside_bytes(&content, &none), Ok(expected), "{content:.200}");
        }
        for (tools, expected) in [
            (
                json!([{"name": "a", "input_schema": {}}, {"type": "custom", "name": "b"}]),
                MAX_PREAMBLE_TOKENS,
            ),
            (json!([{"type": "text_editor_20250728", "name": "x"}]), 2 * MAX_PREAMBLE_TOKENS),
        ] {
            assert_eq!(beside_bytes(&json!("hi"), &json!({"tools": tools})), Ok(expected), "{tools}");
        }
        assert_eq!(beside_bytes(&json!("hi"), &json!({"output_config": {}})), Ok(MAX_PREAMBLE_TOKENS));
    }

    #[test]
    fn requests_with_tools_of_the_provider_have_no_cost_bound() {
        let text = json!("hi");
        for (content, more) in [
            (&text, json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]})),
            (&text, json!({"mcp_servers": []})),
            (&text, json!({"container": "c"})),
            (&text, json!({"speed": "fast"})),
            (&json!([{"type": "container_upload", "file_id": "f"}]), json!({})),
            (&json!(null), json!({})),
        ] {
            assert!(beside_bytes(content, &more).is_err(), "{content} {more}");
        }
        let twice =
            r#"{"model":"m","max_tokens":1,"messages":[{"content":[{"type":"text","type":"document"}]}]}"#;
        assert!(serde_json::from_str::<Fields<'_>>(twice).is_err());
    }
}
