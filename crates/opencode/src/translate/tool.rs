//! A tool call: begun once, perhaps again with its arguments, then what it reports, then ended once.

use proto::socket::{ServerMessage, ToolStatus};
use serde_json::Value;

use super::bound;
use super::said::Said;
use crate::event::{Part, ToolState};

const MAX_ARGS: usize = 256 * 1024;
const MAX_RESULT: usize = 256 * 1024;
const MAX_METADATA: usize = 16 * 1024;
const MAX_TITLE: usize = 1024;
/// A command that prints sends all its output again with every piece; watchers need not have each.
const METADATA_PAUSE_MS: i64 = 250;

/// What is said of a call that nobody ended.
const INTERRUPTED: &str = "The tool call was interrupted.";

#[derive(Debug)]
pub(super) struct ToolCall {
    pub(super) call: String,
    /// The latest name: for a tool that does not exist it changes.
    pub(super) name: String,
    pub(super) has_args: bool,
    pub(super) ended: bool,
    started: Option<i64>,
    /// What was last said of its metadata, and when.
    shown: Said,
    shown_at: i64,
}

impl ToolCall {
    pub(super) fn new(call: &str, name: &str) -> Self {
        Self {
            call: call.to_owned(),
            name: name.to_owned(),
            has_args: false,
            ended: false,
            started: None,
            shown: Said::NOTHING,
            shown_at: i64::MIN,
        }
    }

    /// Tells what is new in this part. `fresh`: the call itself is.
    pub(super) fn update(&mut self, part: &Part<'_>, fresh: bool, now: i64, out: &mut Vec<ServerMessage>) {
        if self.ended {
            return;
        }
        part.tool.as_ref().clone_into(&mut self.name);
        self.started = self.started.or(part.state.time.start);
        self.start(part, fresh, out);
        let ends = matches!(&*part.state.status, "completed" | "error");
        if ends || now >= self.shown_at.saturating_add(METADATA_PAUSE_MS) {
            self.report(&part.state, ends, now, out);
        }
        if ends {
            let ToolState { output, error, time, .. } = &part.state;
            let result = if output.is_empty() { error } else { output };
            let end = time.end.unwrap_or(now);
            let failed = part.state.status == "error";
            out.push(self.end(&part.id, bound::text(result, MAX_RESULT), end, failed));
        }
    }

    /// Ends a call of which nothing more will be heard.
    pub(super) fn interrupt(&mut self, part: &str, now: i64) -> Option<ServerMessage> {
        (!self.ended).then(|| self.end(part, INTERRUPTED.to_owned(), now, true))
    }

    fn start(&mut self, part: &Part<'_>, fresh: bool, out: &mut Vec<ServerMessage>) {
        if self.has_args {
            return;
        }
        let args = part.state.input.map(|raw| bound::object(raw.get(), MAX_ARGS)).unwrap_or_default();
        self.has_args = !args.is_empty();
        if fresh || self.has_args {
            out.push(ServerMessage::ToolStart {
                message_id: Some(part.message.clone().into_owned()),
                part_id: part.id.clone().into_owned(),
                tool_call_id: self.call.clone(),
                tool: self.name.clone(),
                args: Value::Object(args),
            });
        }
    }

    fn report(&mut self, state: &ToolState<'_>, ends: bool, now: i64, out: &mut Vec<ServerMessage>) {
        let raw = state.metadata.map_or("", |raw| raw.get());
        let mut print = Said::of(&state.title);
        print.extend(raw);
        if print == self.shown {
            return;
        }
        let mut metadata = bound::object(raw, MAX_METADATA);
        // The end of a call brings its output as the result.
        if ends || metadata.get("output").is_some_and(|output| output == "") {
            metadata.remove("output");
        }
        let title = (!state.title.is_empty()).then(|| bound::line(&state.title, MAX_TITLE));
        if title.is_none() && metadata.is_empty() {
            return;
        }
        (self.shown, self.shown_at) = (print, now);
        out.push(ServerMessage::ToolMetadata {
            tool_call_id: self.call.clone(),
            tool: self.name.clone(),
            title,
            metadata: (!metadata.is_empty()).then_some(metadata),
        });
    }

    fn end(&mut self, part: &str, result: String, end: i64, failed: bool) -> ServerMessage {
        self.ended = true;
        let duration = self.started.map_or(0, |start| end.saturating_sub(start));
        ServerMessage::ToolEnd {
            part_id: part.to_owned(),
            tool_call_id: self.call.clone(),
            tool: self.name.clone(),
            result,
            duration_ms: u64::try_from(duration).unwrap_or_default(),
            status: failed.then_some(ToolStatus::Error),
        }
    }
}
