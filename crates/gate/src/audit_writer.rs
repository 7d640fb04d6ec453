//! Writes audit events: who, what, by which rule, with which hashes; never content.

use chrono::{DateTime, SecondsFormat, Utc};
use clock::{Clock, Rng};
use ledger::{
    ActionType, Actor, ActorType, Artifacts, Authz, Decision, Event, EventError, Hash, Outcome,
    PolicyVersions, Severity, Target, TargetType, Text, Timestamp, keyed_hash,
};
use policy::{ActorClass, Claim, Verdict, Versions};
use proto::OrgId;
use serde_json::Value;
use store::NewEvent;
use uuid::Uuid;

use crate::judgement::JudgedCall;
use crate::request::{CallRequest, EntryPoint};
use crate::result::Refusal;
use crate::runs::agent;

/// Builds events. It holds the key for hashes of parameters, which could be guessed if the hash
/// were not keyed.
pub(crate) struct AuditWriter {
    clock: Clock,
    rng: Rng,
    parameters_key: [u8; 32],
    /// The type of agent that this instance runs.
    agent_name: &'static str,
}

impl AuditWriter {
    pub(crate) fn new(clock: Clock, rng: Rng, parameters_key: [u8; 32], agent_name: &'static str) -> Self {
        Self { clock, rng, parameters_key, agent_name }
    }

    pub(crate) fn now(&self) -> DateTime<Utc> {
        self.clock.now()
    }

    pub(crate) fn new_uuid(&self) -> Uuid {
        self.rng.uuid(self.clock.now())
    }

    /// The keyed hash of a call's parameters for its run. Parameters are often short and guessable,
    /// so a plain hash would reveal them.
    pub(crate) fn parameters_hash(&self, parameters: &Value) -> Option<Hash> {
        let text = ledger::canonical(parameters).ok()?;
        Some(keyed_hash(&self.parameters_key, "parameters", text.as_bytes()))
    }

    /// An event with the fields that every event has.
    pub(crate) fn event(
        &self,
        org: Option<OrgId>,
        action: ActionType,
        outcome: Outcome,
        actor: &Claim,
        versions: &Versions,
    ) -> NewEvent {
        let pins = PolicyVersions { lanes: Text::fit(&versions.lanes), roles: Text::fit(&versions.roles) };
        NewEvent { org, event: event((&self.clock, &self.rng), action, outcome, acting(actor), pins) }
    }

    /// The event of the policy decision about a call.
    pub(crate) fn decision(&self, call: &JudgedCall, verdict: &Verdict, versions: &Versions) -> NewEvent {
        let allowed = verdict.outcome == policy::Outcome::Allow;
        let outcome = if allowed { Outcome::Allow } else { Outcome::Deny };
        let mut new = self.of_call(call, ActionType::AuthzDecision, outcome, versions);
        new.event.outcome_reason = Some(Text::cut(&verdict.reason));
        new.event.authz = Some(Authz {
            decision: if allowed { Decision::Allow } else { Decision::Deny },
            policy_ref: Some(Text::cut(&format!("lanes@{}", versions.lanes))),
            rule_id: Some(Text::cut(&verdict.rule_id)),
        });
        let retry = call.request.run.retry_of.as_ref().filter(|retry| !retry.reason.is_empty());
        new.event.notes = retry.map(|retry| Text::cut(&format!("tried again: {}", retry.reason)));
        new
    }

    /// The event of a call that waits for approval, with the definition of the tool that the approval is bound to.
    pub(crate) fn request(
        &self,
        call: &JudgedCall,
        verdict: &Verdict,
        versions: &Versions,
        definition: Option<&str>,
    ) -> NewEvent {
        let mut new = self.of_call(call, ActionType::System, Outcome::Success, versions);
        let waits = format!("the call waits for approval: {}", verdict.reason);
        new.event.outcome_reason = Some(Text::cut(&waits));
        let definition = definition.unwrap_or("none");
        new.event.notes = Some(Text::cut(&format!("{}, definition sha256 {definition}", verdict.rule_id)));
        new
    }

    /// The event of the first of two approvals.
    pub(crate) fn first_approval(&self, call: &JudgedCall, versions: &Versions) -> NewEvent {
        let mut new = self.of_call(call, ActionType::System, Outcome::Success, versions);
        new.event.outcome_reason = Some(Text::cut("approved by the first of two people"));
        new
    }

    /// The event of an approved call that its caller repeats.
    pub(crate) fn redemption(&self, call: &JudgedCall, versions: &Versions) -> NewEvent {
        let mut new = self.of_call(call, ActionType::System, Outcome::Success, versions);
        new.event.outcome_reason = Some(Text::cut("the approved call was repeated, and is executed"));
        new
    }

    /// The event of a call's outcome.
    pub(crate) fn outcome(
        &self,
        call: &JudgedCall,
        action: ActionType,
        refusal: Option<&Refusal>,
        versions: &Versions,
    ) -> NewEvent {
        let outcome = match refusal {
            None => Outcome::Success,
            Some(refusal) if refusal.code == proto::ToolErrorCode::PolicyDenied => Outcome::Deny,
            Some(_) => Outcome::Failure,
        };
        let mut new = self.of_call(call, action, outcome, versions);
        new.event.outcome_reason =
            Some(refusal.map_or_else(|| Text::cut("completed"), |refusal| Text::cut(&refusal.message)));
        new.event.error = refusal.map(|refusal| EventError {
            error_code: Text::cut(refusal.code.as_str()),
            message: Text::cut(&refusal.message),
            retryable: refusal.retryable,
        });
        if outcome != Outcome::Success {
            new.event.severity = Some(Severity::Warn);
        }
        if action == ActionType::Override {
            let ticket = call.ticket.as_deref().unwrap_or_default();
            let reason = call.request.break_glass.reason.as_deref().unwrap_or_default();
            new.event.notes = Some(Text::cut(&format!("ticket {ticket}: {reason}")));
        }
        new
    }

    fn of_call(
        &self,
        call: &JudgedCall,
        action: ActionType,
        outcome: Outcome,
        versions: &Versions,
    ) -> NewEvent {
        let CallRequest { caller, target, run, .. } = call.request.as_ref();
        let mut new = self.event(Some(caller.org), action, outcome, &caller.actor, versions);
        let event = &mut new.event;
        let is_own = call.request.entry_point == EntryPoint::Callback
            && caller.session.is_some_and(|session| caller.actor == agent(session));
        let agent_name = is_own.then_some(self.agent_name).or(call.request.agent_name.as_deref());
        event.actor.agent_name = agent_name.map(Text::cut);
        event.case_id = call.case.as_deref().and_then(|id| Text::new(id).ok());
        event.run_id = Text::new(run.id.as_str()).ok();
        event.parent_run_id = call.parent_run_id.as_deref().and_then(|id| Text::new(id).ok());
        event.correlation_id = run.correlation.as_deref().map(Text::cut);
        event.lane_id = Some(Text::cut(&target.lane));
        event.role_id = Some(Text::cut(&caller.role));
        event.request_hash_sha256 = Some(call.request.request_hash);
        event.input_artifacts = Artifacts::try_from(call.input_artifacts.clone()).unwrap_or_default();
        let (target_type, name, operation) = match &call.writes {
            Some(write) if action == ActionType::DbWrite => {
                (TargetType::Table, write.table.as_str(), write.mode.as_str())
            }
            _ => (TargetType::Tool, target.tool.as_str(), target.operation.as_str()),
        };
        event.target = Some(Target {
            artifact_ref: None,
            name: Text::cut(name),
            operation: Some(Text::cut(operation)),
            target_type,
        });
        new
    }
}

/// An event with the current time and a new id.
pub(crate) fn event(
    (clock, rng): (&Clock, &Rng),
    action: ActionType,
    outcome: Outcome,
    actor: Actor,
    pins: PolicyVersions,
) -> Event {
    let now = clock.now();
    let id = format!("evt_{}", rng.uuid(now).simple());
    Event::new(Text::fit(&id), timestamp(now), action, outcome, actor, pins)
}

pub(crate) fn timestamp(at: DateTime<Utc>) -> Timestamp {
    let text = at.to_rfc3339_opts(SecondsFormat::Millis, true);
    // Only a year beyond 9999 has another format.
    Timestamp::try_from(text).unwrap_or_else(|_| timestamp(DateTime::UNIX_EPOCH))
}

/// The time of an event, to the millisecond that its record has.
pub(crate) fn moment(event: &Event) -> DateTime<Utc> {
    let read = DateTime::parse_from_rfc3339(event.timestamp_utc.as_str());
    // Every timestamp was created by `timestamp` above, so parsing it cannot fail.
    read.map_or(DateTime::UNIX_EPOCH, |at| at.to_utc())
}

pub(crate) fn acting(actor: &Claim) -> Actor {
    let kind = match actor.actor_type {
        ActorClass::Agent => ActorType::Agent,
        ActorClass::Human => ActorType::Human,
        ActorClass::System => ActorType::System,
    };
    Actor { actor_id: Text::fit(&actor.actor_id), actor_type: kind, agent_name: None, user_display: None }
}
