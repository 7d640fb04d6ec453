//! Each caller's share of the ledger. Allowed calls, refused calls and started runs have a rate each, so that mistakes do
//! not cost a caller its allowed calls. A call beyond its share gets 429, and one event a minute carries the number of
//! such calls. Services are programs of the operator: their allowed calls are not limited.

use std::collections::HashMap;
use std::time::Duration;

use clock::Clock;
use ledger::{ActionType, Outcome, Severity, Target, TargetType, Text};
use parking_lot::Mutex;
use policy::{ActorClass, Claim};
use proto::{OrgId, SessionId, ToolErrorCode, UserId};
use shares::{OverShare, Party, Quota, Rate, RateLimits};
use store::{Change, GateWrite, StoreError};

use super::Gate;
use crate::judgement::JudgedCall;
use crate::request::CallRequest;
use crate::result::{CallResult, Refusal};

/// The shares of calls, for the doctor.
pub const CALL_RATES: [RateLimits; 3] = [CALLS, REFUSED_CALLS, STARTED_RUNS];
/// Each leaves a run and about four events for ever; an agent that works makes a call every few seconds.
const CALLS: RateLimits = RateLimits {
    name: "calls",
    session: Quota { per_minute: 1_200, burst: 2_000 },
    org: Quota { per_minute: 12_000, burst: 20_000 },
    address: Quota { per_minute: 1_200, burst: 2_000 },
};
/// Generous for whoever makes mistakes, and little for whoever does nothing else: some 1,000 events in the first minute
/// and 120 in each that follows, for one session.
const REFUSED_CALLS: RateLimits = RateLimits {
    name: "refused calls",
    session: Quota { per_minute: 60, burst: 500 },
    org: Quota { per_minute: 300, burst: 2_000 },
    address: Quota { per_minute: 60, burst: 500 },
};
/// Runs that callers start to group their calls.
const STARTED_RUNS: RateLimits = RateLimits {
    name: "runs",
    session: Quota { per_minute: 600, burst: 1_000 },
    org: Quota { per_minute: 6_000, burst: 10_000 },
    address: Quota { per_minute: 600, burst: 1_000 },
};
/// Between two events that carry the number of a caller's calls.
const WINDOW: Duration = Duration::from_mins(1);

/// The shares, and the calls that are counted beyond them.
pub(crate) struct Refusals {
    allowed: Rate,
    refused: Rate,
    runs: Rate,
    clock: Clock,
    unrecorded: Mutex<HashMap<(Option<OrgId>, String), Unrecorded>>,
}

/// Calls of one caller that are not recorded one by one.
struct Unrecorded {
    actor: Claim,
    calls: u64,
    since: Duration,
}

impl Refusals {
    pub(crate) fn new(clock: &Clock) -> Self {
        Self {
            allowed: Rate::new(CALLS, clock.clone()),
            refused: Rate::new(REFUSED_CALLS, clock.clone()),
            runs: Rate::new(STARTED_RUNS, clock.clone()),
            clock: clock.clone(),
            unrecorded: Mutex::default(),
        }
    }

    /// Takes what a caller may do from its share.
    pub(crate) fn take_allowed(
        &self,
        org: OrgId,
        session: Option<SessionId>,
        actor: &Claim,
    ) -> Result<(), OverShare> {
        if actor.actor_type == ActorClass::System {
            return Ok(());
        }
        self.allowed.take(party(Some(org), session, actor), 1)
    }

    /// Takes a call that is refused from the caller's share, or counts it.
    pub(crate) fn take_or_count(
        &self,
        org: Option<OrgId>,
        session: Option<SessionId>,
        actor: &Claim,
    ) -> Result<(), OverShare> {
        let taken = self.refused.take(party(org, session, actor), 1);
        if taken.is_err() {
            self.count((org, actor.clone()), 1);
        }
        taken
    }

    pub(crate) fn count(&self, (org, actor): (Option<OrgId>, Claim), calls: u64) {
        let since = self.clock.elapsed();
        let new = |actor| Unrecorded { actor, calls: 0, since };
        let key = (org, actor.actor_id.clone());
        self.unrecorded.lock().entry(key).or_insert_with(|| new(actor)).calls += calls;
    }

    /// What was counted for a minute, or all of it. It is not counted any more.
    fn due(&self, all: bool) -> Vec<(Option<OrgId>, Unrecorded)> {
        let now = self.clock.elapsed();
        let ripe = |counted: &Unrecorded| all || now.saturating_sub(counted.since) >= WINDOW;
        let due = self.unrecorded.lock().extract_if(|_, counted| ripe(counted)).collect::<Vec<_>>();
        due.into_iter().map(|((org, _), counted)| (org, counted)).collect()
    }
}

fn party(org: Option<OrgId>, session: Option<SessionId>, actor: &Claim) -> Party {
    match (org, session, user(actor)) {
        (Some(org), Some(session), _) => Party::session(session, org),
        (Some(org), None, Some(user)) => Party::user(user, org),
        (Some(org), None, None) => Party::org(org),
        (None, ..) => Party::services(),
    }
}

fn user(actor: &Claim) -> Option<UserId> {
    (actor.actor_type == ActorClass::Human).then(|| actor.actor_id.parse().ok()).flatten()
}

impl Gate {
    /// Takes a refused call from the caller's share.
    pub(crate) fn take_refusal(&self, request: &CallRequest) -> Result<(), OverShare> {
        let caller = &request.caller;
        self.refusals.refused.take(party(Some(caller.org), caller.session, &caller.actor), 1)
    }

    /// Takes an allowed call from the caller's share.
    pub(crate) fn take_allowed(&self, request: &CallRequest) -> Result<(), OverShare> {
        let caller = &request.caller;
        self.refusals.take_allowed(caller.org, caller.session, &caller.actor)
    }

    /// The result of a call beyond its caller's share, which is counted and not recorded.
    pub(crate) fn refuse_unrecorded(&self, request: &CallRequest, over: &OverShare) -> CallResult {
        self.refusals.count((Some(request.caller.org), request.caller.actor.clone()), 1);
        CallResult::over_share(request, over)
    }

    /// Refuses a request whose id was used for another call. The refusal is recorded in the caller's chain; the run that
    /// has the id is not touched.
    pub(crate) async fn conflict(&self, call: &JudgedCall) -> CallResult {
        let request = &call.request;
        if let Err(over) = self.take_refusal(request) {
            return self.refuse_unrecorded(request, &over);
        }
        let versions = self.rules.policy().pins().versions();
        let verdict = policy::Verdict {
            outcome: policy::Outcome::Deny,
            rule_id: "claim.same_id_other_content".to_owned(),
            reason: "the id was used before with other content".to_owned(),
        };
        let refusal = Refusal::new(ToolErrorCode::InvalidRequest, verdict.reason.clone());
        let events = vec![
            self.audit.decision(call, &verdict, &versions),
            self.audit.outcome(call, ActionType::ToolCall, Some(&refusal), &versions),
        ];
        match self.store.gate_write(GateWrite::new(Change::Nothing, events)).await {
            Ok(_) => CallResult::conflict(request),
            Err(error) => {
                tracing::error!(%error, run = %request.run.id, "a conflict could not be recorded");
                let down = "the call could not be recorded, so nothing was done";
                CallResult::unrecorded(request, &Refusal::new(ToolErrorCode::DependencyDown, down))
            }
        }
    }

    /// Takes a run that a caller starts from its share.
    pub fn take_run(&self, org: OrgId, session: Option<SessionId>, actor: &Claim) -> Result<(), OverShare> {
        self.refusals.runs.take(party(Some(org), session, actor), 1)
    }

    /// Records how many calls were refused without events of their own: at most one event a minute for each caller,
    /// and the rest at the end.
    pub(crate) async fn record_refusals(&self, all: bool) -> Result<(), StoreError> {
        let versions = self.rules.policy().pins().versions();
        let mut due = self.refusals.due(all).into_iter();
        while let Some((org, Unrecorded { actor, calls, .. })) = due.next() {
            let mut new = self.audit.event(org, ActionType::ToolCall, Outcome::Deny, &actor, &versions);
            let reason = format!("{calls} calls beyond the caller's share are not recorded one by one");
            new.event.outcome_reason = Some(Text::cut(&reason));
            new.event.notes = Some(Text::cut(&format!("unrecorded calls: {calls}")));
            new.event.severity = Some(Severity::Warn);
            new.event.target = Some(Target {
                artifact_ref: None,
                name: Text::cut("calls"),
                operation: Some(Text::cut("refuse")),
                target_type: TargetType::System,
            });
            if let Err(error) = self.store.gate_write(GateWrite::new(Change::Nothing, vec![new])).await {
                self.refusals.count((org, actor), calls);
                for (org, Unrecorded { actor, calls, .. }) in due {
                    self.refusals.count((org, actor), calls);
                }
                return Err(error);
            }
        }
        Ok(())
    }
}
