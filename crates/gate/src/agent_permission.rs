//! Permissions that an agent asks for inside its sandbox, such as `bash`. People answer, unless policy denies it.

use std::collections::BTreeSet;

use ledger::{ActionType, Authz, Decision, Target, TargetType, Text};
use policy::{Action, Outcome, Request, Risk, RunState, Verdict, decide};
use store::{Change, GateWrite, NewEvent, SessionRecord, StoreError};

use crate::Gate;
use crate::runs::{agent, agent_role};

/// The lane that is asked. The name of a permission there is `agent.` and its own name.
const LANE: &str = "actions.write";
const TOOL: &str = "agent";

impl Gate {
    /// Decides whether people may be asked for a permission of the agent, and records the decision. Returns the reason
    /// if policy denies it.
    pub async fn judge_agent_permission(
        &self,
        record: &SessionRecord,
        permission: &str,
    ) -> Result<Option<String>, StoreError> {
        let locked = match self.lock.is_engaged() {
            Ok(locked) => locked,
            Err(error) => return Ok(Some(error.to_string())),
        };
        let verdict = decide(&self.rules.policy(), &permission_request(record, permission, locked));
        let (is_denied, actor) = (verdict.outcome == Outcome::Deny, agent(record.id));
        let share = if is_denied {
            self.refusals.take_or_count(Some(record.org_id), Some(record.id), &actor)
        } else {
            self.refusals.take_allowed(record.org_id, Some(record.id), &actor)
        };
        // An agent cannot fill the ledger: what is beyond its share is denied, and only counted.
        if let Err(over) = share {
            return Ok(Some(if is_denied { verdict.reason } else { over.to_string() }));
        }
        let event = self.permission_event(record, permission, &verdict);
        self.store.gate_write(GateWrite::new(Change::Nothing, vec![event])).await?;
        Ok(is_denied.then_some(verdict.reason))
    }

    fn permission_event(&self, record: &SessionRecord, permission: &str, verdict: &Verdict) -> NewEvent {
        let versions = self.rules.policy().pins().versions();
        let (outcome, decision) = match verdict.outcome {
            Outcome::Deny => (ledger::Outcome::Deny, Decision::Deny),
            Outcome::Allow | Outcome::Ask => (ledger::Outcome::Allow, Decision::Allow),
        };
        let actor = agent(record.id);
        let mut new =
            self.audit.event(Some(record.org_id), ActionType::AuthzDecision, outcome, &actor, &versions);
        let event = &mut new.event;
        event.role_id = Some(Text::cut(agent_role(record.mode()).0));
        event.lane_id = Some(Text::cut(LANE));
        event.case_id = Text::new(record.id.to_string()).ok();
        event.run_id = self.turn_of(record.id).and_then(|run| Text::new(run).ok());
        event.outcome_reason = Some(Text::cut(&verdict.reason));
        event.target = Some(Target {
            artifact_ref: None,
            name: Text::cut(TOOL),
            operation: Some(Text::cut(permission)),
            target_type: TargetType::Tool,
        });
        event.authz = Some(Authz {
            decision,
            policy_ref: Some(Text::cut(&format!("lanes@{}", versions.lanes))),
            rule_id: Some(Text::cut(&verdict.rule_id)),
        });
        new
    }
}

fn permission_request(record: &SessionRecord, permission: &str, locked: bool) -> Request {
    Request {
        actor: agent(record.id),
        claimed: None,
        role: agent_role(record.mode()).0.to_owned(),
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
    }
}
