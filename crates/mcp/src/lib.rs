//! The Model Context Protocol, on the official SDK: what an organization's connectors offer and answer.
//!
//! Everything that comes from a server is untrusted: its definitions, its hints and its results are bounded here, and
//! nothing of them is believed that would loosen a decision.

mod definition;
mod result;

pub use definition::{Definition, DefinitionError, MAX_DEFINITION, MAX_DESCRIPTION, MAX_NAME};
pub use result::{ToolResult, read_result};
