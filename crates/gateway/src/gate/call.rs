//! A call as the front doors hand it in, and what they get back. The doors differ in their bodies, not in what happens.

use std::collections::BTreeSet;

use ledger::ArtifactRef;
use policy::{Claim, Versions, Write, full_name};
use proto::http::{ToolCallReply, ToolCallbackReply};
use proto::{JsonObject, OrgId, RunKind, SessionId, ToolErrorCode};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use store::SandboxSession;

use crate::shares::OverShare;
use crate::sources::Output;

/// What is told of a failure.
const LONGEST_MESSAGE: usize = 2000;

/// One call, read and checked for form. What it may do is not decided yet.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) door: Door,
    pub(crate) org: OrgId,
    pub(crate) session: Option<SessionId>,
    /// The same as it was found when the sandbox was let in.
    pub(crate) sandbox: Option<SandboxSession>,
    /// Whom the credential belongs to.
    pub(crate) actor: Claim,
    /// Whom the body names.
    pub(crate) claimed: Option<Claim>,
    pub(crate) agent_name: Option<String>,
    pub(crate) role: &'static str,
    pub(crate) lane: String,
    pub(crate) tool: String,
    pub(crate) operation: String,
    pub(crate) case: Option<String>,
    pub(crate) run_id: String,
    pub(crate) parent: Option<String>,
    /// The run above it, once that was found and counts.
    pub(crate) above: Option<String>,
    /// The run that this one tries again.
    pub(crate) retry_of: Option<(String, String)>,
    pub(crate) correlation: Option<String>,
    /// The names of the scope fields that were given.
    pub(crate) scope: BTreeSet<String>,
    /// The ticket of a break-glass grant.
    pub(crate) ticket: Option<String>,
    /// Why the glass is broken.
    pub(crate) override_reason: Option<String>,
    pub(crate) demanded: Option<Versions>,
    /// What it writes to, as far as that was decided about.
    pub(crate) writes: Option<Write>,
    /// What the caller is told instead of policy's own words, should policy say no.
    pub(crate) denial: Option<String>,
    pub(crate) input_artifacts: Vec<ArtifactRef>,
    pub(crate) parameters: Value,
    pub(crate) request_hash: ledger::Hash,
}

/// Where a call came in: decides what its answer looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Door {
    /// `POST /v1/tool-calls`.
    ToolCalls,
    /// `POST /proliferate/{id}/tools/{tool}`.
    Callback,
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    Success,
    Failed(ToolErrorCode),
    /// The id was used before for something else.
    Conflict,
    /// Nothing was written down, and asking again helps.
    Unavailable,
    /// Nothing was written down: the caller's share of refused calls is used up for so many seconds.
    OverShare {
        retry_after: u64,
    },
}

/// What the caller is told: the same words, however often it asks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Answered {
    pub(crate) outcome: Outcome,
    pub(crate) body: Value,
}

/// What came of a call, before it has a body.
#[derive(Clone, Debug)]
pub(crate) enum Result {
    Done(Output, Vec<ArtifactRef>),
    Refused(Refusal),
}

/// Why a call did not succeed. The message is for the caller: bounded, and without anybody's content.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) code: ToolErrorCode,
    pub(crate) message: String,
    pub(crate) retryable: bool,
    /// What the tool says about its failure, for programs.
    pub(crate) data: Option<JsonObject>,
}

impl Result {
    pub(super) fn outcome(&self) -> Outcome {
        match self {
            Self::Done(..) => Outcome::Success,
            Self::Refused(refusal) => Outcome::Failed(refusal.code),
        }
    }
}

impl Refusal {
    pub(crate) fn new(code: ToolErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: line(&message.into()), retryable: code.retryable(), data: None }
    }

    /// For an effect that may have happened: trying again by itself would be wrong.
    pub(crate) fn unknown() -> Self {
        let message = "the gateway stopped while the call ran: whether it took effect is unknown";
        Self { code: ToolErrorCode::ToolError, message: message.to_owned(), retryable: false, data: None }
    }
}

/// As long as the contract lets a message be, and of characters that can be shown and stored.
fn line(message: &str) -> String {
    let plain = |char: char| if char.is_control() && char != '\n' { '\u{fffd}' } else { char };
    message.chars().take(LONGEST_MESSAGE).map(plain).collect()
}

impl Call {
    /// Within the organisation, the same id is the same call.
    pub(super) fn key(&self) -> (OrgId, String) {
        (self.org, self.run_id.clone())
    }

    /// What is asked, and by whom: the same again is answered the same.
    pub(super) fn question(&self) -> (ledger::Hash, Claim) {
        (self.request_hash, self.actor.clone())
    }

    pub(super) fn kind(&self) -> RunKind {
        match full_name(&self.tool, &self.operation).as_str() {
            crate::sources::EXPORT => RunKind::Export,
            _ if self.writes.is_some() => RunKind::DbWrite,
            _ if self.ticket.is_some() => RunKind::Override,
            _ => RunKind::ToolGateway,
        }
    }

    /// The body of an answer, and its hash where a tool answered.
    pub(super) fn body(&self, result: &Result) -> Value {
        let body = match self.door {
            Door::ToolCalls => serde_json::to_value(self.canonical(result)),
            Door::Callback => serde_json::to_value(self.callback(result)),
        };
        // Both are made of strings, numbers and objects with text keys.
        body.unwrap_or_default()
    }

    fn canonical(&self, result: &Result) -> ToolCallReply {
        let (outcome, artifacts, error) = match result {
            Result::Done(_, artifacts) => ("success", artifacts.clone(), None),
            Result::Refused(refusal) => {
                let denied = refusal.code == ToolErrorCode::PolicyDenied;
                let error = proto::http::ToolCallError {
                    error_code: refusal.code,
                    message: refusal.message.clone(),
                    retryable: refusal.retryable,
                };
                (if denied { "deny" } else { "failure" }, Vec::new(), Some(error))
            }
        };
        ToolCallReply {
            outcome: outcome.to_owned(),
            tool_name: self.tool.clone(),
            operation: self.operation.clone(),
            run_id: Some(self.run_id.clone()),
            correlation_id: self.correlation.clone(),
            output_artifacts: artifacts.iter().filter_map(|a| serde_json::to_value(a).ok()).collect(),
            response_hash_sha256: None,
            error,
        }
    }

    fn callback(&self, result: &Result) -> ToolCallbackReply {
        match result {
            Result::Done(output, _) => {
                ToolCallbackReply { success: true, result: output.text.clone(), data: output.data.clone() }
            }
            Result::Refused(refusal) => {
                let denied = refusal.code == ToolErrorCode::PolicyDenied;
                let words = self.denial.as_ref().filter(|_| denied).unwrap_or(&refusal.message);
                ToolCallbackReply { success: false, result: words.clone(), data: refusal.data.clone() }
            }
        }
    }
}

impl Answered {
    /// An answer that is written down nowhere: nothing could be.
    pub(super) fn unrecorded(call: &Call, refusal: Refusal) -> Self {
        let outcome = if refusal.retryable { Outcome::Unavailable } else { Outcome::Failed(refusal.code) };
        Self { outcome, body: call.body(&Result::Refused(refusal)) }
    }

    /// A call that is refused and not written down, because too many of its caller's were refused before.
    pub(super) fn over_share(call: &Call, over: &OverShare) -> Self {
        let refusal = Refusal::new(ToolErrorCode::DependencyDown, over.to_string());
        let outcome = Outcome::OverShare { retry_after: over.retry_after_seconds() };
        Self { outcome, body: call.body(&Result::Refused(refusal)) }
    }

    pub(super) fn conflict(call: &Call) -> Self {
        let message = match call.door {
            Door::ToolCalls => "this run_id was used before with other content",
            Door::Callback => "this tool_call_id was used before with other arguments",
        };
        let refusal = Refusal::new(ToolErrorCode::InvalidRequest, message);
        Self { outcome: Outcome::Conflict, body: call.body(&Result::Refused(refusal)) }
    }
}

impl Call {
    /// The call that a run was made for, as far as its end needs it. `None` for a run that is not a call.
    pub(super) fn of_run(run: &store::Run) -> Option<Self> {
        let actor: Claim = serde_json::from_value(run.actor.clone()).ok()?;
        Some(Self {
            door: if run.run_id.starts_with(CALLBACK) { Door::Callback } else { Door::ToolCalls },
            org: run.org_id,
            session: run.session_id,
            sandbox: None,
            actor,
            claimed: None,
            agent_name: None,
            role: super::runs::role_named(&run.role_id),
            lane: run.lane_id.clone()?,
            tool: run.tool.clone()?,
            operation: run.operation.clone()?,
            case: run.case_id.clone(),
            run_id: run.run_id.clone(),
            parent: run.parent_run_id.clone(),
            above: run.parent_run_id.clone(),
            retry_of: None,
            correlation: run.correlation_id.clone(),
            scope: BTreeSet::new(),
            ticket: (run.kind == RunKind::Override).then(String::new),
            override_reason: None,
            demanded: None,
            writes: None,
            denial: None,
            input_artifacts: Vec::new(),
            parameters: Value::Null,
            request_hash: run.request_hash.as_ref()?.parse().ok()?,
        })
    }
}

/// What the ids of runs begin with that we name ourselves; callers may not.
pub(crate) const CALLBACK: &str = "call_";
pub(crate) const TURN: &str = "turn_";

/// The run of a callback: one for each session, tool and id that the agent gave.
pub(crate) fn callback_run(session: SessionId, tool: &str, call_id: &str) -> String {
    let place = serde_json::json!([session.to_string(), tool, call_id]).to_string();
    format!("{CALLBACK}{}", &ledger::sha256(place.as_bytes()).to_string()[..40])
}
