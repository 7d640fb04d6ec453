//! The bounds of a request of the Chat Completions API, and the changes that are made to it before it is forwarded.
//!
//! As with the Messages API, a token is at least one byte of text, images and files are weighed separately, and fields
//! whose cost is unknown are refused where a budget applies.

use std::borrow::Cow;

use axum::body::Bytes;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::AT_ONCE;
use super::request::Bounds;
use super::weight::{Length, MAX_PREAMBLE_TOKENS, Number, Weigh, Weighed, Weight, place, splice};

/// An upper bound of the tokens that a provider bills for one image. Some bill their small models many tokens for
/// each tile.
const MAX_IMAGE_TOKENS: i64 = 60_000;
/// The limit that is added where a budget applies to a request without one.
const DEFAULT_OUTPUT: i64 = 32_000;
/// The service tiers that cost no more than the price of the model.
const PLAIN_TIERS: [&str; 3] = ["auto", "default", "flex"];

/// A request with all fields whose cost is known.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields<'a> {
    #[serde(borrow)]
    model: Cow<'a, str>,
    messages: Weighed<Message>,
    #[serde(borrow, default, deserialize_with = "present")]
    max_tokens: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    max_completion_tokens: Option<&'a RawValue>,
    n: Option<u64>,
    service_tier: Option<String>,
    tools: Option<Weighed<Tool>>,
    response_format: Option<IgnoredAny>,
    #[serde(rename = "frequency_penalty")]
    _frequency_penalty: Option<IgnoredAny>,
    #[serde(rename = "logit_bias")]
    _logit_bias: Option<IgnoredAny>,
    #[serde(rename = "logprobs")]
    _logprobs: Option<IgnoredAny>,
    #[serde(rename = "metadata")]
    _metadata: Option<IgnoredAny>,
    #[serde(rename = "parallel_tool_calls")]
    _parallel_tool_calls: Option<IgnoredAny>,
    #[serde(rename = "presence_penalty")]
    _presence_penalty: Option<IgnoredAny>,
    #[serde(rename = "prompt_cache_key")]
    _prompt_cache_key: Option<IgnoredAny>,
    #[serde(rename = "reasoning_effort")]
    _reasoning_effort: Option<IgnoredAny>,
    #[serde(rename = "seed")]
    _seed: Option<IgnoredAny>,
    #[serde(rename = "stop")]
    _stop: Option<IgnoredAny>,
    #[serde(rename = "store")]
    _store: Option<IgnoredAny>,
    #[serde(rename = "stream")]
    _stream: Option<IgnoredAny>,
    #[serde(rename = "stream_options")]
    _stream_options: Option<IgnoredAny>,
    #[serde(rename = "temperature")]
    _temperature: Option<IgnoredAny>,
    #[serde(rename = "tool_choice")]
    _tool_choice: Option<IgnoredAny>,
    #[serde(rename = "top_k")]
    _top_k: Option<IgnoredAny>,
    #[serde(rename = "top_logprobs")]
    _top_logprobs: Option<IgnoredAny>,
    #[serde(rename = "top_p")]
    _top_p: Option<IgnoredAny>,
    #[serde(rename = "user")]
    _user: Option<IgnoredAny>,
    #[serde(rename = "verbosity")]
    _verbosity: Option<IgnoredAny>,
}

/// A value that is in the body, even if it is `null`, so that its position is known.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// The model that a request names and the bounds of its cost.
pub(super) fn bounds(body: &[u8]) -> Result<(String, Bounds), String> {
    let fields: Fields<'_> = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    if fields.n.is_some_and(|n| n != 1) {
        return Err("n must be 1".to_owned());
    }
    if fields.service_tier.as_deref().is_some_and(|tier| !PLAIN_TIERS.contains(&tier)) {
        return Err(format!("service_tier must be one of {}", PLAIN_TIERS.join(", ")));
    }
    let (output, output_is_absent) = match (fields.max_tokens, fields.max_completion_tokens) {
        (Some(_), Some(_)) => {
            return Err("only one of max_tokens and max_completion_tokens may be set".to_owned());
        }
        (Some(raw), None) | (None, Some(raw)) => {
            (Number::of(body, raw).ok_or("max_tokens must be a whole number")?, false)
        }
        (None, None) => {
            let start = start(body);
            (Number { value: DEFAULT_OUTPUT, place: start..start }, true)
        }
    };
    let tools = fields.tools.as_ref().map(|tools| tools.weight.tokens.saturating_add(MAX_PREAMBLE_TOKENS));
    let added =
        tools.unwrap_or_default().max(if fields.response_format.is_some() { MAX_PREAMBLE_TOKENS } else { 0 });
    let bounds = Bounds {
        input: fields.messages.weight.most_input(body.len(), added),
        input_twentieths: 20,
        output,
        output_is_absent,
        thinking: None,
        hides_output: false,
    };
    Ok((fields.model.into_owned(), bounds))
}

/// The text that adds a limit to a request without one, for the start of its body.
pub(super) fn limit(output: i64) -> String {
    format!(r#""max_tokens":{output},"#)
}

/// The position behind the opening brace of the body.
fn start(body: &[u8]) -> usize {
    body.iter().position(|byte| *byte == b'{').map_or(0, |brace| brace + 1)
}

/// The request as it is forwarded: a streamed answer must end with its usage figures. `renames_limit` is for OpenAI's own
/// API, whose newer models refuse `max_tokens`. A large body is parsed on a blocking thread.
pub(super) async fn prepare(body: Bytes, renames_limit: bool) -> Bytes {
    if body.len() <= AT_ONCE {
        return prepare_body(&body, renames_limit);
    }
    let unchanged = body.clone();
    let prepared = tokio::task::spawn_blocking(move || prepare_body(&body, renames_limit)).await;
    prepared.unwrap_or(unchanged)
}

fn prepare_body(body: &Bytes, renames_limit: bool) -> Bytes {
    const INCLUDE_USAGE: &str = r#"{"include_usage":true}"#;
    #[derive(Deserialize)]
    struct Head<'a> {
        #[serde(default)]
        stream: Option<bool>,
        #[serde(borrow, default, deserialize_with = "present")]
        stream_options: Option<&'a RawValue>,
        #[serde(borrow, default, deserialize_with = "present")]
        max_tokens: Option<&'a RawValue>,
    }
    // The provider refuses a body that cannot be parsed.
    let Ok(head) = serde_json::from_slice::<Head<'_>>(body) else { return body.clone() };
    let mut changes = Vec::new();
    match (head.stream, head.stream_options) {
        (Some(true), Some(options)) => changes.push((place(body, options), INCLUDE_USAGE.to_owned())),
        (Some(true), None) => {
            let start = start(body);
            changes.push((start..start, format!(r#""stream_options":{INCLUDE_USAGE},"#)));
        }
        _ => {}
    }
    let limit =
        head.max_tokens.filter(|_| renames_limit).and_then(|raw| key_of(body, place(body, raw).start));
    changes.extend(limit.map(|key| (key, r#""max_completion_tokens""#.to_owned())));
    if changes.is_empty() { body.clone() } else { splice(body, changes) }
}

/// The position of the key `"max_tokens"` before its value. `None` if its letters are escaped.
fn key_of(body: &[u8], value: usize) -> Option<std::ops::Range<usize>> {
    const MAX_TOKENS_KEY: &[u8] = br#""max_tokens""#;
    let before = body[..value].trim_ascii_end().strip_suffix(b":")?.trim_ascii_end();
    before.ends_with(MAX_TOKENS_KEY).then(|| before.len() - MAX_TOKENS_KEY.len()..before.len())
}

#[derive(Deserialize)]
struct Message {
    content: Option<Weighed<Part>>,
    audio: Option<IgnoredAny>,
}

impl Weigh for Message {
    fn weight(&self) -> Result<Weight, String> {
        if self.audio.is_some() {
            return Err("what `audio` in a message costs cannot be known before".to_owned());
        }
        Ok(self.content.as_ref().map(|content| content.weight).unwrap_or_default())
    }
}

/// A part of a message's content.
#[derive(Deserialize)]
struct Part {
    #[serde(rename = "type")]
    kind: String,
    image_url: Option<Image>,
}

#[derive(Deserialize)]
struct Image {
    url: Length,
}

impl Weigh for Part {
    fn weight(&self) -> Result<Weight, String> {
        match (self.kind.as_str(), &self.image_url) {
            ("text" | "refusal", _) => Ok(Weight::default()),
            // The bytes of an image in a data URL are no tokens.
            ("image_url", Some(image)) => Ok(Weight::of(MAX_IMAGE_TOKENS.saturating_sub(image.url.0))),
            ("file", _) => Ok(Weight { tokens: 0, documents: true }),
            (other, _) => Err(format!("what `{other}` in a message costs cannot be known before")),
        }
    }
}

#[derive(Deserialize)]
struct Tool {
    #[serde(rename = "type")]
    kind: String,
}

impl Weigh for Tool {
    fn weight(&self) -> Result<Weight, String> {
        match self.kind.as_str() {
            "function" | "custom" => Ok(Weight::default()),
            other => {
                Err(format!("the provider runs `{other}` itself, at a cost that cannot be known before"))
            }
        }
    }
}

#[cfg(test)]
mod tests;
