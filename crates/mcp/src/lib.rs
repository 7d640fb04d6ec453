//! The Model Context Protocol, on the official SDK: what an organization's connectors offer and answer, and answers to the
//! clients of our own actions.
//!
//! Every operation opens its own connection, so that no state of a server outlives it. Everything that comes from a
//! server is untrusted: bytes, time, definitions and results are bounded here, and no hint of a server can loosen a
//! decision.

mod auth;
mod client;
mod definition;
mod http;
mod listing;
mod problem;
mod result;
pub mod server;

pub use auth::{Auth, AuthError, ClientCredentials, check_header_name, check_header_value};
pub use client::{Call, CallOutcome, Limits, Reach, call_tool, list_tools};
pub use definition::{Definition, DefinitionError, MAX_DEFINITION, MAX_DESCRIPTION, MAX_NAME, MAX_NODES};
pub use listing::{Listing, MAX_LISTING, MAX_LISTING_NODES, MAX_TOOLS};
pub use problem::{Diagnosis, Problem};
pub use result::ToolResult;
