//! Reads chunks and responses of the Chat Completions API.

use serde::Deserialize;

use super::{Report, Tokens};

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    choices: Vec<Choice>,
    #[serde(default)]
    usage: Option<ReportedUsage>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Choice {
    delta: Option<Delta>,
    finish_reason: Option<String>,
}

/// The next fragment of an answer. Providers have two names for thoughts.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Delta {
    content: Option<String>,
    reasoning_content: Option<String>,
    reasoning: Option<String>,
    refusal: Option<String>,
    tool_calls: Option<Vec<ToolCall>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ToolCall {
    function: Option<Function>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Function {
    name: Option<String>,
    arguments: Option<String>,
}

/// The discount for cached input differs between providers, so cached tokens count as input.
#[derive(Deserialize)]
struct ReportedUsage {
    #[serde(rename = "prompt_tokens")]
    input: Option<i64>,
    #[serde(rename = "completion_tokens")]
    output: Option<i64>,
    #[serde(rename = "total_tokens")]
    total: Option<i64>,
}

pub(super) fn read(json: &[u8]) -> Option<Report> {
    if json.trim_ascii() == b"[DONE]" {
        return Some(Report { ends: true, ..Report::default() });
    }
    let chunk: Chunk = serde_json::from_slice(json).ok()?;
    let ends = chunk.choices.iter().any(|choice| choice.finish_reason.is_some());
    let shown = chunk.choices.iter().filter_map(|choice| choice.delta.as_ref()).map(Delta::bytes).sum();
    let settles = chunk.usage.as_ref().is_some_and(|usage| usage.output.is_some());
    let tokens = chunk.usage.map(Tokens::from).unwrap_or_default();
    Some(Report { model: chunk.model, tokens, shown, settles, ends })
}

impl Delta {
    fn bytes(&self) -> usize {
        let texts = [&self.content, &self.reasoning_content, &self.reasoning, &self.refusal];
        let calls = self.tool_calls.iter().flatten().filter_map(|call| call.function.as_ref());
        let calls = calls.flat_map(|function| [&function.name, &function.arguments]);
        texts.into_iter().chain(calls).flatten().map(String::len).sum()
    }
}

impl From<ReportedUsage> for Tokens {
    fn from(usage: ReportedUsage) -> Self {
        // Some providers count thoughts only in the total.
        let beyond_input = usage.total.zip(usage.input).map(|(total, input)| total.saturating_sub(input));
        let output = usage.output.map(|output| output.max(beyond_input.unwrap_or_default()));
        Self { input: usage.input, output, ..Self::default() }
    }
}
