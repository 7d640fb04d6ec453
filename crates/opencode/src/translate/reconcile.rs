//! Recovery after missed events: a broken stream, a killed gateway, or a turn whose end was not reported.

use std::time::Duration;

use agent::{History, HistoryMessage};
use proto::socket::{MessageRole, ServerMessage, WireStatus};

use super::text;
use super::tool::ToolCall;
use super::turn::{Kind, Text, Turn, Verdict};
use super::{AGENT_STOPPED_MESSAGE, Effect, NO_ANSWER_MESSAGE, Output, Translator};
use crate::event::PartKind;
use crate::history::Entry;

impl Translator {
    /// Rebuilds a translator from the messages that were emitted since the prompt. It needs all messages of
    /// the turn, in order; others are ignored. Call [`Translator::reconcile`] next.
    pub fn resume<'a>(
        session: &str,
        prompt: &str,
        emitted: impl IntoIterator<Item = &'a ServerMessage>,
    ) -> Self {
        let mut translator = Self::new(session);
        translator.begin(prompt);
        for message in emitted {
            translator.recall(message);
        }
        translator.stream_lost();
        translator
    }

    /// Call this when the event stream is broken. Then subscribe again, fetch the history and call
    /// [`Translator::reconcile`] before the first event of the new stream.
    pub fn stream_lost(&mut self) {
        // Whether the agent still works on a turn of which nothing was seen, only its history shows.
        if let Some(turn) = self.turn.as_mut().filter(|turn| turn.is_blank()) {
            turn.active = false;
        }
        let parts = self.turn.iter_mut().flat_map(|turn| turn.parts.values_mut());
        for part in parts {
            if let Kind::Text(text) = &mut part.kind {
                text.has_gap = true;
            }
        }
    }

    /// Emits what was missed of the active turn, and ends the turn if the agent is no longer working on it.
    /// Only messages that may belong to the turn are parsed, one at a time.
    ///
    /// A turn on which the agent was never seen working is not ended, because it may be about to start. See
    /// [`Translator::is_abandoned`]. If this history is the first sign of work, the agent may have started
    /// after it reported that it was idle, so another one is requested.
    pub fn reconcile(&mut self, history: &History, now: i64) -> Output {
        let mut out = Output::default();
        let Some(turn) = &self.turn else { return out };
        let (prompt, seen_working) = (turn.user.clone(), turn.active);
        let is_prompt = |message: &HistoryMessage<'_>| prompt.as_deref() == Some(message.id);
        let last = history.messages().enumerate().filter(|(_, message)| is_prompt(message)).last();
        let first = last.map_or(usize::MAX, |(prompt, _)| prompt + 1);
        for (number, message) in history.messages().enumerate() {
            let known = self.turn.as_ref().is_some_and(|turn| turn.step(message.id).is_some());
            if (known || number >= first)
                && let Some(entry) = Entry::parse(&message)
            {
                self.catch_up(&entry, now, &mut out);
            }
        }
        let busy = history.busy;
        let Some(turn) = &mut self.turn else { return out };
        turn.active |= busy;
        if busy || !turn.active {
            return out;
        }
        if seen_working {
            report_missing_end(turn, &mut out);
            self.end_turn(now, &mut out);
        } else {
            out.effects.push(Effect::Settle { after: Duration::ZERO });
        }
        out
    }

    /// Whether the agent has the prompt, but is idle and has no answer to it. An agent that was restarted never
    /// answers such a prompt by itself, so it has to be sent again.
    pub fn is_abandoned(&self, history: &History) -> bool {
        let Some(turn) = self.turn.as_ref().filter(|turn| turn.is_blank() && !turn.active) else {
            return false;
        };
        let last = history.messages().last();
        !history.busy && turn.user.as_deref().is_some_and(|user| last.is_some_and(|last| last.id == user))
    }

    fn catch_up(&mut self, entry: &Entry<'_>, now: i64, out: &mut Output) {
        let is_answer = entry.info.role == "assistant";
        if is_answer && self.step(&entry.info.id, entry.info.time.created.unwrap_or(now), out) {
            let mut before = Vec::new();
            for part in entry.parts.iter().filter(|part| part.message == entry.info.id) {
                self.part(part, "", true, now, out);
                if let (PartKind::StepStart, Some(turn)) = (part.kind, &mut self.turn) {
                    text::discard_before_retry(turn, &part.message, Some(&before), out);
                }
                before.push(&*part.id);
            }
        }
        self.message(&entry.info, now, out);
    }

    /// Restores state from an emitted message, as an alternative to passing all messages to
    /// [`Translator::resume`]. Call [`Translator::stream_lost`] afterwards.
    pub fn recall(&mut self, message: &ServerMessage) {
        let Some(turn) = &mut self.turn else { return };
        match message {
            ServerMessage::Message(message) if message.role == MessageRole::Assistant => {
                turn.active = true;
                // The step limit was not reached when the message was emitted, so this cannot fail.
                let _ = turn.add_step(&message.id);
            }
            ServerMessage::Token { message_id, part_id, token } => {
                with_text(turn, message_id, part_id, |text| text.emitted.extend(token));
            }
            ServerMessage::TextPartComplete { message_id, part_id, .. } => {
                with_text(turn, message_id, part_id, |text| text.ended = true);
            }
            ServerMessage::ToolStart { message_id: Some(message), part_id, tool_call_id, tool, args } => {
                self.calls.insert(tool_call_id);
                let new = || Kind::Tool(ToolCall::new(tool_call_id, tool));
                if let Ok((part, _)) = turn.part(part_id, message, new)
                    && let Kind::Tool(call) = &mut part.kind
                {
                    call.has_args |= args.as_object().is_some_and(|args| !args.is_empty());
                }
            }
            ServerMessage::ToolEnd { part_id, .. } => {
                if let Some(Kind::Tool(call)) = turn.parts.get_mut(part_id).map(|part| &mut part.kind) {
                    call.ended = true;
                }
            }
            ServerMessage::MessageComplete { message_id } => self.finish_step(message_id),
            ServerMessage::MessageCancelled { message_id } => {
                turn.judge(Verdict::CancelReported);
                if let Some(id) = message_id {
                    self.finish_step(id);
                }
            }
            ServerMessage::Error { message } => turn.last_error.clone_from(message),
            ServerMessage::Status { status: WireStatus::Running, message } => {
                turn.retrying = !message.is_empty();
            }
            ServerMessage::TurnComplete { message_ids, .. } => {
                for id in message_ids {
                    self.finished.insert(id);
                }
                self.turn = None;
            }
            _ => {}
        }
    }
}

fn with_text(turn: &mut Turn, message: &str, part: &str, change: impl FnOnce(&mut Text)) {
    let new = || Kind::Text(Text::new(false));
    if let Ok((part, _)) = turn.part(part, message, new)
        && let Kind::Text(text) = &mut part.kind
    {
        change(text);
    }
}

/// A turn that ends here without the agent having reported an end has failed.
fn report_missing_end(turn: &mut Turn, out: &mut Output) {
    let last_is_done = turn.steps.last().map(|step| step.done || step.end.is_some());
    if turn.verdict > Verdict::Ok || last_is_done == Some(true) {
        return;
    }
    turn.judge(Verdict::Failed);
    let message = if last_is_done.is_none() { NO_ANSWER_MESSAGE } else { AGENT_STOPPED_MESSAGE };
    out.messages.push(ServerMessage::Error { message: message.to_owned() });
}
