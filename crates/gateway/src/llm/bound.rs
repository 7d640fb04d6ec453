//! An upper bound on the input tokens of a request, computed before the request is forwarded. A caller with a budget
//! must not be able to make a request look cheaper than it is.
//!
//! A token is at least one byte of text, so a request has at most as many tokens as bytes. Content that is billed
//! differently is weighed separately: each image by a constant, documents by the model's whole context window. Unknown
//! fields are refused, because the provider may run them, and bill them, by itself.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error as _, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// More tokens than any provider bills for one image, since providers scale images down.
const IMAGE: i64 = 5_000;
/// The largest context window of any model. The length of a document is unknown until the provider unpacks it.
const WINDOW: i64 = 1_000_000;
/// An upper bound on the tokens that a provider adds for tool use or structured output, and for each tool that it
/// defines itself.
const PREAMBLE: i64 = 1_000;
/// The tool types that the provider defines and the agent runs.
const KNOWN_TOOLS: [&str; 4] = ["bash_", "computer_", "memory_", "text_editor_"];

/// A request of the Messages API, with all fields whose cost is known.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Fields<'a> {
    #[serde(borrow)]
    pub(super) model: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) max_tokens: &'a RawValue,
    #[serde(borrow)]
    pub(super) thinking: Option<&'a RawValue>,
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
    pub(super) fn most_input(&self, bytes: usize) -> i64 {
        let tools = self.tools.as_ref().map(|tools| tools.weight.tokens.saturating_add(PREAMBLE));
        let form = self.output_config.is_some() || self.output_format.is_some();
        let weight = self.messages.weight;
        let tokens = i64::try_from(bytes)
            .unwrap_or(i64::MAX)
            .saturating_add(weight.tokens)
            .saturating_add(tools.unwrap_or(if form { PREAMBLE } else { 0 }));
        if weight.documents { tokens.max(0).saturating_add(WINDOW) } else { tokens.max(0) }
    }
}

/// How much a part of a request differs from one token per byte.
#[derive(Clone, Copy, Debug, Default)]
struct Weight {
    tokens: i64,
    documents: bool,
}

impl Weight {
    fn of(tokens: i64) -> Self {
        Self { tokens, documents: false }
    }

    fn and(self, other: Self) -> Self {
        Self {
            tokens: self.tokens.saturating_add(other.tokens),
            documents: self.documents || other.documents,
        }
    }
}

/// Content that is weighed while it is parsed and then dropped, because a request may have millions of such items.
trait Weigh {
    fn weight(&self) -> Result<Weight, String>;
}

/// A list or a plain text of which only the weight is kept.
struct Weighed<T> {
    weight: Weight,
    _what: PhantomData<T>,
}

impl<'de, T: Weigh + Deserialize<'de>> Deserialize<'de> for Weighed<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let weight = deserializer.deserialize_any(Scale::<T>(PhantomData))?;
        Ok(Self { weight, _what: PhantomData })
    }
}

struct Scale<T>(PhantomData<T>);

impl<'de, T: Weigh + Deserialize<'de>> Visitor<'de> for Scale<T> {
    type Value = Weight;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text or a list")
    }

    fn visit_str<E>(self, _: &str) -> Result<Weight, E> {
        Ok(Weight::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Weight, A::Error> {
        let mut all = Weight::default();
        while let Some(item) = items.next_element::<T>()? {
            all = all.and(item.weight().map_err(A::Error::custom)?);
        }
        Ok(all)
    }
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
                Ok(Weight::of(IMAGE.saturating_sub(bytes)))
            }
            ("document", _) => Ok(Weight { tokens: 0, documents: true }),
            (other, _) => Err(format!("what `{other}` in a message costs cannot be known before")),
        }
    }
}

/// The length of a string, without the string itself.
struct Length(i64);

impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Measure;
        impl Visitor<'_> for Measure {
            type Value = Length;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_str<E>(self, text: &str) -> Result<Length, E> {
                Ok(Length(i64::try_from(text.len()).unwrap_or(i64::MAX)))
            }
        }
        deserializer.deserialize_str(Measure)
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
            Some(known) if KNOWN_TOOLS.iter().any(|tool| known.starts_with(tool)) => Ok(Weight::of(PREAMBLE)),
            Some(other) => {
                Err(format!("the provider runs `{other}` itself, at a cost that cannot be known before"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

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
    fn a_request_has_at_most_one_token_for_each_byte_and_images_and_documents_what_they_are_billed() {
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
            (json!([picture]), IMAGE - 100_000),
            (json!([picture, picture]), 2 * (IMAGE - 100_000)),
            (json!([linked]), IMAGE),
            (result(json!([picture])), IMAGE - 100_000),
            (result(json!("text")), 0),
            // The same content in places where it is only text: there, each byte can be a token.
            (json!([{"type": "tool_use", "id": "t", "name": "n", "input": picture}]), 0),
            (json!([{"type": "text", "text": "x", "source": picture["source"]}]), 0),
            (json!([{"type": "image", "source": {"type": "url", "url": "u", "data": data}}]), IMAGE),
            (json!([{"type": "document", "source": {"type": "text", "data": "words"}}]), 0),
            (json!([{"type": "document", "source": {"type": "base64", "data": "JVBERi0="}}]), WINDOW),
            (result(json!([{"type": "document", "source": {"type": "file", "file_id": "f"}}])), WINDOW),
        ] {
            assert_eq!(beside_bytes(&content, &none), Ok(expected), "{content:.200}");
        }
        for (tools, expected) in [
            (json!([{"name": "a", "input_schema": {}}, {"type": "custom", "name": "b"}]), PREAMBLE),
            (json!([{"type": "text_editor_20250728", "name": "x"}]), 2 * PREAMBLE),
        ] {
            assert_eq!(beside_bytes(&json!("hi"), &json!({"tools": tools})), Ok(expected), "{tools}");
        }
        assert_eq!(beside_bytes(&json!("hi"), &json!({"output_config": {}})), Ok(PREAMBLE));
    }

    #[test]
    fn what_the_provider_runs_itself_is_not_bounded_by_the_request() {
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
