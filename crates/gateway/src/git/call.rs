//! What git does at a forge as calls of the gate: reads, pushes and pull requests.

use gate::{CallRequest, CallResult, Caller, RunRequest};
use proto::{OrgId, SessionId, UserId};
use serde_json::Value;
use store::StoreError;

use super::GitService;
use super::read::FETCH_TOOL;

const PUBLISH_LANE: &str = "git.publish";
const READ_LANE: &str = "git.read";
const SYSTEM_LANE: &str = "platform.system";

/// The party that starts a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Initiator {
    /// A program in the sandbox, without a person's request.
    Agent,
    /// A person who asked for exactly this.
    Person(UserId),
    /// The gateway itself, which checks out the repositories of a session.
    System,
}

/// The data of a result, in which the outcome of a push or pull request is stored.
pub(super) fn data(result: &CallResult) -> Value {
    let data = result.output.as_ref().and_then(|output| output.data.clone());
    data.map_or(Value::Null, Value::Object)
}

impl GitService {
    /// Builds a call for a session. `subject` becomes the correlation id, by which people search the ledger.
    pub(super) async fn call(
        &self,
        (org, session, initiator): (OrgId, SessionId, Initiator),
        tool: &str,
        subject: &str,
        parameters: Value,
    ) -> Result<CallRequest, StoreError> {
        let (caller, parent) = match initiator {
            Initiator::Agent => {
                let record = self.store.session(org, session).await?;
                let record = record.ok_or(StoreError::Missing("the session"))?;
                let (role, _) = gate::agent_role(record.mode());
                let (actor, role) = (gate::agent(session), role.to_owned());
                (Caller { org, session: Some(session), actor, role }, self.gate.turn_of(session))
            }
            Initiator::Person(user) => (self.gate.member_caller(org, session, user).await?, None),
            Initiator::System => (gate::system_caller(org, session), None),
        };
        let correlation = subject.chars().take(120).collect();
        let run = RunRequest::new_call(self.rng.uuid(self.clock.now()), Some(correlation));
        let run = RunRequest { parent, ..run };
        let lane = match initiator {
            Initiator::System => SYSTEM_LANE,
            Initiator::Agent | Initiator::Person(_) if tool == FETCH_TOOL => READ_LANE,
            Initiator::Agent | Initiator::Person(_) => PUBLISH_LANE,
        };
        Ok(CallRequest::of_session(caller, session, (lane, tool), parameters, run))
    }
}

/// A result with these data, as the gate returns it.
#[cfg(test)]
pub(super) fn result(outcome: gate::CallOutcome, text: &str, data: &Value) -> CallResult {
    let reply = proto::http::ToolCallReply {
        outcome: String::new(),
        tool_name: String::new(),
        operation: String::new(),
        run_id: None,
        correlation_id: None,
        output_artifacts: Vec::new(),
        response_hash_sha256: None,
        error: None,
    };
    let data = data.as_object().cloned();
    CallResult { outcome, reply, output: Some(gate::Output { text: text.to_owned(), data }) }
}
