//! OpenCode from outside: how its events are read and told to clients, how it is asked for things, and what it
//! is given to start with. Nothing else in the workspace knows its words.
//!
//! Everything that comes from it is hostile: it runs in a sandbox beside the code that it was told to run.
//!
//! A hub uses it like this:
//! 1. [`files::Setup`] says what to write into the sandbox and what to start; [`api::Client`] reaches it, and
//!    [`api::Client::wait_until_ready`] tells when.
//! 2. [`api::Client::events`] comes first, then the session and its [`translate::Translator`].
//! 3. For each prompt: [`ids::PromptIds`] are made and kept, [`translate::Translator::begin`] is called,
//!    [`api::Client::prompt`] sends it. When the reply is lost, it is sent again with the same ids.
//! 4. Each piece of data from [`api::Events::next`] is read by [`event::Event::parse`] (what it refuses is left out)
//!    and given to [`translate::Translator::observe`]: the messages go to the log and then to clients, the effects are
//!    done. The turn is over when a `turn_complete` is among the messages.
//! 5. When the stream breaks, falls silent or skips an event: [`translate::Translator::stream_lost`], subscribe again,
//!    [`api::Client::history`], [`translate::Translator::reconcile`], and only then the new stream's events. A new
//!    process begins with [`translate::Translator::resume`] over what the log has of the turn, and does the same.

pub mod api;
pub mod event;
pub mod files;
pub mod history;
pub mod ids;
pub mod sse;
pub mod translate;
