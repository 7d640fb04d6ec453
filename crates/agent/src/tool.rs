//! A tool of the platform, as a type of agent gets it to make a file of it.

use serde_json::Value;

/// A tool that the agent can call.
#[derive(Clone, Debug)]
pub struct Tool {
    /// The name that the model uses: letters, digits and `_`.
    pub name: &'static str,
    /// Sent with every call, so that the gateway recognizes a file from an earlier start.
    pub version: u32,
    /// The description for the model.
    pub description: &'static str,
    /// The JSON Schema of the arguments.
    pub schema: Value,
    /// For a tool that runs inside the sandbox, the JavaScript of a function that gets valid arguments and returns the
    /// answer. The gateway executes all others.
    pub execute: Option<&'static str>,
}
