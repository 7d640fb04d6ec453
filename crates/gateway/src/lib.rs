//! The gateway: clients connect to it, and agents act through one gate that records everything.
//!
//! The modules are listed in the order in which data flows through them. [`Gateway::start`]
//! assembles the parts.

// Settings and secrets.
pub mod config;
pub mod keyring;
// Requests of clients.
pub mod access;
pub mod edge;
pub mod identity;
// Actions of agents, and their approvals.
mod actions;
mod connectors;
mod databases;
// Automations, and their runs.
pub mod automations;
// Messages to people: changes, and notifications of what waits for them.
mod changes;
mod notifications;
// Sessions: what can be done with them, and the live ones.
mod admission;
pub mod hub;
pub mod sessions;
// Sandboxes and agents.
pub mod runtime;
// The tools behind the gate, the only entry point for side effects.
mod git;
mod outbound;
mod sources;
// The agents' model.
pub mod llm;
// Stored secrets.
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
pub use sources::{
    ActionKeyError, ActionKeys, StoredAction, document as agent_tools_document, is_of_organization,
    known_tool, missing_lanes, stored_action,
};
