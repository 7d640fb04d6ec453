//! What the gateway requires of a coding agent, as traits. This crate knows no agent and no gateway, so that a second
//! agent is an implementation of these traits and nothing else.
//!
//! - [`AgentType`] is a kind of agent: the program and the files that it starts from, and the constructors of the rest.
//! - [`AgentClient`] calls a running agent: prompts, cancels, answers, and its history.
//! - [`EventStream`] returns the agent's events as it sent them, in batches.
//! - [`Translator`] turns these events, and the history after a gap, into messages for clients. It is separate from the
//!   stream because it outlives connections, and is rebuilt from the log after a restart.
//!
//! Everything that an agent sends is untrusted: it runs in a sandbox together with arbitrary code. Implementations bound
//! what they read and hold, and their errors contain nothing that the agent sent.

mod client;
mod connection;
mod error;
mod events;
mod history;
pub mod instructions;
mod kind;
mod prompt_id;
mod secret_finder;
mod setup;
mod tool;
mod translator;

pub use client::{AgentClient, AgentSession, AllowBytes, Prompt};
pub use connection::{ByteStream, Dial, Endpoint};
pub use error::AgentError;
pub use events::{EventBatch, EventStream, MAX_BATCH_BYTES, MAX_BATCH_EVENTS};
pub use history::{History, HistoryMessage, Page, PendingRequest};
pub use kind::AgentType;
pub use prompt_id::{prompt_id, random_part};
pub use secret_finder::SecretFinder;
pub use setup::{Browser, ChatModel, Entry, Launch, Program, Setup, TOOL_DIRECTORY, Urls};
pub use tool::Tool;
pub use translator::{Effect, Output, Translator};
