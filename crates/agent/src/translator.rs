//! The translation of an agent's events into messages for clients.

use std::time::Duration;

use bytes::Bytes;
use proto::socket::{OpenQuestion, QuestionKind, ServerMessage};

use crate::{History, PendingRequest, SecretFinder};

/// The output of a translator: messages and effects.
#[derive(Debug, Default)]
pub struct Output {
    /// The messages to broadcast to all clients, in this order.
    pub messages: Vec<ServerMessage>,
    /// The effects to perform after the messages are stored.
    pub effects: Vec<Effect>,
}

/// An effect that the caller has to perform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The agent waits for an answer to this question.
    Ask(OpenQuestion),
    /// Reject a request that clients cannot display; otherwise the agent would wait for its answer forever.
    Reject { request: String, kind: QuestionKind },
    /// The agent does not wait for this answer any more.
    Settled { request: String },
    /// The turn seems to be over, but its last message is not. If the turn has not ended after this time, fetch the
    /// history and call [`Translator::reconcile`].
    Settle { after: Duration },
    /// The agent's session has this title: ours, or one that its model has made.
    Title(String),
    /// The agent did not finish this message. Keep its content and mark it as interrupted.
    Interrupted { message: String },
}

/// The translator of one agent session: a state machine without a clock, network access or storage. All times are in
/// milliseconds since the Unix epoch.
///
/// It guarantees, whatever the agent sends: a message is announced before anything refers to it, and ends once; a tool
/// call ends at most once; a turn ends once, after its last message, with `turn_complete`. Its memory is bounded.
pub trait Translator: Send + Sync {
    /// Sets the secrets of which no part may be left where a text is cut from now on.
    fn set_secrets(&mut self, secrets: SecretFinder);

    /// Begins the turn of this prompt. Call this before the prompt is sent.
    fn begin(&mut self, prompt: &str);

    /// Processes events of the stream, and appends the result to `out`. Events that it does not understand are ignored.
    fn observe(&mut self, events: &[Bytes], now: i64, out: &mut Output);

    /// Whether a turn is active.
    fn is_busy(&self) -> bool;

    /// Whether the agent failed the turn before it produced anything. Sending such a prompt again would not help.
    fn has_refused(&self) -> bool;

    /// Ends the active turn for a reason that the agent cannot report: it is gone, or it never started.
    fn give_up(&mut self, reason: &str, now: i64) -> Output;

    /// Ends the active turn with the outcome so far.
    fn close(&mut self, now: i64) -> Output;

    /// Ends the active turn as cancelled. Call it once the agent has been aborted and is idle.
    fn cancel(&mut self, now: i64) -> Output;

    /// Call this when the event stream is broken. Then subscribe again, fetch the history and call
    /// [`Translator::reconcile`] before the first event of the new stream.
    fn stream_lost(&mut self);

    /// Restores state from a message that a translator before this one emitted, after [`Translator::begin`]. All
    /// messages since the prompt are needed, in order. Call [`Translator::stream_lost`] afterwards.
    fn recall(&mut self, message: &ServerMessage);

    /// Emits what was missed of the active turn, and ends the turn if the agent is no longer working on it. A turn on
    /// which the agent was never seen working is not ended, because it may be about to start.
    fn reconcile(&mut self, history: &History, now: i64) -> Output;

    /// Whether the agent has the prompt, but is idle and has no answer to it, so that the prompt has to be sent again.
    fn is_abandoned(&self, history: &History) -> bool;

    /// Emits the requests of a history ([`History::requests`]) that were missed.
    fn pending(&mut self, requests: &[PendingRequest]) -> Output;
}
