//! Pushes and pull requests as calls of the gate. Both have one lane, whoever starts them.

use std::collections::BTreeSet;

use futures_util::future::BoxFuture;
use ledger::payload_hash;
use policy::{ActorClass, Claim};
use proto::{OrgId, Role, SessionId, UserId};
use serde_json::{Value, json};
use store::StoreError;

use super::{GitService, Push};
use crate::gate::{self, Answered, CALLBACK, Call, Door, OPERATOR, ORG_ADMIN};

const LANE: &str = "git.publish";

/// The gate with its tools behind it. Tools are registered in a layer above this module, so callers pass the gate in.
pub(crate) trait GateCalls: Send + Sync {
    /// Decides about a push and forwards it to the forge. The push, with its body, is dropped when this returns.
    fn push(&self, call: Call, push: Push) -> BoxFuture<'_, Answered>;

    fn create_pull_request(&self, call: Call) -> BoxFuture<'_, Answered>;
}

/// Who starts a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Initiator {
    /// A program in the sandbox, without a person's request.
    Agent,
    /// A person who asked for exactly this.
    Person(UserId),
}

impl GitService {
    /// Builds a call for a session. `subject` becomes the correlation id, by which people search the ledger.
    pub(super) async fn call(
        &self,
        (org, session, initiator): (OrgId, SessionId, Initiator),
        tool: &str,
        subject: &str,
        parameters: Value,
    ) -> Result<Call, StoreError> {
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
        let run_id = format!("{CALLBACK}{}", self.rng.uuid(self.clock.now()).simple());
        let payload = json!({"tool": tool, "case": session, "parameters": parameters});
        // The payload contains only strings, so canonicalisation does not fail.
        let request_hash =
            payload_hash(&payload).unwrap_or_else(|_| ledger::sha256(payload.to_string().as_bytes()));
        Ok(Call {
            door: Door::Callback,
            org,
            session: Some(session),
            sandbox: None,
            actor,
            claimed: None,
            agent_name: (initiator == Initiator::Agent).then(|| "opencode".to_owned()),
            role,
            lane: LANE.to_owned(),
            tool: tool.to_owned(),
            operation: tool.to_owned(),
            case: Some(session.to_string()),
            run_id,
            parent,
            above: None,
            retry_of: None,
            correlation: Some(subject.chars().take(120).collect()),
            scope: BTreeSet::from(["case_id".to_owned(), "run_id".to_owned()]),
            ticket: None,
            override_reason: None,
            demanded: None,
            writes: None,
            denial: None,
            input_artifacts: Vec::new(),
            parameters,
            request_hash,
        })
    }
}
