//! Reads events and responses of the Messages API.

use serde::Deserialize;

use super::{Report, Tokens};

#[derive(Deserialize)]
struct Event {
    #[serde(default)]
    usage: Option<ReportedUsage>,
    #[serde(default)]
    message: Option<MessageStart>,
    #[serde(default)]
    delta: Option<Delta>,
    #[serde(default)]
    model: Option<String>,
}

#[derive(Deserialize)]
struct MessageStart {
    #[serde(default)]
    usage: Option<ReportedUsage>,
    #[serde(default)]
    model: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ReportedUsage {
    input_tokens: Option<i64>,
    output_tokens: Option<i64>,
    cache_read_input_tokens: Option<i64>,
    cache_creation_input_tokens: Option<i64>,
    cache_creation: Option<CacheCreation>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct CacheCreation {
    ephemeral_1h_input_tokens: Option<i64>,
}

/// The next fragment of a text, a thought or a tool's input.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Delta {
    text: Option<String>,
    thinking: Option<String>,
    partial_json: Option<String>,
}

pub(super) fn read(json: &[u8]) -> Option<Report> {
    let event: Event = serde_json::from_slice(json).ok()?;
    let (started, named) = event.message.map_or((None, None), |message| (message.usage, message.model));
    let settles = event.usage.is_some();
    let mut tokens = Tokens::default();
    for usage in [started, event.usage].into_iter().flatten() {
        tokens.update(usage.into());
    }
    let delta = event.delta.unwrap_or_default();
    let fragments = [delta.text, delta.thinking, delta.partial_json];
    let shown = fragments.iter().flatten().map(String::len).sum();
    Some(Report { model: event.model.or(named), tokens, shown, settles, ends: false })
}

impl From<ReportedUsage> for Tokens {
    fn from(usage: ReportedUsage) -> Self {
        Self {
            input: usage.input_tokens,
            output: usage.output_tokens,
            cache_read: usage.cache_read_input_tokens,
            cache_write: usage.cache_creation_input_tokens,
            cached_long: usage.cache_creation.and_then(|written| written.ephemeral_1h_input_tokens),
        }
    }
}
