//! Integration with OpenCode: parsing its events and translating them for clients, calling its API, and
//! preparing its files. No other crate knows its formats.
//!
//! Everything that comes from it is untrusted: it runs in a sandbox together with arbitrary code.
//!
//! A hub uses it like this:
//! 1. [`OpenCode`] defines what to write into the sandbox and what to start. [`api::Client`] connects to
//!    it; [`api::Client::wait_until_ready`] waits for it.
//! 2. Subscribe with [`api::Client::events`] first, then create the session and its
//!    [`translate::Translator`].
//! 3. For each prompt: generate and store its id (`agent::prompt_id`), call [`translate::Translator::begin`], and send
//!    it with [`api::Client::prompt`]. If the response is lost, send it again with the same id.
//! 4. Parse each item of [`api::Events::next`] with [`event::Event::parse`] (skip what it rejects) and pass
//!    it to [`translate::Translator::observe`]. Log the resulting messages, then broadcast them to clients,
//!    then perform the effects. The turn has ended when the messages contain a `turn_complete`.
//! 5. When the stream breaks, falls silent or skips an event: call [`translate::Translator::stream_lost`],
//!    subscribe again, fetch [`api::Client::history`], call [`translate::Translator::reconcile`], and only
//!    then process the new stream. A new process starts with [`translate::Translator::resume`] from the
//!    logged messages of the turn and continues in the same way.

mod agent_type;
pub mod api;
pub mod event;
pub mod files;
pub mod history;
pub mod sse;
pub mod translate;

pub use agent_type::OpenCode;
