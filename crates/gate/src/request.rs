//! A call as an entry point hands it in: who asks, for what, from where. Nothing is filled in later, so a request can be
//! stored and executed at another time.

use std::collections::BTreeSet;

use ledger::{ArtifactRef, Hash};
use policy::{Claim, Versions};
use proto::{OrgId, SessionId};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One call, parsed and checked for form. Whether it is allowed is not decided yet.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CallRequest {
    pub entry_point: EntryPoint,
    pub caller: Caller,
    /// The actor that the body names; it must be the caller.
    pub claimed: Option<Claim>,
    pub agent_name: Option<String>,
    pub target: Target,
    pub run: RunRequest,
    pub case: Option<String>,
    /// The names of the scope fields that were given.
    pub scope: BTreeSet<String>,
    pub break_glass: BreakGlass,
    /// The policy versions that the caller demands.
    pub demanded: Option<Versions>,
    pub request_hash: Hash,
}

/// Where a call came in. It decides what of its result is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryPoint {
    /// `POST /v1/tool-calls`: the reply refers to artifacts.
    ToolCalls,
    /// `POST /proliferate/{id}/tools/{tool}` and git: the caller gets the output itself.
    Callback,
}

/// Who asks, as the credential says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Caller {
    pub org: OrgId,
    pub session: Option<SessionId>,
    pub actor: Claim,
    pub role: String,
}

/// What is asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Target {
    pub lane: String,
    pub tool: String,
    pub operation: String,
    pub parameters: Value,
    pub input_artifacts: Vec<ArtifactRef>,
}

/// The run that a call becomes, and the runs that it refers to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunRequest {
    pub id: String,
    pub parent: Option<String>,
    pub retry_of: Option<Retry>,
    pub correlation: Option<String>,
}

/// The run that a call retries.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Retry {
    pub run_id: String,
    pub reason: String,
}

/// What a caller in an emergency names; it counts only in a lane that breaks the glass.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct BreakGlass {
    pub ticket: Option<String>,
    pub reason: Option<String>,
}

/// What makes two requests with one id the same call: the content and the actor.
pub(crate) type Fingerprint = (Hash, Claim);

impl CallRequest {
    /// The name that policy decides about.
    pub fn full_name(&self) -> String {
        policy::full_name(&self.target.tool, &self.target.operation)
    }

    /// Within the organization, the same id is the same call.
    pub(crate) fn key(&self) -> (OrgId, String) {
        (self.caller.org, self.run.id.clone())
    }

    pub(crate) fn fingerprint(&self) -> Fingerprint {
        (self.request_hash, self.caller.actor.clone())
    }
}

/// Prefixes of the run ids that the gateway makes; callers may not use them.
pub const CALLBACK_RUN: &str = "call_";
pub const TURN_RUN: &str = "turn_";

/// The run of a callback: one for each session, tool and id that the agent gave.
pub fn callback_run(session: SessionId, tool: &str, call_id: &str) -> String {
    let place = serde_json::json!([session.to_string(), tool, call_id]).to_string();
    format!("{CALLBACK_RUN}{}", &ledger::sha256(place.as_bytes()).to_string()[..40])
}
