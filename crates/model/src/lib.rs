//! A scripted model with Anthropic's Messages API and OpenAI's Chat Completions API, so that an agent can run
//! without an account or network access, and tests know exactly what the model answers.
//!
//! It is a pure engine: the bytes of a request go in, a [`Reply`] comes out, and the caller handles sockets
//! and timers. The answers come from a TOML [`Script`]; `default.toml` next to this file is a good starting
//! point.
//!
//! The answer depends only on the request, not on how often it is sent: a retry gets the same text and the
//! same tool ids. The only exception is a fault that the script limits to a number of times.

mod answer;
mod chat;
mod faults;
mod message;
mod protocol;
mod reply;
mod request;
mod script;
mod template;

pub use answer::{CONVERSATION_HEADER, Call, MAX_BODY, MODELS, Model};
pub use reply::{Frame, Reply};
pub use script::{Script, ScriptError};
