//! A call as an entry point submits it: the caller, the target and the run. It is never changed, so it can be stored and
//! executed at another time; the judgement of an action works on a copy that names the action and the case.

use std::collections::BTreeSet;

use ledger::{ArtifactRef, Hash, payload_hash};
use policy::{Claim, Versions};
use proto::{ApiKeyId, InvocationId, JsonObject, OrgId, SessionId};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

/// One call, parsed and checked for form. Policy has not judged it yet.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CallRequest {
    pub entry_point: EntryPoint,
    pub caller: Caller,
    /// The actor that the body names, which must be the caller.
    pub claimed: Option<Claim>,
    /// The name that the caller gives itself. Calls of a session's own agent are recorded with its type instead.
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
    /// Set if the call is the invocation of an action, which has a row of its own and may wait for approval.
    pub action: Option<ActionRequest>,
}

/// The invocation of an action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActionRequest {
    pub id: InvocationId,
    /// The source, as agents name it.
    pub integration: String,
    pub action: String,
    /// The API key with which it was requested, outside of any session.
    pub key: Option<ApiKeyId>,
}

/// The entry point of a call. It decides which part of the result is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryPoint {
    /// `POST /v1/tool-calls`: the reply refers to artifacts.
    ToolCalls,
    /// `POST /proliferate/{id}/tools/{tool}`, git, and what the gateway submits itself: the caller gets the output.
    Callback,
}

/// The caller, as its credential identifies it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Caller {
    pub org: OrgId,
    pub session: Option<SessionId>,
    pub actor: Claim,
    pub role: String,
}

/// The requested tool and its parameters.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Target {
    pub lane: String,
    pub tool: String,
    pub operation: String,
    pub parameters: Value,
    pub input_artifacts: Vec<ArtifactRef>,
}

/// The run of a call, and the runs that it refers to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunRequest {
    pub id: String,
    pub parent: Option<String>,
    pub retry_of: Option<Retry>,
    pub correlation: Option<String>,
}

impl RunRequest {
    /// The run of a call that the gateway submits once. People search the ledger by the correlation id.
    pub fn new_call(id: Uuid, correlation: Option<String>) -> Self {
        Self { id: format!("{CALLBACK_RUN}{}", id.simple()), parent: None, retry_of: None, correlation }
    }
}

/// The run that a call retries.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Retry {
    pub run_id: String,
    pub reason: String,
}

/// The ticket and reason of an emergency call. They count only in a break-glass lane.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct BreakGlass {
    pub ticket: Option<String>,
    pub reason: Option<String>,
}

/// Identifies the call: two requests with one id are the same call if their content and actor are equal.
pub(crate) type Fingerprint = (Hash, Claim);

impl CallRequest {
    /// A call about a session that the gateway submits itself: for its agent, for a member, or on its own.
    pub fn of_session(
        caller: Caller,
        session: SessionId,
        names: (&str, &str),
        parameters: Value,
        run: RunRequest,
    ) -> Self {
        Self::submitted(caller, Some(session), names, parameters, run)
    }

    /// The invocation of an action by a session's agent, or by a program that counts as an agent without a session.
    pub fn of_action(
        caller: Caller,
        names: (&str, &str),
        parameters: Value,
        run: RunRequest,
        action: ActionRequest,
    ) -> Self {
        let session = caller.session;
        let call = Self::submitted(caller, session, names, parameters, run);
        let call = Self { action: Some(action), ..call };
        Self { request_hash: call.binding(), ..call }
    }

    /// The session of the call, if any, is its case.
    fn submitted(
        caller: Caller,
        session: Option<SessionId>,
        (lane, tool): (&str, &str),
        parameters: Value,
        run: RunRequest,
    ) -> Self {
        let payload = json!({"tool": tool, "case": session, "parameters": parameters});
        let scope = session.map(|_| "case_id").into_iter().chain(["run_id"]);
        // Callers pass parameters without floating-point numbers, so canonicalisation does not fail.
        let request_hash =
            payload_hash(&payload).unwrap_or_else(|_| ledger::sha256(payload.to_string().as_bytes()));
        Self {
            entry_point: EntryPoint::Callback,
            caller,
            claimed: None,
            agent_name: None,
            target: Target {
                lane: lane.to_owned(),
                tool: tool.to_owned(),
                operation: tool.to_owned(),
                parameters,
                input_artifacts: Vec::new(),
            },
            run,
            case: session.map(|session| session.to_string()),
            scope: scope.map(str::to_owned).collect(),
            break_glass: BreakGlass::default(),
            demanded: None,
            request_hash,
            action: None,
        }
    }

    /// The same call with other parameters.
    pub(crate) fn with_parameters(&self, parameters: JsonObject) -> Self {
        let target = Target { parameters: Value::Object(parameters), ..self.target.clone() };
        Self { target, ..self.clone() }
    }

    /// The hash of everything that an approval is bound to: who requests what, with which parameters, in which lane and
    /// case.
    pub(crate) fn binding(&self) -> Hash {
        let Self { caller, target, case, scope, action, .. } = self;
        content_hash(
            &json!({"caller": caller, "target": target, "case": case, "scope": scope, "action": action}),
        )
    }

    /// The tool name that policy judges.
    pub fn full_name(&self) -> String {
        policy::full_name(&self.target.tool, &self.target.operation)
    }

    /// The key of the call. Within an organization, the same id means the same call.
    pub(crate) fn key(&self) -> (OrgId, String) {
        (self.caller.org, self.run.id.clone())
    }

    pub(crate) fn fingerprint(&self) -> Fingerprint {
        (self.request_hash, self.caller.actor.clone())
    }
}

/// The hash of JSON that may contain fractions, which have no canonical form. Keys are in order anyway.
pub(crate) fn content_hash(value: &Value) -> Hash {
    payload_hash(value).unwrap_or_else(|_| ledger::sha256(value.to_string().as_bytes()))
}

/// The prefixes of run ids that the gateway generates. Callers may not use them.
pub const CALLBACK_RUN: &str = "call_";
pub const TURN_RUN: &str = "turn_";

/// The run id of a callback, derived from the session, the tool and the agent's call id.
pub fn callback_run(session: SessionId, tool: &str, call_id: &str) -> String {
    let place = serde_json::json!([session.to_string(), tool, call_id]).to_string();
    format!("{CALLBACK_RUN}{}", &ledger::sha256(place.as_bytes()).to_string()[..40])
}
