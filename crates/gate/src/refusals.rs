//! Rate limits for what each caller adds to the ledger. Allowed calls, refused calls and started runs have separate
//! rates, so that mistakes do not use up a caller's allowed calls. A call beyond its rate gets a 429, and one event per
//! minute records the number of such calls. Services belong to the operator, so their allowed calls are not limited.

use std::collections::HashMap;
use std::time::Duration;

use clock::Clock;
use ledger::{ActionType, Outcome, Severity, Target, TargetType, Text};
use parking_lot::Mutex;
use policy::{ActorClass, Claim};
use proto::{ApiKeyId, OrgId, SessionId, ToolErrorCode, UserId};
use shares::{OverShare, Party, Quota, Rate, RateLimits};
use store::{Change, GateWrite, StoreError};

use super::Gate;
use crate::judgement::JudgedCall;
use crate::request::CallRequest;
use crate::result::{CallResult, Refusal};
use crate::runs::KEY_AGENT;

/// The rate limits of calls, for `doctor`; see [`crate::GateSettings::calls_per_minute`].
pub fn call_rates(calls_per_minute: u32) -> [RateLimits; 3] {
    [calls(calls_per_minute), refused_calls(calls_per_minute), STARTED_RUNS]
}

/// The rate of allowed calls: a tenth of the organization's for one session or user. Each call leaves a run and about four
/// events forever; a working agent makes a call every few seconds.
fn calls(per_minute: u32) -> RateLimits {
    let quota = |per_minute: u32| {
        let burst = u64::from(per_minute) * 5 / 3;
        Quota { per_minute, burst: u32::try_from(burst).unwrap_or(u32::MAX) }
    };
    let (session, org) = (quota((per_minute / 10).max(1)), quota(per_minute));
    RateLimits { name: "calls", session, org, address: session }
}

/// The rate of refused calls: a fortieth of the organization's calls, and a fifth of that for one session or user. Generous
/// for occasional mistakes, but small for a caller that does nothing else: by default about 1,000 events in the first minute
/// and 120 in each following one, per session.
fn refused_calls(calls_per_minute: u32) -> RateLimits {
    let quota = |per_minute: u32, thirds: u64| {
        let burst = u64::from(per_minute.max(1)) * thirds / 3;
        Quota { per_minute: per_minute.max(1), burst: u32::try_from(burst).unwrap_or(u32::MAX) }
    };
    let (session, org) = (quota(calls_per_minute / 200, 25), quota(calls_per_minute / 40, 20));
    RateLimits { name: "refused calls", session, org, address: session }
}

/// The rate of runs that callers start to group their calls.
const STARTED_RUNS: RateLimits = RateLimits {
    name: "runs",
    session: Quota { per_minute: 600, burst: 1_000 },
    org: Quota { per_minute: 6_000, burst: 10_000 },
    address: Quota { per_minute: 600, burst: 1_000 },
};
/// The interval between two events that record a caller's number of unrecorded calls.
const REPORT_INTERVAL: Duration = Duration::from_mins(1);

/// The rates, and the counts of calls beyond them.
pub(crate) struct Refusals {
    allowed: Rate,
    refused: Rate,
    runs: Rate,
    clock: Clock,
    unrecorded: Mutex<HashMap<(Option<OrgId>, String), UnrecordedCalls>>,
}

/// The calls of one caller that are not recorded individually.
struct UnrecordedCalls {
    actor: Claim,
    calls: u64,
    since: Duration,
}

impl Refusals {
    pub(crate) fn new(clock: &Clock, calls_per_minute: u32) -> Self {
        Self {
            allowed: Rate::new(calls(calls_per_minute), clock.clone()),
            refused: Rate::new(refused_calls(calls_per_minute), clock.clone()),
            runs: Rate::new(STARTED_RUNS, clock.clone()),
            clock: clock.clone(),
            unrecorded: Mutex::default(),
        }
    }

    /// Takes an allowed action from the caller's share.
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

    /// Takes a refused call from the caller's share, or counts it as unrecorded if the share is used up.
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
        let new = |actor| UnrecordedCalls { actor, calls: 0, since };
        let key = (org, actor.actor_id.clone());
        self.unrecorded.lock().entry(key).or_insert_with(|| new(actor)).calls += calls;
    }

    /// Removes and returns the counts that are at least a minute old, or all of them.
    fn due(&self, all: bool) -> Vec<(Option<OrgId>, UnrecordedCalls)> {
        let now = self.clock.elapsed();
        let ripe = |counted: &UnrecordedCalls| all || now.saturating_sub(counted.since) >= REPORT_INTERVAL;
        let due = self.unrecorded.lock().extract_if(|_, counted| ripe(counted)).collect::<Vec<_>>();
        due.into_iter().map(|((org, _), counted)| (org, counted)).collect()
    }
}

fn party(org: Option<OrgId>, session: Option<SessionId>, actor: &Claim) -> Party {
    let Some(org) = org else { return Party::services() };
    match (session, user(actor), key(actor)) {
        (Some(session), ..) => Party::session(session, org),
        (None, Some(user), _) => Party::user(user, org),
        (None, None, Some(key)) => Party::key(key, org),
        (None, None, None) => Party::org(org),
    }
}

fn user(actor: &Claim) -> Option<UserId> {
    (actor.actor_type == ActorClass::Human).then(|| actor.actor_id.parse().ok()).flatten()
}

/// The key of a program that counts as an agent. No credential lets its caller choose such a name.
fn key(actor: &Claim) -> Option<ApiKeyId> {
    let named = actor.actor_id.strip_prefix(KEY_AGENT)?.parse().ok();
    named.filter(|_| actor.actor_type == ActorClass::Agent)
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

    /// Counts an attempt beyond its caller's share, which is not recorded by itself.
    pub fn count_unrecorded(&self, org: OrgId, actor: Claim) {
        self.refusals.count((Some(org), actor), 1);
    }

    /// The result of a call beyond its caller's share. The call is counted but not recorded.
    pub(crate) fn refuse_unrecorded(&self, request: &CallRequest, over: &OverShare) -> CallResult {
        self.count_unrecorded(request.caller.org, request.caller.actor.clone());
        CallResult::over_share(request, over)
    }

    /// Refuses a request whose id was used for another call. The refusal is recorded in the caller's chain, and the
    /// existing run with this id stays unchanged.
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

    /// Takes a started run from the caller's share.
    pub fn take_run(&self, org: OrgId, session: Option<SessionId>, actor: &Claim) -> Result<(), OverShare> {
        self.refusals.runs.take(party(Some(org), session, actor), 1)
    }

    /// Records how many calls were refused without events of their own: at most one event per minute and caller, and
    /// the rest at shutdown.
    pub(crate) async fn record_refusals(&self, all: bool) -> Result<(), StoreError> {
        let versions = self.rules.policy().pins().versions();
        let mut due = self.refusals.due(all).into_iter();
        while let Some((org, UnrecordedCalls { actor, calls, .. })) = due.next() {
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
                for (org, UnrecordedCalls { actor, calls, .. }) in due {
                    self.refusals.count((org, actor), calls);
                }
                return Err(error);
            }
        }
        Ok(())
    }
}
