//! What is asked for: names, versions and states, never content, so that a request can be recorded and replayed.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::lanes::{Write, WriteMode};
use crate::modes::{ModeDecision, Risk};
use crate::pin::Versions;

/// One call that wants to be allowed. Everything in it was established by the gateway, not by the caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Who the credential belongs to.
    pub actor: Claim,
    /// Who the body says it is, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimed: Option<Claim>,
    pub role: String,
    pub lane: String,
    pub action: Action,
    /// The names of the scope fields that were given and are not empty.
    pub scope: BTreeSet<String>,
    /// The refs of a repository that the call would change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refs: Vec<String>,
    /// What the call would do beyond its own case; see [`cross_case`].
    pub flags: BTreeSet<Flag>,
    pub run: RunState,
    /// The versions that the caller demands, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub demanded: Option<Versions>,
    /// What the modes say of the tool. Absent where lanes alone govern it: the platform's own tools, pushes, exports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<ModeDecision>,
    /// The global safety lock.
    pub locked: bool,
    /// The break-glass grant that the caller holds, if any.
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

/// An identity: `actor_type` and `actor_id`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    pub actor_type: ActorClass,
    pub actor_id: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Action {
    /// `registered`: there is such a tool, and it is enabled. `writes`: what it does is a write, a run of kind `db_write`.
    Tool {
        tool_name: String,
        operation: String,
        risk: Risk,
        registered: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        writes: Option<Write>,
    },
    /// A write alone, whichever tool does it.
    Write { table: String, mode: WriteMode },
}

/// The run that a call belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// The call starts a tree of its own.
    New,
    /// It is running, under these versions.
    Active(Versions),
    /// It has ended, never was, or belongs to someone else: the caller is not told which.
    Inactive,
}

/// A permission to break the glass, in seconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    pub ticket: String,
    pub reason: String,
    pub from: i64,
    pub until: i64,
    /// When the call is made: there is no clock here.
    pub now: i64,
}

/// The name of something that lanes prohibit or permit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Flag(String);

impl Flag {
    pub fn new(name: impl Into<String>) -> Self {
        Self(name.into())
    }

    /// Reading or using what belongs to another case.
    pub fn cross_case_lookup() -> Self {
        Self::new("cross_case_lookup")
    }

    /// Sending case data out.
    pub fn external_export() -> Self {
        Self::new("external_export")
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Action {
    /// The names by which a lane may list a tool: `transcription` and `transcription.run`.
    pub(crate) fn names(&self) -> Option<(&str, String)> {
        let Self::Tool { tool_name, operation, .. } = self else { return None };
        Some((tool_name, full_name(tool_name, operation)))
    }
}

/// The whole name of an operation. Whoever looks for the tool must use it too, or what is decided about is not what is
/// executed.
pub fn full_name(tool_name: &str, operation: &str) -> String {
    let full =
        operation == tool_name || operation.strip_prefix(tool_name).is_some_and(|rest| rest.starts_with('.'));
    if full { operation.to_owned() } else { format!("{tool_name}.{operation}") }
}

/// The flag for a call in `case_id` that touches things of these cases; things of no case are shared.
pub fn cross_case<'a>(
    case_id: Option<&str>,
    touched: impl IntoIterator<Item = Option<&'a str>>,
) -> Option<Flag> {
    let elsewhere = touched.into_iter().flatten().any(|case| Some(case) != case_id);
    elsewhere.then(Flag::cross_case_lookup)
}
