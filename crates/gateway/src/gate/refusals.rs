//! Each caller's share of the ledger. Allowed calls, refused calls and started runs have a rate each, so that mistakes do
//! not cost a caller its allowed calls. A call beyond its share gets 429, and one event a minute carries the number of
//! such calls. Services are programs of the operator: their allowed calls are not limited.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clock::Clock;
use ledger::{ActionType, Outcome, Severity, Target, TargetType, Text};
use policy::{ActorClass, Claim};
use proto::{OrgId, SessionId, UserId};
use store::{Change, GateWrite, StoreError};

use super::Gate;
use super::call::{Answered, Call};
use crate::shares::{OverShare, Party, Quota, Rate, RateLimits};

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
pub(super) struct Refusals {
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
    pub(super) fn new(clock: &Clock) -> Self {
        Self {
            allowed: Rate::new(CALLS, clock.clone()),
            refused: Rate::new(REFUSED_CALLS, clock.clone()),
            runs: Rate::new(STARTED_RUNS, clock.clone()),
            clock: clock.clone(),
            unrecorded: Mutex::default(),
        }
    }

    /// Takes what a caller may do from its share.
    pub(super) fn take_allowed(
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
    pub(super) fn take_or_count(
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

    pub(super) fn count(&self, (org, actor): (Option<OrgId>, Claim), calls: u64) {
        let since = self.clock.elapsed();
        let new = |actor| Unrecorded { actor, calls: 0, since };
        let key = (org, actor.actor_id.clone());
        self.lock().entry(key).or_insert_with(|| new(actor)).calls += calls;
    }

    /// What was counted for a minute, or all of it. It is not counted any more.
    fn due(&self, all: bool) -> Vec<(Option<OrgId>, Unrecorded)> {
        let now = self.clock.elapsed();
        let ripe = |counted: &Unrecorded| all || now.saturating_sub(counted.since) >= WINDOW;
        let due = self.lock().extract_if(|_, counted| ripe(counted)).collect::<Vec<_>>();
        due.into_iter().map(|((org, _), counted)| (org, counted)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(Option<OrgId>, String), Unrecorded>> {
        self.unrecorded.lock().unwrap_or_else(PoisonError::into_inner)
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
    /// Takes a call that is refused from the caller's share. One that does not fit is to be counted, unless it was
    /// answered before.
    pub(super) fn take_refusal(&self, call: &Call) -> Result<(), OverShare> {
        self.refusals.refused.take(party(Some(call.org), call.session, &call.actor), 1)
    }

    /// Takes a call that is allowed from the caller's share.
    pub(super) fn take_allowed(&self, call: &Call) -> Result<(), OverShare> {
        self.refusals.take_allowed(call.org, call.session, &call.actor)
    }

    /// The answer to a call beyond its caller's share, which is counted and not recorded.
    pub(super) fn refuse_unrecorded(&self, call: &Call, over: &OverShare) -> Answered {
        self.refusals.count((Some(call.org), call.actor.clone()), 1);
        Answered::over_share(call, over)
    }

    /// Takes a run that a caller starts from its share.
    pub(crate) fn take_run(
        &self,
        org: OrgId,
        session: Option<SessionId>,
        actor: &Claim,
    ) -> Result<(), OverShare> {
        self.refusals.runs.take(party(Some(org), session, actor), 1)
    }

    /// Records how many calls were refused without events of their own: at most one event a minute for each caller,
    /// and the rest at the end.
    pub(super) async fn tell_refusals(&self, all: bool) -> Result<(), StoreError> {
        let versions = self.rules.policy().pins().versions();
        let mut due = self.refusals.due(all).into_iter();
        while let Some((org, Unrecorded { actor, calls, .. })) = due.next() {
            let mut new = self.scribe.event(org, ActionType::ToolCall, Outcome::Deny, &actor, &versions);
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
