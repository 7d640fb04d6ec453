//! The request to decide: names, versions and states, never content, so that it can be recorded and replayed.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::lanes::{TableWrite, WriteMode};
use crate::modes::{ModeDecision, Risk};
use crate::pin::Versions;

/// One call to decide. The gateway established every field itself, except `claimed` and `demanded`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// The owner of the credential.
    pub actor: Claim,
    /// The identity in the request body, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimed: Option<Claim>,
    pub role: String,
    pub lane: String,
    pub action: Action,
    /// The names of the scope fields that are present and not empty.
    pub scope: BTreeSet<String>,
    /// The git refs that the call would change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refs: Vec<String>,
    /// What the call would do beyond its own case.
    pub flags: BTreeSet<Flag>,
    pub run: RunState,
    /// The policy versions that the caller demands, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub demanded: Option<Versions>,
    /// The tool's mode. Absent if only lanes govern it: the platform's own tools, pushes, exports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<ModeDecision>,
    /// Whether the global safety lock is engaged.
    pub locked: bool,
    /// The caller's break-glass grant, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant: Option<Grant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActorClass {
    Agent,
    Human,
    System,
}

/// An actor: `actor_type` and `actor_id`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    pub actor_type: ActorClass,
    pub actor_id: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Action {
    /// A tool call. `registered`: the tool exists and is enabled. `writes`: the tool writes to a table, and
    /// its run is of kind `db_write`.
    Tool {
        tool_name: String,
        operation: String,
        risk: Risk,
        registered: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        writes: Option<TableWrite>,
    },
    /// A write on its own, by any tool.
    Write { table: String, mode: WriteMode },
}

/// The state of the run that a call belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// The call starts a new tree of runs.
    New,
    /// The run is active, under these policy versions.
    Active(Versions),
    /// The run has ended, does not exist, or belongs to somebody else; the caller is not told which.
    Inactive,
}

/// A break-glass grant. Times are in seconds since the Unix epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    pub ticket: String,
    pub reason: String,
    pub from: i64,
    pub until: i64,
    /// The time of the call; this crate has no clock.
    pub now: i64,
}

/// The name of something that a lane can prohibit or permit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Flag(String);

impl Flag {
    pub fn new(name: impl Into<String>) -> Self {
        Self(name.into())
    }

    /// The flag for reading or using data of another case.
    pub fn cross_case_lookup() -> Self {
        Self::new("cross_case_lookup")
    }

    /// The flag for sending case data outside.
    pub fn external_export() -> Self {
        Self::new("external_export")
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Action {
    /// The names under which a lane may list a tool: `transcription` and `transcription.run`.
    pub(crate) fn names(&self) -> Option<(&str, String)> {
        let Self::Tool { tool_name, operation, .. } = self else { return None };
        Some((tool_name, full_name(tool_name, operation)))
    }
}

/// The full name of an operation. The code that looks up the tool must use it too; otherwise the gate could
/// execute another tool than the one it decided about.
pub fn full_name(tool_name: &str, operation: &str) -> String {
    let full =
        operation == tool_name || operation.strip_prefix(tool_name).is_some_and(|rest| rest.starts_with('.'));
    if full { operation.to_owned() } else { format!("{tool_name}.{operation}") }
}
