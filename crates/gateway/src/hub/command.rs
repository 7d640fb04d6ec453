//! Commands to a live session. The edge has already authorized the caller.

use proto::http::Presence;
use proto::socket::{MessageSource, ServerMessage, WireStatus};
use proto::{SessionId, UserId};
use sha2::{Digest as _, Sha256};
use store::{NewEvent, OpenTranscript};
use tokio::sync::oneshot;

use super::frame::FrameText;
use crate::admission::Refusal;
use crate::runtime::RunningSandbox;

/// A request to the session's actor.
pub(crate) enum Command {
    /// A watcher connects. This wakes a sleeping session, unless the watcher is passive.
    Join {
        passive: bool,
        user: Option<UserId>,
        reply: oneshot::Sender<JoinReply>,
    },
    /// A watcher disconnects.
    Leave {
        user: Option<UserId>,
    },
    /// Returns the users who are watching.
    Presence {
        reply: oneshot::Sender<Presence>,
    },
    /// Returns the complete conversation as an `init` frame for one watcher.
    History {
        reply: oneshot::Sender<Option<(FrameText, i64)>>,
    },
    /// Queues a prompt. Boxed because every session's inbox reserves space for the largest command.
    Prompt {
        prompt: Box<PromptRequest>,
        reply: oneshot::Sender<PromptOutcome>,
    },
    /// Answers a question of the agent.
    Answer {
        answer: Box<Answer>,
        reply: oneshot::Sender<AnswerOutcome>,
    },
    /// Cancels the running turn, or every queued prompt when no turn is running.
    Cancel,
    /// Boots the agent, and sends the initial prompt if it has not been sent yet.
    Wake,
    /// Returns the session's running sandbox, or the reason why there is none.
    Sandbox {
        reply: oneshot::Sender<Result<RunningSandbox, String>>,
    },
    /// Broadcasts a message about something that happened outside the agent.
    Broadcast(Box<ServerMessage>),
    State {
        reply: oneshot::Sender<(WireStatus, String)>,
    },
    /// Marks the session as in use, which postpones its idle timeout.
    Touch {
        reply: oneshot::Sender<()>,
    },
    /// Writes the counters that are not in the database yet.
    Flush {
        reply: oneshot::Sender<()>,
    },
    /// Returns the messages that the agent has not finished, as they are.
    OpenTranscript {
        reply: oneshot::Sender<OpenTranscript>,
    },
    /// Stops the session until the next prompt. The session saves its files first, unless `discard` is set. If saving
    /// fails, the session keeps running and the reply says why.
    Stop {
        discard: bool,
        reply: oneshot::Sender<Result<(), String>>,
    },
    /// Stops the session and deletes it with all its data.
    Delete {
        /// The ledger event of the deletion.
        event: Box<NewEvent>,
        reply: oneshot::Sender<()>,
    },
    /// A person has chosen this title, which is stored.
    SetTitle(String),
    /// Uses this model from the next prompt on.
    SetModel {
        model: String,
        reply: oneshot::Sender<Result<(), Refusal>>,
    },
    /// Asks the session to leave memory if it is idle, because too many sessions are live.
    Evict,
    /// The model gateway refuses further requests, for this reason: the session has used up its budget.
    OverBudget(String),
}

/// A prompt as received from a client.
pub(crate) struct PromptRequest {
    pub(crate) content: String,
    pub(crate) images: Vec<String>,
    pub(crate) sender: Option<String>,
    pub(crate) source: Option<MessageSource>,
    /// A hash of the client's idempotency key: a prompt with the same value is a duplicate.
    pub(crate) once: Option<u64>,
}

impl PromptRequest {
    /// Drops images that are not base64 data URIs of images, because the agent cannot use them.
    pub(crate) fn new(
        content: String,
        mut images: Vec<String>,
        sender: Option<String>,
        source: Option<MessageSource>,
    ) -> Self {
        images
            .retain(|image| image.strip_prefix("data:image/").is_some_and(|rest| rest.contains(";base64,")));
        images.truncate(MAX_IMAGES);
        Self { content, images, sender, source, once: None }
    }

    /// The size of the text and the images in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        (self.content.len() + self.images.iter().map(String::len).sum::<usize>()) as u64
    }

    /// Makes the prompt idempotent: prompts with the same session, key and text count as one.
    pub(crate) fn once(self, session: SessionId, key: &str) -> Self {
        let parts = [session.to_string().as_bytes(), key.as_bytes(), self.content.as_bytes()].join(&0);
        let digest = Sha256::digest(parts);
        let once = digest.first_chunk().copied().map(u64::from_be_bytes);
        Self { once, ..self }
    }
}

/// The maximum number of images in one prompt.
const MAX_IMAGES: usize = 20;

/// The state that a new watcher starts with.
pub(crate) struct JoinReply {
    /// The conversation as an `init` frame, and the sequence number of the last frame it contains. `None` if the store
    /// did not answer.
    pub(crate) init: Option<(FrameText, i64)>,
    pub(crate) status: WireStatus,
    pub(crate) message: String,
}

/// The outcome of a prompt.
pub(crate) enum PromptOutcome {
    /// The prompt is stored under this id and becomes a turn.
    Queued { id: String },
    /// The queue is full.
    Full,
    /// The session cannot be woken for the prompt, so the prompt is not stored.
    Refused(Refusal),
}

/// An answer to a question of the agent, as received from a client.
pub(crate) struct Answer {
    pub(crate) question_id: String,
    /// The chosen labels or a text, for each part of the question.
    pub(crate) answers: Vec<Vec<String>>,
    /// The user or service that answers.
    pub(crate) by: String,
}

/// The outcome of an answer.
pub(crate) enum AnswerOutcome {
    /// The answer is stored, and the agent gets it. Also for the same answer again.
    Accepted,
    /// The session has no such question.
    Unknown,
    /// Somebody else was faster, or the question was rejected.
    Settled,
    /// The answer does not fit the question.
    Invalid(String),
    /// The agent is gone, and the session cannot be woken for the answer. The question stays open.
    Refused(Refusal),
}
