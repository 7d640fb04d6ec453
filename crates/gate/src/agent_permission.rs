//! Permissions that an agent asks for inside its sandbox, such as `bash`. People answer, unless policy denies it.

use std::collections::BTreeSet;

use policy::{Action, Outcome, Request, Risk, RunState, decide};
use store::SessionRecord;

use crate::Gate;
use crate::runs::{agent, agent_role};

/// The lane that is asked. The name of a permission there is `agent.` and its own name.
const LANE: &str = "actions.write";
const TOOL: &str = "agent";

impl Gate {
    /// The reason why policy denies the agent a permission. `None` if people may decide.
    pub fn agent_permission_denial(&self, record: &SessionRecord, permission: &str) -> Option<String> {
        let locked = match self.lock.is_engaged() {
            Ok(locked) => locked,
            Err(error) => return Some(error.to_string()),
        };
        let role = agent_role(record.mode()).0;
        let request = Request {
            actor: agent(record.id),
            claimed: None,
            role: role.to_owned(),
            lane: LANE.to_owned(),
            action: Action::Tool {
                tool_name: TOOL.to_owned(),
                operation: permission.to_owned(),
                risk: Risk::Write,
                registered: true,
                writes: None,
            },
            scope: BTreeSet::from(["case_id".to_owned(), "run_id".to_owned()]),
            refs: Vec::new(),
            flags: BTreeSet::new(),
            run: RunState::New,
            demanded: None,
            mode: None,
            locked,
            grant: None,
        };
        let verdict = decide(&self.rules.policy(), &request);
        (verdict.outcome == Outcome::Deny).then_some(verdict.reason)
    }
}
