//! A part of a message, in events and in the history.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::lenient::text;

#[derive(Debug, Deserialize)]
pub struct Part<'a> {
    #[serde(borrow, default, deserialize_with = "text")]
    pub id: Cow<'a, str>,
    #[serde(borrow, rename = "messageID", default, deserialize_with = "text")]
    pub message: Cow<'a, str>,
    #[serde(borrow, rename = "sessionID", default, deserialize_with = "text")]
    pub session: Cow<'a, str>,
    #[serde(rename = "type", default)]
    pub kind: PartKind,
    #[serde(borrow, default, deserialize_with = "text")]
    pub text: Cow<'a, str>,
    /// A note from the agent to its model, which is not shown to people.
    #[serde(default)]
    pub ignored: bool,
    #[serde(default)]
    pub time: Times,
    #[serde(borrow, rename = "callID", default, deserialize_with = "text")]
    pub call: Cow<'a, str>,
    #[serde(borrow, default, deserialize_with = "text")]
    pub tool: Cow<'a, str>,
    #[serde(borrow, default)]
    pub state: ToolState<'a>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PartKind {
    Text,
    Tool,
    Reasoning,
    StepStart,
    StepFinish,
    #[default]
    #[serde(other)]
    Other,
}

/// The state of a tool call.
#[derive(Debug, Default, Deserialize)]
pub struct ToolState<'a> {
    #[serde(borrow, default, deserialize_with = "text")]
    pub status: Cow<'a, str>,
    #[serde(borrow, default)]
    pub input: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "text")]
    pub output: Cow<'a, str>,
    #[serde(borrow, default, deserialize_with = "text")]
    pub error: Cow<'a, str>,
    #[serde(borrow, default, deserialize_with = "text")]
    pub title: Cow<'a, str>,
    #[serde(borrow, default)]
    pub metadata: Option<&'a RawValue>,
    #[serde(default)]
    pub time: Times,
}

/// Timestamps in milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct Times {
    #[serde(default)]
    pub created: Option<i64>,
    #[serde(default)]
    pub completed: Option<i64>,
    #[serde(default)]
    pub start: Option<i64>,
    #[serde(default)]
    pub end: Option<i64>,
}
