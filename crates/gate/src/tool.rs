//! What can be executed behind the gate, and where it is found. Each tool holds what it needs; the gate knows only this.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use policy::{ModeKey, Policy, Risk, Write};
use proto::{JsonObject, OrgId};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use store::Effect;

use crate::{CallRequest, Permit};

/// The tool whose calls are recorded as exports.
pub const EXPORT: &str = "export.bundle";

/// Where tools are found.
pub trait Sources: Send + Sync {
    /// The tool that callers of this organization reach by this full name.
    fn find<'a>(
        &'a self,
        policy: &'a Policy,
        org: OrgId,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Arc<dyn Tool>>, SourceError>>;
}

/// A source cannot say now whether it has a tool. Tools of other sources are not affected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the source {source_id} cannot be asked for its tools: {problem}")]
pub struct SourceError {
    pub source_id: &'static str,
    pub problem: String,
}

/// One thing that can be executed.
pub trait Tool: Send + Sync {
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

    /// The key of its mode, where the modes of the organization govern it as well as the lanes.
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

/// How a tool does its work.
pub enum Work<'a> {
    Within(&'a dyn Within),
    Outside(&'a dyn Outside),
}

impl Work<'_> {
    /// Whether an orphaned call may be executed again. A call of a tool within the database is never orphaned.
    pub fn replay_safe(&self) -> bool {
        matches!(self, Self::Outside(outside) if outside.replay_safe())
    }
}

/// A tool whose whole effect is a change of our own database. Claim, effect and outcome are one transaction, so none of
/// them ever exists alone.
pub trait Within: Send + Sync {
    /// The output and the change, which the gate writes. Changes nothing itself.
    fn prepare<'a>(&'a self, call: &'a CallRequest) -> BoxFuture<'a, Result<(Output, Effect), Failure>>;
}

/// A tool whose effect no transaction of ours covers: claimed before, recorded after.
pub trait Outside: Send + Sync {
    /// Whether executing it twice does what executing it once does. Only then is a call whose instance died in the
    /// middle executed again.
    fn replay_safe(&self) -> bool;

    fn execute<'a>(
        &'a self,
        permit: &'a Permit,
        call: &'a CallRequest,
    ) -> BoxFuture<'a, Result<Output, Failure>>;
}

/// What a tool returned: a text for an agent, and data for programs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Output {
    pub text: String,
    pub data: Option<JsonObject>,
}

impl Output {
    /// What is stored of it as an artifact.
    pub fn content(&self) -> Value {
        match &self.data {
            None => json!({"result": self.text}),
            Some(data) => json!({"result": self.text, "data": data}),
        }
    }
}

/// Why a tool returned nothing. The words reach the caller and the ledger, so they hold nobody's content.
#[derive(Clone, Debug, PartialEq)]
pub enum Failure {
    /// The tool refuses, or nobody knows what happened: a retry does not help, or does it twice.
    Refused(String),
    /// The parameters have the right form and make no sense.
    Invalid(String),
    /// It did not answer in time. Nothing has happened, or repeating it is harmless.
    Timeout,
    /// It did not answer in time, and may have done it.
    Late,
    /// Something that it needs is not available now, and nothing has happened.
    Down(String),
    /// One of the others, with data for programs.
    Described(Box<Self>, JsonObject),
}
