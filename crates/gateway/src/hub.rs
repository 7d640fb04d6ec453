//! The live session: one actor owns its event stream, its agent and its prompt queue, and serves every
//! watcher.

mod approvals;
mod command;
mod eviction;
mod feed;
mod frame;
mod presence;
mod registry;
mod services;
mod session;
mod snapshot;
mod stored;
mod telemetry;
mod transcript;

pub(crate) use approvals::open_approval;
pub(crate) use command::{Answer, AnswerOutcome, JoinReply, PromptOutcome, PromptRequest};
pub(crate) use feed::{Batch, FeedRead, Listener};
pub(crate) use frame::{FrameText, to_one};
pub use registry::{Hub, HubError, Hubs};
pub(crate) use services::HubServices;
pub(crate) use session::first_sentence;
pub(crate) use stored::read_init;
