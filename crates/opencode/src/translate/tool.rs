//! A tool call: started once, perhaps announced again with its arguments, then its progress, then ended once.

use agent::SecretFinder;
use proto::socket::{ServerMessage, ToolStatus};
use serde_json::Value;

use super::emitted::EmittedText;
use super::truncate;
use crate::event::{Part, ToolState};

const MAX_ARGS: usize = 256 * 1024;
const MAX_RESULT: usize = 256 * 1024;
const MAX_METADATA: usize = 16 * 1024;
const MAX_TITLE: usize = 1024;
/// A command repeats its complete output with every piece; clients do not need each update.
const METADATA_INTERVAL_MS: i64 = 250;

/// The result of a call that was never ended.
const CALL_INTERRUPTED: &str = "The tool call was interrupted.";

#[derive(Debug)]
pub(super) struct ToolCall {
    pub(super) call: String,
    /// The most recent name: it changes for a tool that does not exist.
    pub(super) name: String,
    pub(super) has_args: bool,
    pub(super) ended: bool,
    started: Option<i64>,
    /// The metadata that was last emitted, and when.
    emitted_metadata: EmittedText,
    emitted_metadata_at: i64,
}

impl ToolCall {
    pub(super) fn new(call: &str, name: &str) -> Self {
        Self {
            call: call.to_owned(),
            name: name.to_owned(),
            has_args: false,
            ended: false,
            started: None,
            emitted_metadata: EmittedText::EMPTY,
            emitted_metadata_at: i64::MIN,
        }
    }

    /// Emits what is new in this part. `fresh`: the call itself is new.
    pub(super) fn update(
        &mut self,
        part: &Part<'_>,
        fresh: bool,
        secrets: &SecretFinder,
        now: i64,
        out: &mut Vec<ServerMessage>,
    ) {
        if self.ended {
            return;
        }
        part.tool.as_ref().clone_into(&mut self.name);
        self.started = self.started.or(part.state.time.start);
        self.start(part, fresh, secrets, out);
        let ends = matches!(&*part.state.status, "completed" | "error");
        if ends || now >= self.emitted_metadata_at.saturating_add(METADATA_INTERVAL_MS) {
            self.report(&part.state, (ends, now), secrets, out);
        }
        if ends {
            let ToolState { output, error, time, .. } = &part.state;
            let result = if output.is_empty() { error } else { output };
            let end = time.end.unwrap_or(now);
            let failed = part.state.status == "error";
            out.push(self.end(&part.id, truncate::text(result, MAX_RESULT, secrets), end, failed));
        }
    }

    /// Ends a call for which no more events will arrive.
    pub(super) fn interrupt(&mut self, part: &str, now: i64) -> Option<ServerMessage> {
        (!self.ended).then(|| self.end(part, CALL_INTERRUPTED.to_owned(), now, true))
    }

    fn start(&mut self, part: &Part<'_>, fresh: bool, secrets: &SecretFinder, out: &mut Vec<ServerMessage>) {
        if self.has_args {
            return;
        }
        let args = part.state.input.map(|raw| truncate::object(raw.get(), MAX_ARGS, secrets));
        let args = args.unwrap_or_default();
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

    fn report(
        &mut self,
        state: &ToolState<'_>,
        (ends, now): (bool, i64),
        secrets: &SecretFinder,
        out: &mut Vec<ServerMessage>,
    ) {
        let raw = state.metadata.map_or("", |raw| raw.get());
        let mut hash = EmittedText::from_text(&state.title);
        hash.extend(raw);
        if hash == self.emitted_metadata {
            return;
        }
        let mut metadata = truncate::object(raw, MAX_METADATA, secrets);
        // The output is sent as the result at the end of the call.
        if ends || metadata.get("output").is_some_and(|output| output == "") {
            metadata.remove("output");
        }
        let title = (!state.title.is_empty()).then(|| truncate::line(&state.title, MAX_TITLE, secrets));
        if title.is_none() && metadata.is_empty() {
            return;
        }
        (self.emitted_metadata, self.emitted_metadata_at) = (hash, now);
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
