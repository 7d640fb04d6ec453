//! For whom a catalog is: the agent that would invoke its actions, and the user whose preferences count. What lanes
//! prohibit for this agent, no mode opens, so no catalog has it.

use std::collections::BTreeSet;

use gate::ToolScope;
use policy::{Action, Claim, Outcome, Policy, Request, Risk, RunState, decide};
use proto::{OrgId, SessionId};
use store::{Chooser, SessionRecord};

use crate::sources::tool_name;

#[derive(Clone, Debug)]
pub(crate) struct Audience {
    pub(super) scope: ToolScope,
    pub(super) chooser: Chooser,
    pub(super) agent: Claim,
    pub(super) role: &'static str,
}

impl Audience {
    /// The agent of a session, and the preferences of this user.
    pub(crate) fn of_session(session: &SessionRecord, chooser: Chooser) -> Self {
        let (role, _) = gate::agent_role(session.mode());
        let scope = ToolScope { org: session.org_id, session: Some(session.id) };
        Self { scope, chooser, agent: gate::agent(session.id), role }
    }

    pub(super) const fn org(&self) -> OrgId {
        self.scope.org
    }

    pub(super) const fn session(&self) -> Option<SessionId> {
        self.scope.session
    }
}

/// The lane of an action, by its risk.
pub(super) const fn lane(risk: Risk) -> &'static str {
    match risk {
        Risk::Read => "actions.read",
        Risk::Write => "actions.write",
        Risk::Danger => "actions.danger",
    }
}

/// Judges by lanes alone what an audience would invoke.
pub(super) struct Lanes<'a> {
    policy: &'a Policy,
    request: Request,
}

impl<'a> Lanes<'a> {
    pub(super) fn new(policy: &'a Policy, audience: &Audience) -> Self {
        let scope = audience.session().map(|_| "case_id").into_iter().chain(["run_id"]);
        let request = Request {
            actor: audience.agent.clone(),
            claimed: None,
            role: audience.role.to_owned(),
            lane: String::new(),
            action: action(policy, String::new(), Risk::Danger),
            scope: scope.map(str::to_owned).collect(),
            refs: Vec::new(),
            flags: BTreeSet::new(),
            run: RunState::New,
            demanded: None,
            mode: None,
            // The lock is for an emergency that ends; a catalog that is empty meanwhile would mislead.
            locked: false,
            grant: None,
        };
        Self { policy, request }
    }

    /// Whether lanes prohibit an action of a source.
    pub(super) fn prohibit(&mut self, source: &str, name: &str, risk: Risk) -> bool {
        lane(risk).clone_into(&mut self.request.lane);
        self.request.action = action(self.policy, tool_name(source, name), risk);
        decide(self.policy, &self.request).outcome != Outcome::Allow
    }
}

fn action(policy: &Policy, name: String, risk: Risk) -> Action {
    let writes = policy.tool(&name).and_then(|tool| tool.writes.clone());
    Action::Tool { operation: name.clone(), tool_name: name, risk, registered: true, writes }
}
