//! Tracks the prompts sent from this terminal: sent, running, answered. Other users may prompt the same session.

use std::collections::{HashSet, VecDeque};

use proto::socket::{Frame, Message, MessageRole, ServerMessage, TurnOutcome, WireStatus};

/// How a turn started from this terminal ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    With(TurnOutcome),
    /// Part of the stream was lost, including the end of the turn.
    Unseen,
    /// The session ended or failed before the turn of the prompt started.
    Never,
}

/// Whose turn is running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunningTurn {
    Nobody,
    Ours,
    Others,
}

/// A prompt sent from this terminal, and how to recognise it in the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Prompt {
    /// The prompt is identified by the message id that the gateway assigned.
    Id(String),
    /// The prompt is identified by its text: the gateway itself sends the first prompt of a session, so we do not
    /// know its id.
    Text(String),
}

pub(super) struct Turns {
    /// Prompts that were sent and whose turns have not started.
    waiting: VecDeque<Prompt>,
    running: RunningTurn,
    /// The ids of all prompts seen, so that an old prompt is not mistaken for a new one with the same text.
    known: HashSet<String>,
    /// The conversation so far has been received.
    ready: bool,
}

impl Turns {
    pub(super) fn new() -> Self {
        Self { waiting: VecDeque::new(), running: RunningTurn::Nobody, known: HashSet::new(), ready: false }
    }

    /// Registers a prompt that was sent from this terminal.
    pub(super) fn sent(&mut self, prompt: Prompt) {
        self.waiting.push_back(prompt);
    }

    /// Whether the running turn was started from this terminal.
    pub(super) fn is_ours(&self) -> bool {
        self.running == RunningTurn::Ours
    }

    pub(super) fn is_ready(&self) -> bool {
        self.ready
    }

    /// Whether there is a running or waiting turn that could be cancelled.
    pub(super) fn is_busy(&self) -> bool {
        self.running != RunningTurn::Nobody || !self.waiting.is_empty()
    }

    pub(super) fn are_idle(&self) -> bool {
        self.ready && !self.is_busy()
    }

    /// Processes one frame of the stream. Returns how a turn ended if it was started from this terminal.
    pub(super) fn observe(&mut self, frame: &Frame) -> Option<Ended> {
        match &frame.message {
            ServerMessage::Init { messages, .. } => self.all(messages),
            ServerMessage::Message(message) if message.role == MessageRole::User => {
                self.running = if self.begins(message) { RunningTurn::Ours } else { RunningTurn::Others };
                None
            }
            ServerMessage::TurnComplete { outcome, .. } => {
                let ours = std::mem::replace(&mut self.running, RunningTurn::Nobody) == RunningTurn::Ours;
                ours.then_some(Ended::With(*outcome))
            }
            ServerMessage::MessageCancelled { message_id: Some(id) } => {
                let before = self.waiting.len();
                self.waiting.retain(|prompt| *prompt != Prompt::Id(id.clone()));
                (self.waiting.len() < before).then_some(Ended::With(TurnOutcome::Cancelled))
            }
            // A cancellation without a message id cancels the waiting prompts only if no turn is running: otherwise it
            // cancels the running turn.
            ServerMessage::MessageCancelled { message_id: None } if self.running == RunningTurn::Nobody => {
                let waited = !std::mem::take(&mut self.waiting).is_empty();
                waited.then_some(Ended::With(TurnOutcome::Cancelled))
            }
            // Only a broadcast frame, which has a sequence number, is news; the status sent to a new watcher may be
            // older than its prompt.
            ServerMessage::Status { status: WireStatus::Error | WireStatus::Stopped, .. }
                if frame.seq.is_some() =>
            {
                let ours = !std::mem::take(&mut self.waiting).is_empty() || self.running == RunningTurn::Ours;
                self.running = RunningTurn::Nobody;
                ours.then_some(Ended::Never)
            }
            _ => None,
        }
    }

    /// Whether this message starts the turn of a prompt sent from this terminal.
    fn begins(&mut self, message: &Message) -> bool {
        let new = self.known.insert(message.id.clone());
        let meant = |prompt: &Prompt| match prompt {
            Prompt::Id(id) => *id == message.id,
            Prompt::Text(words) => *words == message.content,
        };
        let at = if new { self.waiting.iter().position(meant) } else { None };
        at.and_then(|at| self.waiting.remove(at)).is_some()
    }

    /// Processes a complete conversation: the first frame of a stream, or the snapshot after a gap.
    fn all(&mut self, messages: &[Message]) -> Option<Ended> {
        self.ready = true;
        let mut ours = self.running == RunningTurn::Ours;
        for message in messages.iter().filter(|message| message.role == MessageRole::User) {
            ours |= self.begins(message);
        }
        let goes_on = messages.last().is_some_and(|last| match last.role {
            // A prompt of another user without an answer may have been cancelled long ago.
            MessageRole::User => ours,
            MessageRole::Assistant => !last.is_complete && !last.interrupted,
        });
        self.running = match (goes_on, ours) {
            (false, _) => RunningTurn::Nobody,
            (true, true) => RunningTurn::Ours,
            (true, false) => RunningTurn::Others,
        };
        (ours && !goes_on).then_some(Ended::Unseen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(id: &str, role: MessageRole, content: &str, is_complete: bool) -> Message {
        Message {
            id: id.to_owned(),
            role,
            content: content.to_owned(),
            is_complete,
            created_at: 0,
            sender_id: None,
            source: None,
            tool_calls: Vec::new(),
            parts: Vec::new(),
            interrupted: false,
            error: None,
        }
    }

    fn user(id: &str, content: &str) -> Frame {
        Frame::broadcast(ServerMessage::Message(said(id, MessageRole::User, content, true)), 1)
    }

    fn init(messages: Vec<Message>) -> Frame {
        Frame::to_one(ServerMessage::Init {
            messages,
            earlier: 0,
            config: None,
            questions: Vec::new(),
            approvals: Vec::new(),
        })
    }

    fn end(outcome: TurnOutcome) -> Frame {
        Frame::broadcast(ServerMessage::TurnComplete { message_ids: Vec::new(), outcome }, 2)
    }

    fn ready(messages: Vec<Message>) -> Turns {
        let mut turns = Turns::new();
        assert!(!turns.are_idle(), "nothing is known yet");
        assert_eq!(turns.observe(&init(messages)), None);
        turns
    }

    #[test]
    fn only_the_end_of_our_own_turn_counts() {
        let mut turns = ready(vec![]);
        turns.sent(Prompt::Id("b".to_owned()));
        // Another user may send a prompt with the same text.
        assert_eq!(turns.observe(&user("a", "ours")), None);
        assert!(!turns.is_ours());
        assert_eq!(turns.observe(&end(TurnOutcome::Error)), None);
        assert!(!turns.are_idle());
        assert_eq!(turns.observe(&user("b", "ours")), None);
        assert_eq!(turns.observe(&end(TurnOutcome::Ok)), Some(Ended::With(TurnOutcome::Ok)));
        assert!(turns.are_idle());
    }

    #[test]
    fn a_turn_that_runs_when_we_attach_is_awaited() {
        let mut turns = ready(vec![said("a", MessageRole::Assistant, "so f", false)]);
        assert!(turns.is_busy());
        assert_eq!(turns.observe(&end(TurnOutcome::Ok)), None);
        assert!(turns.are_idle());
        assert!(ready(vec![said("a", MessageRole::User, "never answered", true)]).are_idle());
    }

    #[test]
    fn after_a_gap_our_turn_is_found_again_or_reported_as_missed() {
        let (old, answer) =
            (said("1", MessageRole::User, "hi", true), said("2", MessageRole::Assistant, "yo", true));
        let ours = said("3", MessageRole::User, "hi", true);
        let waits = || {
            let mut turns = ready(vec![old.clone(), answer.clone()]);
            turns.sent(Prompt::Text("hi".to_owned()));
            turns
        };
        let mut turns = waits();
        assert_eq!(turns.observe(&init(vec![old.clone(), answer.clone()])), None, "the old one is not ours");
        assert!(turns.is_busy());
        let mut turns = waits();
        assert_eq!(turns.observe(&init(vec![old.clone(), answer.clone(), ours.clone()])), None);
        assert_eq!(turns.observe(&end(TurnOutcome::Ok)), Some(Ended::With(TurnOutcome::Ok)));
        let mut turns = waits();
        let done = said("4", MessageRole::Assistant, "yo", true);
        assert_eq!(turns.observe(&init(vec![old, answer, ours, done])), Some(Ended::Unseen));
    }

    #[test]
    fn a_prompt_whose_turn_never_starts_is_not_awaited() {
        let stopped = ServerMessage::Status { status: WireStatus::Stopped, message: String::new() };
        let mut turns = ready(vec![]);
        turns.sent(Prompt::Id("a".to_owned()));
        assert_eq!(turns.observe(&Frame::to_one(stopped.clone())), None, "said before the prompt was sent");
        assert_eq!(turns.observe(&Frame::broadcast(stopped, 3)), Some(Ended::Never));
        assert!(turns.are_idle());
        turns.sent(Prompt::Id("b".to_owned()));
        let cancelled = Frame::broadcast(ServerMessage::MessageCancelled { message_id: None }, 4);
        assert_eq!(turns.observe(&cancelled), Some(Ended::With(TurnOutcome::Cancelled)));
    }
}
