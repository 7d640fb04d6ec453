//! A scripted model that speaks Anthropic's Messages API, so that an agent can work with no account and no
//! network, and so that a test knows every word the model will say.
//!
//! It is a pure engine: bytes of a request go in, a [`Reply`] comes out, and whoever serves it decides on
//! sockets and timers. What it says is read from a small TOML [`Script`]; `default.toml` beside this file is
//! the one to copy from.
//!
//! The answer depends on the request alone, never on how often it was asked: a client that retries gets the
//! same words and the same tool ids. The one exception is a fault that the script asks for a number of times.

mod answer;
mod faults;
mod message;
mod reply;
mod request;
mod script;
mod template;

pub use answer::{CONVERSATION_HEADER, Call, MAX_BODY, MODELS, Model};
pub use reply::{Frame, Reply};
pub use script::{Script, ScriptError};
