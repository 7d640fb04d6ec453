//! What is known of the turn that runs: its steps, their open parts, and how it has gone so far.

use std::collections::HashMap;

use proto::socket::TurnOutcome;

use super::said::Said;
use super::tool::ToolCall;

/// Steps of one turn that are kept; of more, the oldest finished ones are forgotten.
const MAX_STEPS: usize = 1024;
/// Parts of one turn that are open at the same time. An honest agent has a handful.
const MAX_PARTS: usize = 1024;
/// Texts of messages whose speaker is not known yet.
const MAX_PARKED: usize = 16;
const MAX_PARKED_TEXT: usize = 64 * 1024;

#[derive(Debug, Default)]
pub(super) struct Turn {
    /// The message that it answers, where we know it.
    pub(super) user: Option<String>,
    /// The agent's messages, in order.
    pub(super) steps: Vec<Step>,
    pub(super) parts: HashMap<String, Part>,
    pub(super) parked: Vec<Parked>,
    /// The agent was seen at work on it: before that, an idle agent has not ended it but not begun.
    pub(super) active: bool,
    pub(super) idles: u32,
    pub(super) verdict: Verdict,
    /// The last error that was said, so that its second report is not said again.
    pub(super) last_error: String,
    pub(super) retrying: bool,
    /// Somebody was told that not all can be shown.
    pub(super) cut_told: bool,
}

/// How it will be said to have ended; what comes later in this list outweighs what comes before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verdict {
    #[default]
    Fine,
    Failed,
    Cancelled,
    /// Cancelled, and clients were told so.
    CancelTold,
}

impl From<Verdict> for TurnOutcome {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Fine => Self::Ok,
            Verdict::Failed => Self::Error,
            Verdict::Cancelled | Verdict::CancelTold => Self::Cancelled,
        }
    }
}

/// One message of the agent.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) id: String,
    /// The agent says that it is complete. Its parts may still be on their way: OpenCode writes an event down when it
    /// is read, so that even the first one about a message can show how the message ended.
    pub(super) end: Option<End>,
    /// Clients were told that it is complete.
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
    /// Thoughts and notes, whose pieces are not said.
    Silent,
    Text(Text),
    Tool(ToolCall),
}

#[derive(Debug)]
pub(super) struct Text {
    pub(super) said: Said,
    pub(super) ended: bool,
    /// Pieces of it may have been missed, so that the next one must not be joined to what was said. What is
    /// missing is said when the whole text comes.
    pub(super) torn: bool,
}

/// A text that came before it was known whose it is.
#[derive(Debug)]
pub(super) struct Parked {
    pub(super) message: String,
    pub(super) part: String,
    pub(super) text: String,
    pub(super) ended: bool,
}

impl Turn {
    pub(super) fn judge(&mut self, verdict: Verdict) {
        self.verdict = self.verdict.max(verdict);
    }

    pub(super) fn step(&self, id: &str) -> Option<&Step> {
        self.steps.iter().rev().find(|step| step.id == id)
    }

    pub(super) fn step_mut(&mut self, id: &str) -> Option<&mut Step> {
        self.steps.iter_mut().rev().find(|step| step.id == id)
    }

    /// Whether this message is the one that speaks now, as it nearly always is.
    pub(super) fn speaks(&self, message: &str) -> bool {
        self.steps.last().is_some_and(|step| !step.done && step.id == message)
    }

    /// Adds a step. Returns the id of one that had to be forgotten for it, or an error if there is no room.
    pub(super) fn add_step(&mut self, id: &str) -> Result<Option<String>, Full> {
        let mut forgotten = None;
        if self.steps.len() >= MAX_STEPS {
            let done = self.steps.iter().position(|step| step.done).ok_or(Full)?;
            forgotten = Some(self.steps.remove(done).id);
        }
        self.steps.push(Step { id: id.to_owned(), end: None, done: false });
        Ok(forgotten)
    }

    /// The part of this id, made by `make` if it is new; `true` with it then.
    pub(super) fn part(
        &mut self,
        id: &str,
        message: &str,
        make: impl FnOnce() -> Kind,
    ) -> Result<(&mut Part, bool), Full> {
        let fresh = !self.parts.contains_key(id);
        if fresh {
            if self.parts.len() >= MAX_PARTS {
                return Err(Full);
            }
            self.parts.insert(id.to_owned(), Part { message: message.to_owned(), kind: make() });
        }
        self.parts.get_mut(id).map(|part| (part, fresh)).ok_or(Full)
    }

    /// The text of this part, if its next piece follows what was said of it.
    pub(super) fn open_text(&mut self, part: &str, message: &str) -> Option<&mut Text> {
        let known = self.parts.get_mut(part).filter(|known| known.message == message)?;
        match &mut known.kind {
            Kind::Text(text) if !text.torn && !text.ended => Some(text),
            Kind::Text(_) | Kind::Silent | Kind::Tool(_) => None,
        }
    }

    /// Ends a step: of its parts only calls that still run are kept. Returns the ids of the others.
    pub(super) fn finish_step(&mut self, id: &str) -> Vec<String> {
        if let Some(step) = self.step_mut(id) {
            step.done = true;
        }
        let over = |part: &Part| part.message == id && !matches!(&part.kind, Kind::Tool(call) if !call.ended);
        self.parts.extract_if(|_, part| over(part)).map(|(id, _)| id).collect()
    }

    /// The oldest goes where there is no room; what is too long is not kept at all.
    pub(super) fn park(&mut self, parked: Parked) {
        if parked.text.len() > MAX_PARKED_TEXT {
            return;
        }
        self.parked.retain(|other| other.part != parked.part);
        if self.parked.len() >= MAX_PARKED {
            self.parked.remove(0);
        }
        self.parked.push(parked);
    }

    /// What was kept for this message.
    pub(super) fn unpark(&mut self, message: &str) -> Vec<Parked> {
        let all = std::mem::take(&mut self.parked);
        let (found, kept) = all.into_iter().partition(|parked| parked.message == message);
        self.parked = kept;
        found
    }
}

impl Text {
    pub(super) const fn new(torn: bool) -> Self {
        Self { said: Said::NOTHING, ended: false, torn }
    }
}

/// There is no room for more.
#[derive(Debug)]
pub(super) struct Full;
