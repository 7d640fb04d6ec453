//! What can be asked of a live session. Who asks has been checked at the edge.

use axum::extract::ws::Utf8Bytes;
use proto::http::Presence;
use proto::socket::{MessageSource, ServerMessage, WireStatus};
use proto::{SessionId, UserId};
use sha2::{Digest as _, Sha256};
use tokio::sync::oneshot;

use crate::llm::NoPrice;
use crate::runtime::Held;

/// A request to the session's actor.
pub(crate) enum Command {
    /// Somebody watches. A session that sleeps wakes up, unless it is only looked at.
    Join {
        passive: bool,
        user: Option<UserId>,
        reply: oneshot::Sender<Joined>,
    },
    /// Somebody watches no longer.
    Leave {
        user: Option<UserId>,
    },
    /// Who watches.
    Presence {
        reply: oneshot::Sender<Presence>,
    },
    /// The whole conversation, for one.
    History {
        reply: oneshot::Sender<Option<(Utf8Bytes, i64)>>,
    },
    /// Boxed, since every session holds room for commands.
    Prompt {
        prompt: Box<Asked>,
        reply: oneshot::Sender<Prompted>,
    },
    /// Ends the turn that runs, or everything that waits where none does.
    Cancel,
    /// Boots, and sends the initial prompt if it is due.
    Wake,
    /// The session's running sandbox, or why there is none.
    Inside {
        reply: oneshot::Sender<Result<Held, String>>,
    },
    /// Tells everyone what was done beside the agent.
    Say(Box<ServerMessage>),
    State {
        reply: oneshot::Sender<(WireStatus, String)>,
    },
    /// Somebody still uses it.
    Touch {
        reply: oneshot::Sender<()>,
    },
    /// Writes down what is counted and not written yet.
    Flush {
        reply: oneshot::Sender<()>,
    },
    /// Ends the session until somebody prompts it again. Its files are saved first, unless they are to be discarded; where
    /// that fails the session goes on, and the reply says why.
    Stop {
        discard: bool,
        reply: oneshot::Sender<Result<(), String>>,
    },
    /// Ends the session and removes it, with all that is known of it.
    Delete {
        by: String,
        reply: oneshot::Sender<()>,
    },
    Titled(String),
    /// Others need the room: to be left if nobody needs this session.
    Rest,
    /// The model refuses, for this reason: the session has spent what it may.
    OverBudget(String),
}

/// A prompt as it came in.
pub(crate) struct Asked {
    pub(crate) content: String,
    pub(crate) images: Vec<String>,
    pub(crate) sender: Option<String>,
    pub(crate) source: Option<MessageSource>,
    /// Stands for a key of the client's: the same one again is the same prompt.
    pub(crate) once: Option<u64>,
}

impl Asked {
    /// Images that are no data URIs of images are left out: the agent could do nothing with them.
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

    /// How large it is.
    pub(crate) fn bytes(&self) -> u64 {
        (self.content.len() + self.images.iter().map(String::len).sum::<usize>()) as u64
    }

    /// The same prompt, however often it comes with this key for this session.
    pub(crate) fn once(self, session: SessionId, key: &str) -> Self {
        let parts = [session.to_string().as_bytes(), key.as_bytes(), self.content.as_bytes()].join(&0);
        let digest = Sha256::digest(parts);
        let once = digest.first_chunk().copied().map(u64::from_be_bytes);
        Self { once, ..self }
    }
}

/// The most images of one prompt.
const MAX_IMAGES: usize = 20;

/// What a new watcher starts with.
pub(crate) struct Joined {
    /// The conversation, and the number of the last frame that it contains; nothing when the store did not answer.
    pub(crate) init: Option<(Utf8Bytes, i64)>,
    pub(crate) status: WireStatus,
    pub(crate) message: String,
}

/// What became of a prompt.
pub(crate) enum Prompted {
    /// It is kept under this id, and will be a turn.
    Queued { id: String },
    /// So many wait already.
    Full,
    /// The session cannot be woken for it, so it is not kept.
    Refused(Refusal),
}

/// Why a session that sleeps cannot be woken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("{limit} sessions run already, which is the organization's limit")]
    Sessions { limit: i64 },
    #[error("{0}")]
    Budget(String),
    #[error(transparent)]
    NoPrice(NoPrice),
}
