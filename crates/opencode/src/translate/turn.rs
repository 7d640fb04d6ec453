//! The state of the active turn: its steps, their open parts, and its outcome so far.

use std::collections::HashMap;

use proto::socket::TurnOutcome;

use super::emitted::EmittedText;
use super::tool::ToolCall;

/// Maximum number of steps per turn that are remembered; beyond it, the oldest finished ones are forgotten.
const MAX_STEPS: usize = 1024;
/// Maximum number of open parts per turn. A well-behaved agent has a handful.
const MAX_PARTS: usize = 1024;
/// Limits for texts of messages whose author is not known yet.
const MAX_PENDING_TEXTS: usize = 16;
const MAX_PENDING_TEXT_BYTES: usize = 64 * 1024;

#[derive(Debug, Default)]
pub(super) struct Turn {
    /// The prompt that the turn answers, if known.
    pub(super) user: Option<String>,
    /// The agent's messages, in order.
    pub(super) steps: Vec<Step>,
    pub(super) parts: HashMap<String, Part>,
    pub(super) pending: Vec<PendingText>,
    /// Whether the agent was seen working on the turn. Before that, an idle status means that the turn has
    /// not started, not that it has ended.
    pub(super) active: bool,
    pub(super) idles: u32,
    pub(super) verdict: Verdict,
    /// The last reported error, so that a repeated report is not sent again.
    pub(super) last_error: String,
    pub(super) retrying: bool,
    /// Whether the message that output was omitted has been sent.
    pub(super) omission_reported: bool,
}

/// The outcome so far; a later variant overrides an earlier one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verdict {
    #[default]
    Ok,
    Failed,
    Cancelled,
    /// The turn was cancelled, and the message that says so was sent.
    CancelReported,
}

impl From<Verdict> for TurnOutcome {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Ok => Self::Ok,
            Verdict::Failed => Self::Error,
            Verdict::Cancelled | Verdict::CancelReported => Self::Cancelled,
        }
    }
}

/// One message of the agent.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) id: String,
    /// Set when the agent reports the message as complete. Its parts may still follow: OpenCode serializes an
    /// event when it is read, so even the first event about a message can show its end.
    pub(super) end: Option<End>,
    /// Whether the message that completes it has been sent.
    pub(super) done: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Complete,
    Cancelled,
}

#[derive(Debug)]
pub(super) struct Part {
    pub(super) message: String,
    pub(super) kind: Kind,
}

#[derive(Debug)]
pub(super) enum Kind {
    /// Reasoning and notes, which are not sent to clients.
    Silent,
    Text(Text),
    Tool(ToolCall),
}

#[derive(Debug)]
pub(super) struct Text {
    pub(super) emitted: EmittedText,
    pub(super) ended: bool,
    /// Pieces may have been missed, so the next piece must not be appended to the emitted text. The missing
    /// part is emitted when the complete text arrives.
    pub(super) has_gap: bool,
}

/// A text that arrived before the author of its message was known.
#[derive(Debug)]
pub(super) struct PendingText {
    pub(super) message: String,
    pub(super) part: String,
    pub(super) text: String,
    pub(super) ended: bool,
}

impl Turn {
    pub(super) fn judge(&mut self, verdict: Verdict) {
        self.verdict = self.verdict.max(verdict);
    }

    /// Whether the agent has neither answered anything nor failed.
    pub(super) fn is_blank(&self) -> bool {
        self.steps.is_empty() && self.verdict == Verdict::Ok
    }

    pub(super) fn step(&self, id: &str) -> Option<&Step> {
        self.steps.iter().rev().find(|step| step.id == id)
    }

    pub(super) fn step_mut(&mut self, id: &str) -> Option<&mut Step> {
        self.steps.iter_mut().rev().find(|step| step.id == id)
    }

    /// Whether this message is the current one, as it nearly always is.
    pub(super) fn is_current(&self, message: &str) -> bool {
        self.steps.last().is_some_and(|step| !step.done && step.id == message)
    }

    /// Adds a step. Returns the id of a step that was forgotten for it, or an error at the limit.
    pub(super) fn add_step(&mut self, id: &str) -> Result<Option<String>, LimitReached> {
        let mut forgotten = None;
        if self.steps.len() >= MAX_STEPS {
            let done = self.steps.iter().position(|step| step.done).ok_or(LimitReached)?;
            forgotten = Some(self.steps.remove(done).id);
        }
        self.steps.push(Step { id: id.to_owned(), end: None, done: false });
        Ok(forgotten)
    }

    /// The part with this id, created by `make` if it is new, and whether it is new.
    pub(super) fn part(
        &mut self,
        id: &str,
        message: &str,
        make: impl FnOnce() -> Kind,
    ) -> Result<(&mut Part, bool), LimitReached> {
        let fresh = !self.parts.contains_key(id);
        if fresh {
            if self.parts.len() >= MAX_PARTS {
                return Err(LimitReached);
            }
            self.parts.insert(id.to_owned(), Part { message: message.to_owned(), kind: make() });
        }
        self.parts.get_mut(id).map(|part| (part, fresh)).ok_or(LimitReached)
    }

    /// The text of this part, if the next piece can be appended to what was emitted.
    pub(super) fn open_text(&mut self, part: &str, message: &str) -> Option<&mut Text> {
        let known = self.parts.get_mut(part).filter(|known| known.message == message)?;
        match &mut known.kind {
            Kind::Text(text) if !text.has_gap && !text.ended => Some(text),
            Kind::Text(_) | Kind::Silent | Kind::Tool(_) => None,
        }
    }

    /// Finishes a step: only its running calls are kept. Returns the ids of the other parts.
    pub(super) fn finish_step(&mut self, id: &str) -> Vec<String> {
        if let Some(step) = self.step_mut(id) {
            step.done = true;
        }
        let over = |part: &Part| part.message == id && !matches!(&part.kind, Kind::Tool(call) if !call.ended);
        self.parts.extract_if(|_, part| over(part)).map(|(id, _)| id).collect()
    }

    /// Drops the oldest text at the limit; a text that is too long is not stored.
    pub(super) fn store_pending(&mut self, pending: PendingText) {
        if pending.text.len() > MAX_PENDING_TEXT_BYTES {
            return;
        }
        self.pending.retain(|other| other.part != pending.part);
        if self.pending.len() >= MAX_PENDING_TEXTS {
            self.pending.remove(0);
        }
        self.pending.push(pending);
    }

    /// Removes and returns the texts of this message.
    pub(super) fn take_pending(&mut self, message: &str) -> Vec<PendingText> {
        let all = std::mem::take(&mut self.pending);
        let (found, kept) = all.into_iter().partition(|pending| pending.message == message);
        self.pending = kept;
        found
    }
}

impl Text {
    pub(super) const fn new(has_gap: bool) -> Self {
        Self { emitted: EmittedText::EMPTY, ended: false, has_gap }
    }
}

/// The limit of steps or parts is reached.
#[derive(Debug)]
pub(super) struct LimitReached;
