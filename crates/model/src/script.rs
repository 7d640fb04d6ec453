//! The script file: its format, and the error messages for invalid scripts.

use std::time::Duration;

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use toml::Spanned;

/// Larger scripts are rejected before parsing.
const MAX_SCRIPT: usize = 1024 * 1024;
/// Maximum length of `text` or `thinking` of a step.
const MAX_TEXT: usize = 64 * 1024;
/// Maximum delay of a step; every client has given up by then.
const MAX_DELAY_MS: u64 = 60_000;
/// The error statuses that a script may use: those that clients handle differently.
const ERROR_STATUSES: [u16; 5] = [400, 401, 429, 500, 529];

/// The text for a turn whose rule has no step left that could end it.
pub(crate) const CLOSING_TEXT: &str = "Done.";

/// A validated script: rules, which are tried in order.
#[derive(Debug, Clone)]
pub struct Script {
    pub(crate) rules: Vec<Rule>,
}

/// Why a script was rejected, with advice for its author.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ScriptError {
    #[error("the script has {0} bytes, more than the limit of {MAX_SCRIPT}: split it")]
    TooLong(usize),
    #[error("{0}")]
    Toml(String),
    #[error("the script has no rule: add `[[rule]]` and, below it, `[[rule.step]]` with a `text`")]
    Empty,
    #[error("line {line}, rule {rule}: {problem}")]
    Rule { line: usize, rule: usize, problem: String },
    #[error("line {line}, rule {rule}, step {step}: {problem}")]
    Step { line: usize, rule: usize, step: usize, problem: String },
}

impl Script {
    /// Parses and validates a script.
    pub fn parse(text: &str) -> Result<Self, ScriptError> {
        if text.len() > MAX_SCRIPT {
            return Err(ScriptError::TooLong(text.len()));
        }
        let file: File =
            toml::from_str(text).map_err(|e| ScriptError::Toml(e.to_string().trim().to_owned()))?;
        check(text, &file.rule)?;
        Ok(Self { rules: file.rule.into_iter().map(Spanned::into_inner).collect() })
    }

    /// The script of the built-in model: a demonstration that uses OpenCode's own tools.
    ///
    /// # Panics
    /// Never in a build whose tests pass: the text is compiled in, and a test parses it.
    #[expect(clippy::panic, reason = "the text is a constant, and a test parses it")]
    pub fn built_in() -> Self {
        match Self::parse(include_str!("default.toml")) {
            Ok(script) => script,
            Err(error) => panic!("the built-in script is invalid: {error}"),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    rule: Vec<Spanned<Rule>>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rule {
    /// Phrases to search for in the last user text; one match is enough. Lower case.
    #[serde(default, deserialize_with = "phrases")]
    when: Option<Vec<String>>,
    /// Phrases to search for in the system prompt. Lower case.
    #[serde(default, deserialize_with = "phrases")]
    system: Option<Vec<String>>,
    #[serde(default, rename = "step")]
    pub(crate) steps: Vec<Step>,
}

impl Rule {
    /// Both texts must be in lower case.
    pub(crate) fn matches(&self, prompt: &str, system: &str) -> bool {
        let any = |phrases: &Option<Vec<String>>, text: &str| {
            phrases.as_ref().is_none_or(|phrases| phrases.iter().any(|phrase| text.contains(phrase)))
        };
        any(&self.when, prompt) && any(&self.system, system)
    }

    fn matches_everything(&self) -> bool {
        self.when.is_none() && self.system.is_none()
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Step {
    pub(crate) thinking: Option<String>,
    pub(crate) text: Option<String>,
    #[serde(default, rename = "tool")]
    pub(crate) tools: Vec<Tool>,
    pub(crate) error: Option<Failure>,
    /// Break the connection after this many events of the stream …
    pub(crate) drop_after: Option<usize>,
    /// How often to break the connection; without it, always.
    pub(crate) drop_times: Option<u32>,
    #[serde(default)]
    delay_ms: u64,
    #[serde(default)]
    delta_delay_ms: u64,
    /// The number of characters per delta.
    #[serde(default = "default_chunk")]
    pub(crate) chunk: usize,
    pub(crate) stop_reason: Option<StopReason>,
}

impl Step {
    pub(crate) fn closing() -> Self {
        Self { text: Some(CLOSING_TEXT.to_owned()), chunk: default_chunk(), ..Self::default() }
    }

    pub(crate) fn delay(&self) -> Duration {
        Duration::from_millis(self.delay_ms)
    }

    pub(crate) fn delta_delay(&self) -> Duration {
        Duration::from_millis(self.delta_delay_ms)
    }

    /// Whether the step ends a turn: it has text and calls no tool.
    pub(crate) fn ends_turn(&self) -> bool {
        self.tools.is_empty() && self.has_content()
    }

    pub(crate) fn has_content(&self) -> bool {
        self.text.is_some() || self.thinking.is_some() || !self.tools.is_empty()
    }
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tool {
    pub(crate) name: String,
    #[serde(default = "no_input", deserialize_with = "json_table")]
    pub(crate) input: Value,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Failure {
    pub(crate) status: u16,
    pub(crate) message: String,
    pub(crate) retry_after_ms: Option<u64>,
    /// Fail this many times, then continue with the step; without it, always fail.
    pub(crate) times: Option<u32>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StopReason {
    EndTurn,
    MaxTokens,
    StopSequence,
    ToolUse,
    PauseTurn,
    Refusal,
}

impl StopReason {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::EndTurn => "end_turn",
            Self::MaxTokens => "max_tokens",
            Self::StopSequence => "stop_sequence",
            Self::ToolUse => "tool_use",
            Self::PauseTurn => "pause_turn",
            Self::Refusal => "refusal",
        }
    }
}

fn default_chunk() -> usize {
    24
}

fn no_input() -> Value {
    Value::Object(Map::new())
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a phrase or a list of phrases")]
enum Phrases {
    One(String),
    Many(Vec<String>),
}

fn phrases<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Vec<String>>, D::Error> {
    let list = match Phrases::deserialize(input)? {
        Phrases::One(phrase) => vec![phrase],
        Phrases::Many(list) => list,
    };
    Ok(Some(list.iter().map(|phrase| phrase.to_lowercase()).collect()))
}

fn json_table<'de, D: Deserializer<'de>>(input: D) -> Result<Value, D::Error> {
    Ok(to_json(toml::Value::Table(toml::Table::deserialize(input)?)))
}

/// TOML dates become text, because JSON has no dates.
fn to_json(value: toml::Value) -> Value {
    match value {
        toml::Value::String(text) => Value::String(text),
        toml::Value::Integer(number) => number.into(),
        toml::Value::Float(number) => number.into(),
        toml::Value::Boolean(flag) => Value::Bool(flag),
        toml::Value::Datetime(date) => Value::String(date.to_string()),
        toml::Value::Array(items) => items.into_iter().map(to_json).collect(),
        toml::Value::Table(table) => {
            Value::Object(table.into_iter().map(|(key, item)| (key, to_json(item))).collect::<Map<_, _>>())
        }
    }
}

fn check(text: &str, rules: &[Spanned<Rule>]) -> Result<(), ScriptError> {
    if rules.is_empty() {
        return Err(ScriptError::Empty);
    }
    let mut catch_all_rule = None;
    for (number, spanned) in (1..).zip(rules) {
        let line = line_of(text, spanned.span().start);
        let rule = spanned.as_ref();
        let refuse = |problem: String| ScriptError::Rule { line, rule: number, problem };
        if let Some(earlier) = catch_all_rule {
            return Err(refuse(format!(
                "it is never reached, because rule {earlier} has no `when` and matches every prompt: move that one to the end"
            )));
        }
        check_rule(rule).map_err(refuse)?;
        for (step, content) in (1..).zip(&rule.steps) {
            check_step(content).map_err(|problem| ScriptError::Step { line, rule: number, step, problem })?;
        }
        if rule.matches_everything() {
            catch_all_rule = Some(number);
        }
    }
    Ok(())
}

fn check_rule(rule: &Rule) -> Result<(), String> {
    for phrases in [&rule.when, &rule.system].into_iter().flatten() {
        if phrases.is_empty() || phrases.iter().any(String::is_empty) {
            return Err(
                "an empty phrase: write what to search for, or remove the key to match everything".to_owned()
            );
        }
    }
    if rule.steps.is_empty() {
        return Err("it has no steps: add `[[rule.step]]` with a `text`, a `tool` or an `error`".to_owned());
    }
    Ok(())
}

fn check_step(step: &Step) -> Result<(), String> {
    let fails_for_ever = step.error.as_ref().is_some_and(|error| error.times.is_none());
    if !step.has_content() && !fails_for_ever {
        return Err(
            "it has no content: add `text`, `thinking` or `tool` (or an `error` without `times`)".to_owned()
        );
    }
    if [&step.text, &step.thinking].into_iter().flatten().any(|words| words.trim().is_empty()) {
        return Err("its `text` or `thinking` is empty: write something, or remove the key".to_owned());
    }
    if step.has_content() && fails_for_ever {
        return Err(
            "its content is never sent, because the error has no `times`: add `times` or remove the content"
                .to_owned(),
        );
    }
    if [&step.text, &step.thinking].into_iter().flatten().any(|words| words.len() > MAX_TEXT) {
        return Err(format!("its `text` or `thinking` is over {MAX_TEXT} bytes: make it shorter"));
    }
    if step.tools.iter().any(|tool| tool.name.trim().is_empty()) {
        return Err("a tool without a name: use one that the agent offers, such as \"bash\"".to_owned());
    }
    if step.chunk == 0 {
        return Err("`chunk` is 0, so no text would ever be sent: use 1 or more, or remove it".to_owned());
    }
    if step.delay_ms.max(step.delta_delay_ms) > MAX_DELAY_MS {
        return Err(format!("a delay is over {MAX_DELAY_MS} ms: make it shorter"));
    }
    if step.drop_times.is_some() && step.drop_after.is_none() {
        return Err("`drop_times` without `drop_after`: add the number of events after which to disconnect"
            .to_owned());
    }
    if step.drop_times == Some(0) || step.error.as_ref().is_some_and(|error| error.times == Some(0)) {
        return Err("a fault that happens 0 times: remove it, or use 1 or more".to_owned());
    }
    match &step.error {
        Some(error) if !ERROR_STATUSES.contains(&error.status) => {
            Err(format!("error status {} is not one of {ERROR_STATUSES:?}: use one of those", error.status))
        }
        _ => Ok(()),
    }
}

/// The line number of an offset, starting at 1.
fn line_of(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests;
