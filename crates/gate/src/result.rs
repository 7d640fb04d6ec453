//! The result of a call. A retry gets the same result as the first request, so it is stored with the run.

use ledger::{ArtifactRef, Hash};
use proto::http::{ToolCallError, ToolCallReply};
use proto::{InvocationId, JsonObject, ToolErrorCode};
use serde::{Deserialize, Serialize};
use shares::OverShare;

use crate::request::{CallRequest, EntryPoint};
use crate::tool::{Failure, Output};

/// The maximum message length that the contract allows.
pub(crate) const MAX_MESSAGE: usize = 2000;

/// The result that an entry point renders for its caller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallResult {
    pub outcome: CallOutcome,
    /// The reply of the contract. The ledger has its hash.
    pub reply: ToolCallReply,
    /// The tool's output, or its description of a failure. `None` for [`EntryPoint::ToolCalls`], which refers to
    /// artifacts instead.
    pub output: Option<Output>,
}

/// The outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallOutcome {
    Success,
    Failed(ToolErrorCode),
    /// The call waits for approval. Nothing was executed.
    Waiting(InvocationId),
    /// The id was used before for a different call.
    Conflict,
    /// The call was not recorded, and a retry may succeed.
    Unavailable,
    /// The call was not recorded, because the caller's share is used up. A retry makes sense after this many seconds.
    OverShare {
        share: CallShare,
        retry_after: u64,
    },
}

/// What a caller has used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallShare {
    /// Its calls of the last minute.
    Calls,
    /// The calls that may wait for approval at one time.
    WaitingCalls,
}

/// The reason why a call did not succeed. The message is for the caller: bounded in length, and without anyone's
/// content.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) code: ToolErrorCode,
    pub(crate) message: String,
    pub(crate) retryable: bool,
    /// The tool's description of its failure, for programs.
    pub(crate) data: Option<JsonObject>,
}

impl Refusal {
    pub(crate) fn new(code: ToolErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: truncate_message(&message.into()), retryable: code.retryable(), data: None }
    }

    /// The refusal for an effect that may have happened, which must not be retried automatically.
    pub(crate) fn unknown() -> Self {
        let message = "the gateway stopped while the call ran: whether it took effect is unknown";
        Self { retryable: false, ..Self::new(ToolErrorCode::ToolError, message) }
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(message) => Self::new(ToolErrorCode::ToolError, message),
            Failure::Invalid(message) => Self::new(ToolErrorCode::InvalidRequest, message),
            Failure::Timeout => Self::new(ToolErrorCode::ToolTimeout, "the tool did not answer in time"),
            Failure::Late => {
                let message = "the tool did not answer in time: whether it took effect is unknown";
                Self { retryable: false, ..Self::new(ToolErrorCode::ToolTimeout, message) }
            }
            Failure::Down(message) => Self::new(ToolErrorCode::DependencyDown, message),
            Failure::Described(failure, data) => Self { data: Some(data), ..Self::from(*failure) },
        }
    }
}

/// Truncates a message to the contract's limit and replaces control characters.
fn truncate_message(message: &str) -> String {
    let plain = |char: char| if char.is_control() && char != '\n' { '\u{fffd}' } else { char };
    message.chars().take(MAX_MESSAGE).map(plain).collect()
}

impl CallResult {
    pub(crate) fn success(request: &CallRequest, output: Output, artifacts: &[ArtifactRef]) -> Self {
        let artifacts = artifacts.iter().filter_map(|artifact| serde_json::to_value(artifact).ok());
        let reply =
            ToolCallReply { output_artifacts: artifacts.collect(), ..reply(request, "success", None) };
        Self { outcome: CallOutcome::Success, reply, output: stored_output(request, output) }
    }

    pub(crate) fn refused(request: &CallRequest, refusal: &Refusal) -> Self {
        let outcome = if refusal.code == ToolErrorCode::PolicyDenied { "deny" } else { "failure" };
        let error = ToolCallError {
            error_code: refusal.code,
            message: refusal.message.clone(),
            retryable: refusal.retryable,
        };
        let output = Output { text: refusal.message.clone(), data: refusal.data.clone() };
        Self {
            outcome: CallOutcome::Failed(refusal.code),
            reply: reply(request, outcome, Some(error)),
            output: stored_output(request, output),
        }
    }

    /// The text for the caller: the tool's output, or the error message.
    pub fn text(&self) -> &str {
        let error = self.reply.error.as_ref().map_or("", |error| error.message.as_str());
        self.output.as_ref().map_or(error, |output| output.text.as_str())
    }

    /// Puts the hash of a tool's response into the reply, and returns it.
    pub(crate) fn seal(&mut self) -> Option<Hash> {
        let hash = self.response_hash()?;
        if self.output.is_none() {
            self.reply.response_hash_sha256 = Some(hash.to_string());
        }
        Some(hash)
    }

    /// The hash of the response: of the contract's reply, and of the output if the caller gets it.
    pub(crate) fn response_hash(&self) -> Option<Hash> {
        let reply = serde_json::to_value(&self.reply).ok()?;
        let response = match &self.output {
            None => reply,
            Some(output) => serde_json::json!({ "output": output, "reply": reply }),
        };
        ledger::payload_hash(&response).ok()
    }

    /// A result that could not be recorded.
    pub(crate) fn unrecorded(request: &CallRequest, refusal: &Refusal) -> Self {
        let refused = Self::refused(request, refusal);
        let outcome = if refusal.retryable { CallOutcome::Unavailable } else { refused.outcome };
        Self { outcome, ..refused }
    }

    /// A call that waits for approval. The same call, sent again, gets its result once somebody has decided.
    pub(crate) fn waiting(request: &CallRequest, id: InvocationId) -> Self {
        let place = match request.caller.session {
            Some(session) => format!("/proliferate/{session}/actions/invocations/{id}"),
            None => format!("/v1/invocations/{id}"),
        };
        let message =
            format!("Action requires approval: repeat it once somebody has decided; GET {place} tells");
        let refusal = Refusal { retryable: true, ..Refusal::new(ToolErrorCode::PolicyDenied, message) };
        Self { outcome: CallOutcome::Waiting(id), ..Self::refused(request, &refusal) }
    }

    /// An approved call that its caller has to repeat.
    pub(crate) fn granted(request: &CallRequest, id: InvocationId) -> Self {
        let text = "Approved: it passes once when the same is requested again".to_owned();
        let outcome = CallOutcome::Waiting(id);
        Self { outcome, ..Self::success(request, Output { text, data: None }, &[]) }
    }

    /// A call beyond its caller's share, which is not recorded.
    pub(crate) fn over_share(request: &CallRequest, over: &OverShare) -> Self {
        let refusal = Refusal::new(ToolErrorCode::DependencyDown, over.to_string());
        let outcome =
            CallOutcome::OverShare { share: CallShare::Calls, retry_after: over.retry_after_seconds() };
        Self { outcome, ..Self::refused(request, &refusal) }
    }

    pub(crate) fn conflict(request: &CallRequest) -> Self {
        let message = match request.entry_point {
            EntryPoint::ToolCalls => "this run_id was used before with other content",
            EntryPoint::Callback => "this tool_call_id was used before with other arguments",
        };
        let refusal = Refusal::new(ToolErrorCode::InvalidRequest, message);
        Self { outcome: CallOutcome::Conflict, ..Self::refused(request, &refusal) }
    }
}

fn stored_output(request: &CallRequest, output: Output) -> Option<Output> {
    (request.entry_point == EntryPoint::Callback).then_some(output)
}

fn reply(request: &CallRequest, outcome: &str, error: Option<ToolCallError>) -> ToolCallReply {
    ToolCallReply {
        outcome: outcome.to_owned(),
        tool_name: request.target.tool.clone(),
        operation: request.target.operation.clone(),
        run_id: Some(request.run.id.clone()),
        correlation_id: request.run.correlation.clone(),
        output_artifacts: Vec::new(),
        response_hash_sha256: None,
        error,
    }
}
