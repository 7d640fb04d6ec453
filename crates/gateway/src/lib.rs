//! The gateway: clients in, agents and their effects behind one gate, everything recorded.
//!
//! Read in the order in which data flows through it. [`Gateway::start`] puts the parts together.

// What it is told, and what it keeps secret.
pub mod config;
pub mod keyring;
// Client in.
pub mod access;
pub mod edge;
pub mod identity;
// The live session.
pub mod hub;
// Where the agent runs.
pub mod runtime;
// The one door for side effects, and what is behind it.
mod git;
mod outbound;
mod sources;
// The agent's model.
pub mod llm;
// What must stay secret and is used by everything that acts.
pub mod vault;
// The process itself.
mod app;
mod boot;
mod data_dir;
pub mod lifecycle;
pub mod server;
pub mod shares;
mod sweep;
pub mod telemetry;

pub use app::{App, AppState};
pub use boot::{Gateway, StartError, open_store, url_of};
pub use data_dir::{DataDir, DataDirError};
pub use sources::known_tool;
