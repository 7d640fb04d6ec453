//! The tools behind the gate, and the sources that find them. Each tool holds its own dependencies; the gate knows only
//! these traits.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use ledger::Hash;
use policy::{ModeKey, Policy, Risk, TableWrite};
use proto::{JsonObject, OrgId, SessionId};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use store::Effect;

use crate::{CallRequest, Permit};

/// The tool whose calls are recorded as exports.
pub const EXPORT_TOOL: &str = "export.bundle";

/// Finds tools by name.
pub trait Sources: Send + Sync {
    /// Finds the tool with this full name for the callers of this scope.
    fn find<'a>(
        &'a self,
        policy: &'a Policy,
        scope: ToolScope,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Arc<dyn Tool>>, SourceError>>;

    /// Finds the tool as its source defines it now, while [`Sources::find`] may use what the source said lately. For
    /// approvals, which are bound to a definition.
    fn find_now<'a>(
        &'a self,
        policy: &'a Policy,
        scope: ToolScope,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Arc<dyn Tool>>, SourceError>>;
}

/// For whom tools are looked up: an organization, and the session if the caller is one. A session may have fewer tools
/// than its organization, never more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToolScope {
    pub org: OrgId,
    pub session: Option<SessionId>,
}

/// A source cannot tell now whether it has a tool. Tools of other sources are not affected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the source {source_id} cannot be asked for its tools: {problem}")]
pub struct SourceError {
    pub source_id: String,
    /// The text is for operators and callers, so it contains no secrets and nothing that a remote server sent.
    pub problem: String,
}

/// The definition of an action: what a reviewer and an approver have seen of it. An approval is bound to its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Definition {
    /// The hash over the raw definition, descriptions included ([`ledger::payload_hash`]).
    pub hash: Hash,
    pub review: Review,
}

/// Whether an admin must review a definition before its mode may be `allow`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Review {
    /// Operators wrote the definition themselves, in our code or in their files.
    NotNeeded,
    /// Somebody else can change the definition, and nobody has reviewed it.
    Missing,
    /// An admin reviewed the definition with this hash, which may differ from the present one.
    Pinned(Hash),
}

/// A tool that can be executed.
pub trait Tool: Send + Sync {
    fn risk(&self) -> Risk;

    fn timeout(&self) -> Duration;

    /// The flags of what the tool does beyond its own case, by the names that lanes prohibit or permit.
    fn flags(&self) -> &[&'static str] {
        &[]
    }

    /// The table that the tool writes to, if it is a database write.
    fn writes(&self) -> Option<&TableWrite> {
        None
    }

    /// The key of the tool's action mode, if the organization's modes govern it in addition to the lanes.
    fn mode_key(&self) -> Option<ModeKey> {
        None
    }

    /// The definition of the tool, if it is an action. A call of a tool with another definition than the approved one
    /// is refused, and a definition that is not reviewed as it is now requires approval.
    fn definition(&self) -> Option<Definition> {
        None
    }

    /// Whether only its caller can carry out a call, because it comes with data that no request holds. Such a call passes
    /// once when it is repeated after its approval.
    fn needs_caller(&self) -> bool {
        false
    }

    /// The refs of a repository that a call would change.
    fn refs(&self, _parameters: &Value) -> Vec<String> {
        Vec::new()
    }

    /// Validates the parameters. The error names each invalid field and limit for the caller.
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
    /// Returns the output and the change, which the gate writes. This changes nothing itself.
    fn prepare<'a>(&'a self, call: &'a CallRequest) -> BoxFuture<'a, Result<(Output, Effect), Failure>>;
}

/// A tool whose effect is outside of our transactions. The call is claimed before the effect and recorded after it.
pub trait Outside: Send + Sync {
    /// Whether executing the tool twice has the same effect as executing it once. Only then is a call executed again
    /// after its instance died in the middle.
    fn replay_safe(&self) -> bool;

    /// How long this effect may take, if that differs from the timeout of its tool.
    fn timeout(&self) -> Option<Duration> {
        None
    }

    fn execute<'a>(
        &'a self,
        permit: &'a Permit,
        call: &'a CallRequest,
    ) -> BoxFuture<'a, Result<Output, Failure>>;
}

/// The output of a tool: a text for an agent, and data for programs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Output {
    pub text: String,
    pub data: Option<JsonObject>,
}

impl Output {
    /// The content that is stored as an artifact.
    pub fn content(&self) -> Value {
        match &self.data {
            None => json!({"result": self.text}),
            Some(data) => json!({"result": self.text, "data": data}),
        }
    }
}

/// The reason why a tool failed. The messages reach the caller and the ledger, so they must not contain anyone's
/// content.
#[derive(Clone, Debug, PartialEq)]
pub enum Failure {
    /// The tool refuses, or the outcome is unknown: a retry would not help, or would repeat the effect.
    Refused(String),
    /// The parameters are well-formed but invalid.
    Invalid(String),
    /// The tool did not answer in time. Nothing has happened, or repeating the call is harmless.
    Timeout,
    /// The tool did not answer in time, and the effect may have happened.
    Late,
    /// A dependency of the tool is unavailable, and nothing has happened.
    Down(String),
    /// One of the other failures, with data for programs.
    Described(Box<Self>, JsonObject),
}
