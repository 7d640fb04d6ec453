//! The model itself: finds the rule and step for a request and produces the answer.

use std::time::Duration;

use serde_json::json;

use crate::chat;
use crate::faults::Faults;
use crate::message::{Block, Chunking, Message};
use crate::protocol::Protocol;
use crate::reply::{Frame, Reply};
use crate::request::{Purpose, Request, derive_id};
use crate::script::{Failure, Script, Step};
use crate::template;

/// Maximum size of a request body, as in the real API.
pub const MAX_BODY: usize = 32 * 1024 * 1024;
/// The header in which OpenCode sends its session id: the value for [`Call::conversation`].
pub const CONVERSATION_HEADER: &str = "x-session-id";
/// The models that `GET /v1/models` lists. Any other name is accepted too.
pub const MODELS: [&str; 3] = ["claude-opus-4-6", "claude-opus-4-5", "claude-sonnet-4-5"];

/// A scripted model. Share it in an `Arc`, because it counts the faults it has produced.
#[derive(Debug)]
pub struct Model {
    script: Script,
    faults: Faults,
}

/// One HTTP request to the model.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    pub method: &'a str,
    /// The query string, if any, is ignored.
    pub path: &'a str,
    /// Distinguishes conversations with the same content; empty if unknown.
    pub conversation: &'a str,
    pub body: &'a [u8],
}

impl Model {
    pub fn new(script: Script) -> Self {
        Self { script, faults: Faults::default() }
    }

    /// Answers any request; an invalid one gets an error in the format of the API.
    pub fn answer(&self, call: &Call<'_>) -> Reply {
        let path = call.path.split('?').next().unwrap_or_default();
        let protocol = Protocol::of(path);
        if call.body.len() > MAX_BODY {
            return protocol.error(413, "Request exceeds the maximum size");
        }
        match (call.method, path) {
            ("POST", "/v1/messages" | "/v1/chat/completions") => self.converse(protocol, call),
            ("POST", "/v1/messages/count_tokens") => count_tokens(call),
            ("GET", "/v1/models") => list_models(),
            (_, "/v1/messages" | "/v1/chat/completions" | "/v1/messages/count_tokens" | "/v1/models") => {
                protocol.error(405, "Method Not Allowed")
            }
            _ => protocol.error(404, "Not found"),
        }
    }

    fn converse(&self, protocol: Protocol, call: &Call<'_>) -> Reply {
        let request = match protocol.parse(call.body, call.conversation) {
            Ok(request) => request,
            Err(problem) => return protocol.error(400, &problem),
        };
        let mut reply = match self.find(&request) {
            Some(step) => self.run_step(step, &request, protocol),
            None => {
                protocol.error(400, "the script has no rule for this prompt: add a last rule without `when`")
            }
        };
        reply.headers.push(("request-id", derive_id("req", &request.fingerprint, 0)));
        reply
    }

    fn find(&self, request: &Request) -> Option<Step> {
        let prompt = normalize_words(&request.prompt);
        let system = normalize_words(&request.system);
        let rule = self.script.rules.iter().find(|rule| rule.matches(&prompt, &system))?;
        let beyond = || rule.steps.iter().rfind(|step| step.ends_turn());
        let step = rule.steps.get(request.step).or_else(beyond).cloned();
        Some(step.unwrap_or_else(Step::closing))
    }

    fn run_step(&self, step: Step, request: &Request, protocol: Protocol) -> Reply {
        let should_fail =
            |fault: &str, times| self.faults.should_fail(format!("{fault}/{}", request.fingerprint), times);
        if let Some(failure) = &step.error
            && should_fail("error", failure.times)
        {
            return fail(failure, step.delay(), protocol);
        }
        let cut_after = step.drop_after.filter(|_| should_fail("drop", step.drop_times));
        let (delay, chunking) = (step.delay(), Chunking { chunk: step.chunk, delay: step.delta_delay() });
        let message = compose(step, request);
        let mut reply = protocol.write(&message, request, chunking);
        if let Some(events) = cut_after {
            reply.frames.truncate(if request.stream { events } else { 0 });
            reply.frames.push(Frame::Cut);
        }
        Reply { delay, ..reply }
    }
}

/// Lower case with single spaces, and one at each end, so that the phrase `" ls "` matches only the whole
/// word.
fn normalize_words(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    format!(" {} ", words.join(" ").to_lowercase())
}

fn compose(step: Step, request: &Request) -> Message {
    let fill = |template: String| template::fill(&template, &request.prompt, &request.tool_result);
    let mut blocks = Vec::new();
    if let Some(words) = step.thinking {
        blocks.push(Block::Thinking {
            words: fill(words),
            signature: derive_id("sig", &request.fingerprint, 0),
        });
    }
    blocks.extend(step.text.map(fill).map(Block::Text));
    let default_reason = if step.tools.is_empty() { "end_turn" } else { "tool_use" };
    blocks.extend(step.tools.into_iter().enumerate().map(|(at, tool)| Block::Tool {
        id: derive_id("toolu", &request.fingerprint, at),
        name: tool.name,
        input: template::fill_input(tool.input, &request.prompt),
    }));
    Message {
        id: derive_id("msg", &request.fingerprint, 0),
        model: request.model.clone(),
        blocks,
        stop_reason: step.stop_reason.map_or(default_reason, |reason| reason.as_str()),
        input_tokens: request.input_tokens,
    }
}

fn fail(failure: &Failure, delay: Duration, protocol: Protocol) -> Reply {
    let mut reply = protocol.error(failure.status, &failure.message);
    if let Some(wait) = failure.retry_after_ms {
        reply.headers.push(("retry-after-ms", wait.to_string()));
        reply.headers.push(("retry-after", wait.div_ceil(1_000).to_string()));
    }
    Reply { delay, ..reply }
}

fn count_tokens(call: &Call<'_>) -> Reply {
    match Request::parse(call.body, call.conversation, Purpose::Count) {
        Ok(request) => Reply::json(200, &json!({ "input_tokens": request.input_tokens })),
        Err(problem) => Protocol::Messages.error(400, &problem),
    }
}

/// Both APIs list their models at the same path, with fields that do not conflict.
fn list_models() -> Reply {
    let data = MODELS.map(|id| {
        json!({ "type": "model", "id": id, "display_name": id, "created_at": "2026-01-01T00:00:00Z",
            "object": "model", "created": chat::CREATED, "owned_by": "proliferate" })
    });
    let (first, last) = (MODELS.first(), MODELS.last());
    let body =
        json!({ "data": data, "has_more": false, "first_id": first, "last_id": last, "object": "list" });
    Reply::json(200, &body)
}

#[cfg(test)]
mod tests;
