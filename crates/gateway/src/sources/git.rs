//! What leaves a session's repositories for their forge: pushes and pull requests. Both are calls of the one lane that
//! is theirs, whoever starts them.

mod grants;
mod operation;
mod pull_request;
mod push;

use std::collections::BTreeSet;
use std::sync::Arc;

use ledger::payload_hash;
use policy::{ActorClass, Claim};
use proto::{OrgId, Role, SessionId, UserId};
use serde_json::{Value, json};
use store::StoreError;

use super::Tool;
use crate::app::AppState;
use crate::gate::{self, CALLBACK, Call, Door, OPERATOR, ORG_ADMIN};

pub(crate) use grants::PushGrants;
pub(crate) use operation::{Operation, classify};
pub(crate) use pull_request::{PULL_REQUEST, PullRequest, problem as pull_request_problem};
pub(crate) use push::{Arriving, Push, Pushes, perform};

const LANE: &str = "git.publish";

/// Who starts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// Whatever runs in the sandbox on its own.
    Agent,
    /// Somebody who asked for exactly this.
    Person(UserId),
}

/// The tool of this whole name.
pub(super) fn find(name: &str) -> Option<Arc<dyn Tool>> {
    if name == PULL_REQUEST {
        return Some(Arc::new(PullRequest));
    }
    let operation = Operation::ALL.into_iter().find(|operation| operation.tool() == name)?;
    Some(Arc::new(push::PushTool(operation)))
}

/// One call for a session. `about` is what people look for in the ledger.
pub(crate) async fn to_call(
    app: &AppState,
    (org, session, by): (OrgId, SessionId, By),
    tool: &str,
    about: &str,
    parameters: Value,
) -> Result<Call, StoreError> {
    let (actor, role, parent) = match by {
        By::Agent => {
            let record = app.store.session(org, session).await?.ok_or(StoreError::Missing("the session"))?;
            let (role, _) = gate::agent_role(record.session_type, record.automation_id.is_some());
            (gate::agent(session), role, app.gate.turn_of(session))
        }
        By::Person(user) => {
            let member = app.store.member(org, user).await?.ok_or(StoreError::Missing("the membership"))?;
            let role = if member.role >= Role::Admin { ORG_ADMIN } else { OPERATOR };
            (Claim { actor_type: ActorClass::Human, actor_id: user.to_string() }, role, None)
        }
    };
    let run_id = format!("{CALLBACK}{}", app.rng.uuid(app.clock.now()).simple());
    let payload = json!({"tool": tool, "case": session, "parameters": parameters});
    // Made of texts alone, so it has a canonical form.
    let request_hash =
        payload_hash(&payload).unwrap_or_else(|_| ledger::sha256(payload.to_string().as_bytes()));
    Ok(Call {
        door: Door::Callback,
        org,
        session: Some(session),
        sandbox: None,
        actor,
        claimed: None,
        agent_name: (by == By::Agent).then(|| "opencode".to_owned()),
        role,
        lane: LANE.to_owned(),
        tool: tool.to_owned(),
        operation: tool.to_owned(),
        case: Some(session.to_string()),
        run_id,
        parent,
        above: None,
        retry_of: None,
        correlation: Some(about.chars().take(120).collect()),
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

impl Push {
    /// The call that a push is, decided about for whoever started it.
    pub(crate) async fn call(&self, app: &AppState, session: SessionId, by: By) -> Result<Call, StoreError> {
        let about = self.wanted.updates.first().map_or("", |update| &update.name);
        let repository = crate::runtime::place(&self.repo).map(String::from).unwrap_or_default();
        let parameters = json!({"repository": repository, "updates": self.updates()});
        let tool = Operation::of_all(&self.operations).tool();
        to_call(app, (self.repo.org_id, session, by), tool, about, parameters).await
    }
}
