//! Pushes and pull requests as calls of the gate. Both use the same lane, whether an agent or a person starts them.

use std::collections::BTreeSet;

use gate::{
    BreakGlass, CALLBACK_RUN, CallRequest, CallResult, Caller, EntryPoint, OPERATOR, ORG_ADMIN, RunRequest,
    Target,
};
use ledger::payload_hash;
use policy::{ActorClass, Claim};
use proto::{OrgId, Role, SessionId, UserId};
use serde_json::{Value, json};
use store::StoreError;

use super::GitService;

const LANE: &str = "git.publish";

/// Who starts a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Initiator {
    /// A program in the sandbox, without a person's request.
    Agent,
    /// A person who asked for exactly this.
    Person(UserId),
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
        let (actor, role, parent) = match initiator {
            Initiator::Agent => {
                let record = self.store.session(org, session).await?;
                let record = record.ok_or(StoreError::Missing("the session"))?;
                let (role, _) = gate::agent_role(record.session_type, record.automation_id.is_some());
                (gate::agent(session), role, self.gate.turn_of(session))
            }
            Initiator::Person(user) => {
                let member = self.store.member(org, user).await?;
                let member = member.ok_or(StoreError::Missing("the membership"))?;
                let role = if member.role >= Role::Admin { ORG_ADMIN } else { OPERATOR };
                (Claim { actor_type: ActorClass::Human, actor_id: user.to_string() }, role, None)
            }
        };
        let run_id = format!("{CALLBACK_RUN}{}", self.rng.uuid(self.clock.now()).simple());
        let payload = json!({"tool": tool, "case": session, "parameters": parameters});
        // The payload contains only strings, so canonicalisation does not fail.
        let request_hash =
            payload_hash(&payload).unwrap_or_else(|_| ledger::sha256(payload.to_string().as_bytes()));
        Ok(CallRequest {
            entry_point: EntryPoint::Callback,
            caller: Caller { org, session: Some(session), actor, role: role.to_owned() },
            claimed: None,
            agent_name: (initiator == Initiator::Agent).then(|| "opencode".to_owned()),
            target: Target {
                lane: LANE.to_owned(),
                tool: tool.to_owned(),
                operation: tool.to_owned(),
                parameters,
                input_artifacts: Vec::new(),
            },
            run: RunRequest {
                id: run_id,
                parent,
                retry_of: None,
                correlation: Some(subject.chars().take(120).collect()),
            },
            case: Some(session.to_string()),
            scope: BTreeSet::from(["case_id".to_owned(), "run_id".to_owned()]),
            break_glass: BreakGlass::default(),
            demanded: None,
            request_hash,
        })
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
