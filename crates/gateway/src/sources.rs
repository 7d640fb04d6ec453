//! What can be executed behind the gate: the platform's own tools, pushes and pull requests, exports, and HTTP tools from
//! a file. What is done outside of our database is done only with a [`Permit`].

mod credential;
mod export;
mod git;
mod http_tool;
mod platform;
mod problems;
mod save_service_commands;
mod save_snapshot;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use policy::{ModeKey, Policy, Risk, Write, full_name};
use proto::JsonObject;
use serde_json::{Value, json};
use store::Effect;

use crate::app::AppState;
use crate::gate::{Call, Permit};

pub(crate) use export::NAME as EXPORT;
pub(crate) use platform::{PLATFORM_TOOLS, offered};

/// One thing that can be executed.
pub(crate) trait Tool: Send + Sync {
    fn risk(&self) -> Risk;

    fn timeout(&self) -> Duration;

    /// What it does beyond its own case, by the names that lanes prohibit or permit.
    fn flags(&self) -> &[&'static str] {
        &[]
    }

    /// The table that it writes to, where writing is what it does.
    fn writes(&self) -> Option<&Write> {
        None
    }

    /// The key of its mode, where the modes of the organisation govern it as well as the lanes.
    fn mode_key(&self) -> Option<ModeKey> {
        None
    }

    /// The refs of a repository that a call would change.
    fn refs(&self, _parameters: &Value) -> Vec<String> {
        Vec::new()
    }

    /// What is wrong with the parameters: each field and limit, in words for whoever sent them.
    fn check(&self, parameters: &Value) -> Result<(), String>;

    fn work(&self) -> Work<'_>;
}

/// How a tool does what it does.
pub(crate) enum Work<'a> {
    Within(&'a dyn Within),
    Outside(&'a dyn Outside),
}

impl Work<'_> {
    /// Whether a call that was left behind may be executed again. One within is never left behind.
    pub(crate) fn replay_safe(&self) -> bool {
        matches!(self, Self::Outside(outside) if outside.replay_safe())
    }
}

/// A tool whose whole effect is a change of our own database. Its claim, its effect and its outcome are one
/// transaction, so none of them is ever there alone.
pub(crate) trait Within: Send + Sync {
    /// What it would give and change. Changes nothing itself.
    fn prepare<'a>(
        &'a self,
        app: &'a AppState,
        call: &'a Call,
    ) -> BoxFuture<'a, Result<(Output, Effect), Failure>>;
}

/// A tool whose effect is where no transaction of ours reaches: claimed before, told of after.
pub(crate) trait Outside: Send + Sync {
    /// Whether executing it twice does what executing it once does. Only then is a call whose instance died in the
    /// middle executed again.
    fn replay_safe(&self) -> bool;

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
    /// It was asked and says no, or was asked and nobody knows: asking again by itself does not help, or does it twice.
    Refused(String),
    /// The parameters are of the right form and make no sense.
    Invalid(String),
    /// It did not answer in time. Nothing has happened, or what happens twice happens once.
    Timeout,
    /// It did not answer in time, and may have done it.
    Late,
    /// Something that it needs is not there now, and nothing has happened.
    Down(String),
    /// One of the others, with data for programs.
    Described(Box<Self>, JsonObject),
}

/// The tool of this name and operation, if there is one.
pub(crate) fn find(policy: &Policy, name: &str, operation: &str) -> Option<Arc<dyn Tool>> {
    // A tool is known by the name that policy decides about, and by no other: `transcription.run` is asked for as such, or
    // as `transcription` and `run`.
    let whole = full_name(name, operation);
    if let Some(tool) = platform::find(&whole) {
        return Some(Arc::new(tool));
    }
    if let Some(tool) = git::find(&whole) {
        return Some(tool);
    }
    if whole == EXPORT {
        return Some(Arc::new(export::Export));
    }
    Some(Arc::new(http_tool::HttpSource::new(policy.tool(&whole)?.clone())))
}
