//! What can be executed behind the gate: the platform's own tools, exports, and HTTP tools from a file. A source does
//! its work only with a [`Permit`].

mod export;
mod http_tool;
mod platform;
mod save_service_commands;
mod save_snapshot;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use policy::{Policy, Risk, Write, full_name};
use proto::JsonObject;
use serde_json::{Value, json};

use crate::app::AppState;
use crate::gate::{Call, Permit};

pub(crate) use export::NAME as EXPORT;
pub(crate) use platform::{PLATFORM_TOOLS, offered};

/// One thing that can be executed.
pub(crate) trait Tool: Send + Sync {
    fn risk(&self) -> Risk;

    /// Whether executing it twice does what executing it once does. Only then is a call whose instance died in the
    /// middle executed again.
    fn replay_safe(&self) -> bool;

    fn timeout(&self) -> Duration;

    /// What it does beyond its own case, by the names that lanes prohibit or permit.
    fn flags(&self) -> &[&'static str] {
        &[]
    }

    /// The table that it writes to, where writing is what it does.
    fn writes(&self) -> Option<&Write> {
        None
    }

    /// What is wrong with the parameters: each field and limit, in words for whoever sent them.
    fn check(&self, parameters: &Value) -> Result<(), String>;

    fn execute<'a>(
        &'a self,
        app: &'a AppState,
        permit: &'a Permit,
        call: &'a Call,
    ) -> BoxFuture<'a, Result<Output, Failure>>;
}

/// What a tool gave: a text for an agent, and data for programs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Output {
    pub(crate) text: String,
    pub(crate) data: Option<JsonObject>,
}

impl Output {
    /// What is kept of it as an artifact.
    pub(crate) fn content(&self) -> Value {
        match &self.data {
            None => json!({"result": self.text}),
            Some(data) => json!({"result": self.text, "data": data}),
        }
    }
}

/// Why a tool gave nothing. The words reach the caller and the ledger, so they hold nobody's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// It was asked and says no.
    Refused(String),
    /// The parameters are of the right form and make no sense.
    Invalid(String),
    Timeout,
    /// Something that it needs is not there now.
    Down(String),
}

/// The tool of this name and operation, if there is one.
pub(crate) fn find(policy: &Policy, name: &str, operation: &str) -> Option<Arc<dyn Tool>> {
    if let Some(tool) = platform::find(name) {
        return Some(Arc::new(tool));
    }
    // A tool is known by the names that policy decides about, and by no other: `transcription.run` is asked for as such,
    // or as `transcription` and `run`.
    let whole = full_name(name, operation);
    if [name, &whole].contains(&EXPORT) {
        return Some(Arc::new(export::Export));
    }
    let tool = policy.tool(&whole).or_else(|| policy.tool(name))?;
    Some(Arc::new(http_tool::HttpSource::new(tool.clone())))
}
