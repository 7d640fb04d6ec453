//! OpenCode from outside: how its events are read and told to clients, how it is asked for things, and what it
//! is given to start with. Nothing else in the workspace knows its words.
//!
//! Everything that comes from it is hostile: it runs in a sandbox beside the code that it was told to run.

pub mod api;
pub mod event;
pub mod files;
pub mod history;
pub mod ids;
pub mod sse;
pub mod translate;
